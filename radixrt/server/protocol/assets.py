"""Assets of /v1/systemone: pictures that stand in texts by names which the client has chosen."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping

import msgspec

from radixrt.chat.images import read_base64_image, read_image_file
from radixrt.errors import RequestError, shown
from radixrt.messages.parts import ImageInput

MAX_ASSETS = 64
MAX_NAME_CHARS = 256
SHORT_CHARS = 256
"""Strings of at most so many characters are searched by an expression; see `Assets._occurs`."""

MAX_USES = 10_000
"""Most occurrences of the names of all assets in a request."""

Part = dict[str, str]
"""Part of a message's content: {"type": "text", "text"} or {"type": "image"}."""

_LITERAL = re.compile(r'("(?:[^"\\]|\\.)*+")(\s*+:)?')
"""A string of a JSON text, and the colon behind the name of a member."""


class Asset(msgspec.Struct, kw_only=True):
    """A picture: a PNG, JPEG or WEBP file in base64 (`data_base64`), or in a part of the form (`part`, its name).

    The format is read from the file. `detail` is radixrt's own.
    """

    type: str | None = None
    format: str | None = None
    data_base64: str | None = None
    part: str | None = None
    detail: str | None = None


class Assets:
    """Pictures of a request. Each occurrence of an asset's name in a text becomes the picture.

    While a prompt is put together, a *mark* stands for a picture: a text that no client can guess.

    Args:
        images: pictures by the names that stand for them.
    """

    def __init__(self, images: Mapping[str, ImageInput]) -> None:
        secret = secrets.token_hex(8)
        self._names = sorted(images, key=len, reverse=True)
        self._marks = {name: f"<{secret}:{i}>" for i, name in enumerate(self._names)}
        self._marked = {mark: images[name] for name, mark in self._marks.items()}
        self._separator = re.compile(f"(<{secret}:[0-9]+>)")
        self._any_name = re.compile("|".join(map(re.escape, self._names)))
        self._uses = dict.fromkeys(images, 0)

    def mark(self, text: str) -> str:
        """Replace names of assets by marks; where several names match, the longest one counts.

        Raises:
            RequestError: the request uses names of assets too often.
        """
        return self._mark(text, str)

    def mark_json(self, text: str) -> str:
        """Replace names of assets by marks in the strings of a JSON text, but not in the names of members.

        Raises:
            RequestError: as of `mark`.
        """

        def replaced(found: re.Match[str]) -> str:
            literal = found[1]
            if found[2] is not None:
                return found[0]
            value = json.loads(literal) if "\\" in literal else literal[1:-1]
            return f'"{self._mark(value, _inside_quotes)}"' if self._occurs(value) else found[0]

        return _LITERAL.sub(replaced, text)

    def split(self, text: str) -> tuple[str | list[Part], list[ImageInput]]:
        """Return a text with marks as parts, and the pictures among them in order. A text without pictures is returned
        as it is."""
        parts: list[Part] = []
        images: list[ImageInput] = []
        for piece in self._separator.split(text):
            image = self._marked.get(piece)
            if image is not None:
                parts.append({"type": "image"})
                images.append(image)
            elif piece:
                parts.append({"type": "text", "text": piece})
        return parts if images else text, images

    def check_used(self) -> None:
        """Raise RequestError if an asset's name occurs nowhere, so that nobody would look at its picture."""
        for name, uses in self._uses.items():
            if not uses:
                place = f"assets.{name}"
                raise RequestError(
                    f"{place} is not used: {shown(name)} occurs neither in the state nor in the instructions and "
                    "descriptions of a question",
                    param=place,
                )

    def _occurs(self, text: str) -> bool:
        """Return whether a name occurs. The expression is faster for the many short strings that a JSON text may have,
        but keeps the interpreter's lock, and takes time for each name at each character of a long one."""
        if len(text) <= SHORT_CHARS:
            return self._any_name.search(text) is not None
        return any(name in text for name in self._names)

    def _mark(self, text: str, written: Callable[[str], str], start: int = 0) -> str:
        """Replace names from number `start` on by marks; `written` writes the text between them."""
        for i, name in enumerate(self._names[start:], start + 1):
            if name in text:
                self._uses[name] += text.count(name)
                if sum(self._uses.values()) > MAX_USES:
                    place = f"assets.{name}"
                    raise RequestError(f"{place}: names of assets may occur {MAX_USES} times in a request", param=place)
                return self._marks[name].join(self._mark(piece, written, i) for piece in text.split(name))
        return written(text)


def read_assets(given: Mapping[str, Asset] | None, files: Mapping[str, bytes]) -> Assets | None:
    """Return the pictures of a request; None without any.

    Args:
        files: parts of the form that the request is, by name; none if it is JSON.

    Raises:
        RequestError: naming the asset.
    """
    if given is not None and not 1 <= len(given) <= MAX_ASSETS:
        raise RequestError(f"assets must hold 1 to {MAX_ASSETS} pictures; leave it out for none", param="assets")
    left = dict(files)
    images = {name: _image(name, asset, files, left) for name, asset in (given or {}).items()}
    if left:
        raise RequestError(f"the part {shown(min(left))} of the form belongs to no asset", param="assets")
    return Assets(images) if images else None


def _image(name: str, asset: Asset, files: Mapping[str, bytes], left: dict[str, bytes]) -> ImageInput:
    """Read an asset; a part that it names is taken out of `left`."""
    place = f"assets.{name}"
    if not (name.strip() and len(name) <= MAX_NAME_CHARS):
        raise RequestError(f"assets: the name of an asset must have 1 to {MAX_NAME_CHARS} characters", param="assets")
    if asset.type not in (None, "image"):
        raise RequestError(f"{place}.type must be image, not {shown(asset.type)}", param=f"{place}.type")
    if asset.part is None:
        if asset.data_base64 is None:
            field = f"{place}.data_base64"
            raise RequestError(f"{field} is required", param=field, code="missing_field")
        return read_base64_image(asset.data_base64, asset.detail, place)
    field = f"{place}.part"
    if asset.part not in files:
        raise RequestError(
            f"{field} is {shown(asset.part)}, which is no part of the request; send it as part of a form "
            "(multipart/form-data), or send data_base64",
            param=field,
        )
    if asset.part not in left:
        raise RequestError(f"{field} is {shown(asset.part)}, which another asset has already", param=field)
    return read_image_file(left.pop(asset.part), asset.detail, place)


def _inside_quotes(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
