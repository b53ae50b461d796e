"""`read_image`: the picture of a content part, from its URL or its base64 form."""

from __future__ import annotations

from typing import get_args

from radixrt.chat.types import ContentPart, ImageUrl
from radixrt.errors import RequestError, shown
from radixrt.messages.parts import Detail, ImageInput
from radixrt.vision.fetch import decode_base64, decode_data_url, is_data_url
from radixrt.vision.limits import MAX_IMAGE_BYTES


class ImagePart(ContentPart, kw_only=True):
    """Content part whose picture has been read already, under the client's name for it."""

    image: ImageInput


def image_part(image: ImageInput) -> ImagePart:
    """Return the content part of a picture."""
    return ImagePart(type="image_url", image=image)


def read_image(url: str | None, detail: str | None, param: str, field: str = "url") -> ImageInput:
    """Read the picture of a URL. A picture that is not in the URL itself has to be fetched.

    Args:
        param: the client's name of the part.
        field: name of the URL in errors, behind `param`.

    Raises:
        RequestError: naming the part, or the field in it.
    """
    if url is None:
        raise RequestError(f"{param}.{field} is required", param=f"{param}.{field}", code="missing_field")
    checked = _detail(detail, param)
    if is_data_url(url):
        return ImageInput(decode_data_url(url, param, MAX_IMAGE_BYTES), checked, param)
    return ImageInput(b"", checked, param, url)


def read_base64_image(data: str, detail: str | None, param: str) -> ImageInput:
    """Read a picture in base64; raises RequestError naming the part, or the detail in it."""
    checked = _detail(detail, param)
    return ImageInput(decode_base64(data, param, MAX_IMAGE_BYTES), checked, param)


def read_image_file(data: bytes, detail: str | None, param: str) -> ImageInput:
    """Return the picture of a file that was sent as it is; raises RequestError naming the detail."""
    return ImageInput(data, _detail(detail, param), param)


def image_of(part: ContentPart, param: str) -> ImageInput | None:
    """Return the picture of a content part of a chat; None for a part of another type.

    Raises:
        RequestError: naming the field.
    """
    if isinstance(part, ImagePart):
        return part.image
    if part.type != "image_url":
        return None
    given = part.image_url
    if isinstance(given, str):
        given = ImageUrl(url=given)
    if given is None:
        raise RequestError(f"{param}.image_url is required", param=f"{param}.image_url", code="missing_field")
    return read_image(given.url, given.detail, f"{param}.image_url")


def instead_of(kind: str, own: str) -> str | None:
    """Return what to send in place of a part that another API, or another model, has; None for other parts.

    Args:
        kind: type of the part.
        own: type of the parts that are pictures where it was sent.
    """
    if kind in ("image", "image_url", "input_image"):
        return f"here a picture is of type {own}"
    return f"send frames of it as pictures, of type {own}" if kind in ("video", "video_url", "input_video") else None


def _detail(given: str | None, param: str) -> Detail:
    if given is None or given == "original":
        return "auto"
    found: Detail | None = next((each for each in get_args(Detail) if each == given), None)
    if found is None:
        raise RequestError(
            f"{param}.detail must be {', '.join(get_args(Detail))}, not {shown(given)}", param=f"{param}.detail"
        )
    return found
