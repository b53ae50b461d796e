"""`ImagePrompt`: where the pictures of a conversation stand among its tokens.

The chat template writes the model's image token for each picture of the messages. A picture that is divided into tiles
gets the texts around them there. Once the text is encoded, each image token becomes as many as the image has positions,
and these positions get keys in the row that is sent to the scheduler. A client's text is never taken for an image:
`PartsEncoder` encodes no control token in it. Token ids that continue an earlier prompt have keys already, which must
be the keys of the pictures that come with them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from radixrt.errors import RequestError
from radixrt.messages.images import MAX_KEY, RowImage, image_keys
from radixrt.messages.parts import PromptPart, TemplateText
from radixrt.messages.request import Row
from radixrt.messages.wire import Int32Array, pack_i32, unpack_i32
from radixrt.models.vision_spec import VisionSpec
from radixrt.tokenizer.image_reader import Picture
from radixrt.tokenizer.prompt_parts import INPUT_PARTS
from radixrt.tokenizer.tokenizer import Tokenizer

FAKE, GLOBAL = "<fake_token_around_image>", "<global-img>"


class ImagePrompt:
    """See the module's docstring.

    Args:
        spec: of the model.
    """

    def __init__(self, spec: VisionSpec, tokenizer: Tokenizer) -> None:
        self._id = spec.image_token_id
        self._divides = spec.kind == "idefics3"
        self._token = next((text for text, token in tokenizer.control_tokens.items() if token == self._id), None)

    @property
    def token(self) -> str:
        """Text that the chat template writes for an image; empty if the tokenizer has none."""
        return self._token or ""

    def write(self, parts: Sequence[PromptPart], pictures: Sequence[Picture]) -> tuple[list[PromptPart], list[int]]:
        """Return the parts of a prompt with the texts of its pictures, and with image tokens in place of keys.

        Returns:
            The parts, and for each image token in them the number of positions that it stands for: all positions of an
            image in a text, one position in token ids.

        Raises:
            RequestError: the chat template has not written one image token for each picture, or the keys in token ids
                are not those of the pictures.
        """
        if self._token is None:
            raise RequestError("this model's tokenizer has no image token", param=pictures[0].param)
        rest = list(reversed(pictures))
        written: list[PromptPart] = []
        repeats: list[int] = []
        missing = 0
        for i, part in enumerate(parts):
            if isinstance(part, list):
                ids, positions = self._tokens(part, rest, f"{INPUT_PARTS}[{i}]")
                written.append(ids)
                repeats += [1] * positions
            elif isinstance(part, TemplateText):
                text, *pieces = part.template.split(self._token)
                for piece in pieces:
                    if rest:
                        picture = rest.pop()
                        text += self._text(picture) + piece
                        repeats += [image.count for image in picture.images]
                    else:
                        missing += 1
                written.append(TemplateText(text))
            else:
                written.append(part)
        if rest or missing:
            raise RequestError(
                f"{pictures[0].param}: the chat template writes {len(pictures) - len(rest) + missing} images, and the "
                f"messages have {len(pictures)}; put images into messages of the user, without allow_control_tokens, "
                "or use the model's own template",
                param=pictures[0].param,
            )
        return written, repeats

    def expand(self, ids: Sequence[int], repeats: Sequence[int]) -> Int32Array:
        """Return int32 token ids with an image token at each position of an image.

        Args:
            ids: encoded parts of `write`.
            repeats: see `write`.

        Raises:
            RequestError: a text of the request holds the image token.
        """
        tokens = np.array(ids, np.int32)
        times = np.ones(len(tokens), np.int64)
        places = tokens == self._id
        if np.count_nonzero(places) != len(repeats):
            raise RequestError(f"the prompt holds the text {self._token}, which stands for an image", param="prompt")
        times[places] = repeats
        expanded: Int32Array = np.repeat(tokens, times)
        return expanded

    def _tokens(self, part: list[int], rest: list[Picture], param: str) -> tuple[list[int], int]:
        """Return token ids with image tokens in place of keys, and the number of keys.

        Args:
            rest: pictures that are not placed yet, the next one last; those of the keys are removed.
        """
        ids = np.array(part, np.int64)
        places = np.flatnonzero(ids <= MAX_KEY)
        keys, at = ids[places], 0
        while at < len(keys) and rest:
            picture = rest.pop()
            expected = np.concatenate([image_keys(image.digest, image.count) for image in picture.images])
            if not np.array_equal(keys[at : at + len(expected)], expected):
                break
            at += len(expected)
        if at < len(keys) or (ids == self._id).any():
            raise RequestError(
                f"{param} holds positions of images other than those of the request's pictures; send token ids as the "
                "engine has reported them, with the same pictures in the same order",
                param=param,
            )
        ids[places] = self._id
        return ids.tolist(), len(keys)

    def keyed(self, row: Row, prefix: bytes, pictures: Sequence[Picture]) -> tuple[Row, bytes]:
        """Return a row and its prefix with the keys of images in place of their tokens.

        Args:
            row: row with token ids.
            prefix: int32 column of the prefix; empty without one.
        """
        ids = np.concatenate([unpack_i32(prefix), unpack_i32(row.ids)])
        places = np.flatnonzero(ids == self._id)
        images: list[RowImage] = []
        at = 0
        for image in (image for picture in pictures for image in picture.images):
            placed = msgspec.structs.replace(image, start=int(places[at]))
            ids[placed.start : placed.end] = image_keys(image.digest, image.count)
            images.append(placed)
            at += image.count
        before = len(prefix) // 4
        return msgspec.structs.replace(row, ids=pack_i32(ids[before:]), images=images), pack_i32(ids[:before])

    def _text(self, picture: Picture) -> str:
        """Text of a picture, as the model's own processor writes it."""
        assert self._token is not None
        if not self._divides:
            return self._token
        rows, columns = picture.tiles
        lines = [
            "".join(f"{FAKE}<row_{row}_col_{column}>{self._token}" for column in range(1, columns + 1)) + "\n"
            for row in range(1, rows + 1)
        ]
        whole = f"{FAKE}{GLOBAL}{self._token}{FAKE}"
        return "".join(lines) + ("\n" if lines else "") + whole
