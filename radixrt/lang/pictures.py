"""`Picture`: a picture of a program, read and checked once, and shared by all prompts that show it."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import get_args

from radixrt.errors import RequestError, shown
from radixrt.messages.parts import Detail, ImageInput
from radixrt.vision.encode import picture_bytes
from radixrt.vision.header import read_header
from radixrt.vision.limits import ImageError, ImageLimits, refusal

PARAM = "image"
"""Name of the picture in errors: the argument of `rt.image`."""

DIGEST_CHARS = 32
"""Hexadecimal digits of the digest in texts: 128 bits, which no two pictures have in common."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture in an encoded file.

    Attributes:
        image: the file, as requests to an engine carry it.
        format: format of the file: "PNG", "JPEG" or "WEBP".
        width, height: size of the upright picture in pixels, before the model's processor changes it.
        digest: SHA-256 of the file and of the detail, in hexadecimal digits.
    """

    image: ImageInput = field(repr=False)
    format: str
    width: int
    height: int
    digest: str

    @property
    def label(self) -> str:
        """Text that stands for the picture in texts of prompts. Equal labels mean equal pictures."""
        return label_of(self.width, self.height, self.digest)

    @cached_property
    def data_url(self) -> str:
        """The file as a data: URL."""
        return f"data:image/{self.format.lower()};base64,{base64.b64encode(self.image.data).decode()}"

    @property
    def content_part(self) -> dict[str, object]:
        """The picture as a part of a message in OpenAI's API."""
        return {"type": "image_url", "image_url": {"url": self.data_url, "detail": self.image.detail}}


def label_of(width: int, height: int, digest: str) -> str:
    """Return the text that stands for a picture.

    Args:
        digest: in hexadecimal digits, at least DIGEST_CHARS.
    """
    return f"[image {width} x {height} {digest[:DIGEST_CHARS]}]"


def read_picture(picture: object, detail: str) -> Picture:
    """Read a picture and check everything that its header shows.

    Args:
        picture: see `radixrt.vision.encode.picture_bytes`.
        detail: "auto", "low" or "high".

    Raises:
        RequestError: the picture cannot be read, is no PNG, JPEG or WEBP file, is animated or exceeds a limit, or the
            detail is unknown; names the argument.
    """
    known: Detail | None = next((each for each in get_args(Detail) if each == detail), None)
    if known is None:
        raise RequestError(f"detail must be {', '.join(get_args(Detail))}, not {shown(detail)}", param="detail")
    data = picture_bytes(picture, PARAM)
    ImageLimits().check([(PARAM, len(data))])
    try:
        header = read_header(data)
    except ImageError as error:
        raise refusal(error, PARAM) from None
    height, width = header.size
    digest = hashlib.sha256(data)
    digest.update(known.encode())
    return Picture(ImageInput(data, known, PARAM), header.format, width, height, digest.hexdigest())
