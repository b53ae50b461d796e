"""`decode`: a picture as RGB pixels. The result depends on the bytes of the file alone: palettes, 16 bits, CMYK,
transparency and orientation are converted here, before anything is hashed or resized."""

from __future__ import annotations

import functools
import io
import warnings
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from radixrt.errors import RequestError
from radixrt.extras import install_command
from radixrt.vision.header import Header
from radixrt.vision.limits import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

# `Transpose` of Pillow by the orientation of EXIF.
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}


@functools.cache
def pillow() -> ModuleType:
    """Return the module PIL.Image.

    Raises:
        RequestError: Pillow is not installed (status 501).
    """
    try:
        import PIL.Image
        import PIL.ImageFile
    except ImportError:
        raise RequestError(
            f"images need Pillow on the server: {install_command('vision')}", code="images_not_installed", status=501
        ) from None
    PIL.ImageFile.LOAD_TRUNCATED_IMAGES = False
    return PIL.Image


def decode(data: bytes, header: Header) -> Image:
    """Decode a picture to an upright RGB image.

    Args:
        header: of the same bytes; its size is within the limits.

    Raises:
        ImageError: the picture is damaged.
    """
    image_module = pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about damaged metadata, which is not read
            image: Image = image_module.open(io.BytesIO(data), formats=(header.format,))
            if image.size != (header.width, header.height):
                raise ImageError("the image's header contradicts itself: it names two sizes")
            if getattr(image, "is_animated", False) and image.format != "MPO":
                raise ImageError("the image is animated; send the frames that matter as images of their own")
            image.load()
            image = to_rgb(image)
    except ImageError:
        raise
    except MemoryError:
        raise
    except Exception:  # a decoder can fail in any way on damaged data, and its words may hold addresses
        raise ImageError(f"the image is damaged: it cannot be decoded as {header.format}") from None
    turn = _TURNS.get(header.orientation)
    return image if turn is None else image.transpose(image_module.Transpose(turn))


def to_rgb(image: Image) -> Image:
    """Convert a loaded image of any mode to RGB, with transparent pixels over white and 16 bits cut to the high 8."""
    image_module = pillow()
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image)
        if image.mode == "F":
            raise ImageError("the image has floating point pixels; send 8 or 16 bits")
        levels = (values.astype(np.int64).clip(0, 65_535) >> 8).astype(np.uint8)
        transparent = image.info.get("transparency")
        if isinstance(transparent, int):
            levels[values == transparent] = 255
        return image_module.fromarray(levels, "L").convert("RGB")  # type: ignore[no-any-return]
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        colors = image.convert("RGBA")
        white = image_module.new("RGBA", colors.size, (255, 255, 255))
        return image_module.alpha_composite(white, colors).convert("RGB")  # type: ignore[no-any-return]
    return image.convert("RGB")
