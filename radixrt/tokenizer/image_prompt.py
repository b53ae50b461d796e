"""`ImagePrompt`: where the pictures of a conversation stand among its tokens.

The chat template writes the model's image token for each picture of the messages. A picture that is divided into tiles
gets the texts around them there. Once the text is encoded, each image token becomes as many as the image has positions,
and these positions get keys in the row that is sent to the scheduler. A client's text is never taken for an image:
`PartsEncoder` encodes no control token in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from radixrt.errors import RequestError
from radixrt.messages.images import RowImage, image_keys
from radixrt.messages.parts import PromptPart, TemplateText
from radixrt.messages.request import Row
from radixrt.messages.wire import Int32Array, pack_i32, unpack_i32
from radixrt.models.vision_spec import VisionSpec
from radixrt.tokenizer.image_reader import Picture
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

    def write(self, parts: Sequence[PromptPart], pictures: Sequence[Picture]) -> list[PromptPart]:
        """Return the parts of a conversation with the texts of its pictures, an image token for each image.

        Raises:
            RequestError: the chat template has not written one image token for each picture.
        """
        if self._token is None:
            raise RequestError("this model's tokenizer has no image token", param=pictures[0].param)
        texts = [part.template.split(self._token) if isinstance(part, TemplateText) else None for part in parts]
        found = sum(len(pieces) - 1 for pieces in texts if pieces is not None)
        if found != len(pictures):
            raise RequestError(
                f"{pictures[0].param}: the chat template writes {found} images, and the messages have {len(pictures)}; "
                "put images into messages of the user, without allow_control_tokens, or use the model's own template",
                param=pictures[0].param,
            )
        rest = iter(pictures)
        written: list[PromptPart] = []
        for part, pieces in zip(parts, texts, strict=True):
            if pieces is None:
                written.append(part)
                continue
            text = pieces[0] + "".join(self._text(next(rest)) + piece for piece in pieces[1:])
            written.append(TemplateText(text))
        return written

    def expand(self, ids: Int32Array, pictures: Sequence[Picture]) -> Int32Array:
        """Return int32 token ids with as many image tokens for each image as it has positions.

        Args:
            ids: int32, with one image token for each image.
        """
        counts = np.array([image.count for picture in pictures for image in picture.images])
        repeats = np.ones(len(ids), np.int64)
        repeats[ids == self._id] = counts
        expanded: Int32Array = np.repeat(ids, repeats)
        return expanded

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
