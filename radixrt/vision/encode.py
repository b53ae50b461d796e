"""`picture_bytes`: the encoded file of a picture that a Python program has as a path, bytes, an image or an array."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from radixrt.errors import RequestError, shown
from radixrt.vision.decode import decode, pillow, to_rgb
from radixrt.vision.fetch import decode_data_url, is_data_url
from radixrt.vision.header import read_header
from radixrt.vision.limits import MAX_IMAGE_BYTES, ImageError, refusal

if TYPE_CHECKING:
    from PIL.Image import Image


def picture_bytes(picture: object, param: str) -> bytes:
    """Return the bytes of an image file. Images and arrays become PNG files, without loss.

    Args:
        picture: path of a file, bytes of a file, a data: URL, a Pillow image (turned upright as its EXIF data say), or
            a uint8 array [height, width, 3] of RGB.
        param: the caller's name of the picture, for errors.

    Raises:
        RequestError: another type, a file that cannot be read or is too large, an image that cannot be encoded;
            or Pillow is needed and not installed (status 501).
    """
    if isinstance(picture, (bytes, bytearray, memoryview)):
        return bytes(picture)
    if isinstance(picture, str) and is_data_url(picture):
        return decode_data_url(picture, param, MAX_IMAGE_BYTES)
    if isinstance(picture, str) and picture[:8].lower().startswith(("http://", "https://")):
        raise RequestError(f"{param}: URLs are not fetched here; pass the file's path or its bytes", param=param)
    if isinstance(picture, (str, os.PathLike)):
        return _read(Path(os.fspath(picture)), param)
    if isinstance(picture, np.ndarray):
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
            raise RequestError(
                f"{param}: an array must be uint8 [height, width, 3], not {picture.dtype} {list(picture.shape)}",
                param=param,
            )
        return _png(pillow().fromarray(np.ascontiguousarray(picture)))
    if is_pillow(picture):
        return _png(_upright(picture, param))
    raise RequestError(
        f"{param} must be a path, the bytes of a file, a Pillow image or a uint8 array [height, width, 3], not "
        f"{shown(picture)}",
        param=param,
    )


def _read(path: Path, param: str) -> bytes:
    try:
        if path.is_dir():
            raise RequestError(f"{param}: {str(path)!r} is a folder, not a file", param=param)
        if not path.is_file():  # a named pipe would block
            raise RequestError(f"{param}: there is no file {str(path)!r}", param=param)
        if path.stat().st_size > MAX_IMAGE_BYTES:
            raise RequestError(f"{param}: {str(path)!r} has more than {MAX_IMAGE_BYTES} bytes", param=param)
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"{param}: {str(path)!r} cannot be read: {reason}", param=param) from None


def thumbnail(data: bytes, side: int) -> bytes | None:
    """Return a JPEG file of an encoded picture, upright, with sides of at most `side` pixels; None if the picture is
    damaged, or Pillow is not installed."""
    try:
        image = decode(data, read_header(data))
    except (ImageError, RequestError):
        return None
    image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=80)
    return file.getvalue()


def is_pillow(picture: object) -> TypeGuard[Image]:
    """Whether this is a Pillow image; Pillow is not imported for other objects."""
    return any(kind.__module__ == "PIL.Image" and kind.__name__ == "Image" for kind in type(picture).__mro__)


def _upright(image: Image, param: str) -> Image:
    pillow()
    from PIL import ImageOps

    try:
        return to_rgb(ImageOps.exif_transpose(image))
    except ImageError as error:
        raise refusal(error, param) from None
    except Exception:  # Pillow reads the pixels of an opened file here, and a decoder can fail in any way
        raise refusal(ImageError("the Pillow image cannot be read"), param) from None


def _png(image: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)  # the file is decoded at once, so that its size matters little
    return file.getvalue()
