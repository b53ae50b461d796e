"""Limits of images: what is refused before any pixel is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from radixrt.errors import RequestError

MAX_SIDE = 16_384
"""Longest side of a picture as it is sent, in pixels."""

MAX_PIXELS = 40_000_000
"""Most pixels of a picture as it is sent: 120 MB as RGB."""

MAX_ASPECT = 200
"""Longest side over shortest side. A picture of a higher ratio cannot keep it after resizing."""

MAX_REQUEST_PIXELS = 160_000_000
"""Most pixels of all pictures of a request."""


MAX_IMAGE_BYTES = 10 * 1024 * 1024
"""Most bytes of an encoded picture."""

MAX_REQUEST_BYTES = 32 * 1024 * 1024
"""Most bytes of all encoded pictures of a request."""


class ImageError(Exception):
    """A picture cannot be read, or exceeds a limit. The message stands behind the name of the part."""


def refusal(error: ImageError, param: str, code: str = "invalid_image") -> RequestError:
    """Convert to the error of the request.

    Args:
        param: the client's name of the part that holds the picture.
    """
    return RequestError(f"{param}: {error}", param=param, code=code)


@dataclass(frozen=True)
class ImageLimits:
    """Limits of the images of one request, as the engine's options set them.

    Attributes:
        max_images: number of images.
        max_image_bytes: bytes of one encoded image.
        max_request_bytes: bytes of all encoded images.
    """

    max_images: int = 16
    max_image_bytes: int = MAX_IMAGE_BYTES
    max_request_bytes: int = MAX_REQUEST_BYTES

    def check(self, images: Sequence[tuple[str, int]]) -> None:
        """Check the images of a request before they are decoded.

        Args:
            images: the client's name of each image, and its number of bytes.

        Raises:
            RequestError: naming the first image beyond a limit.
        """
        total = 0
        for index, (param, size) in enumerate(images):
            total += size
            if index >= self.max_images:
                raise RequestError(
                    f"{param}: this request has {len(images)} images, and may have {self.max_images} (--max-images)",
                    param=param,
                    code="too_many_images",
                )
            if size > self.max_image_bytes:
                raise RequestError(
                    f"{param}: the image has {size} bytes, and may have {self.max_image_bytes}; send it smaller, or as "
                    "JPEG or WEBP",
                    param=param,
                    code="image_too_large",
                )
            if total > self.max_request_bytes:
                raise RequestError(
                    f"{param}: the images of this request have more than {self.max_request_bytes} bytes together; send "
                    "fewer or smaller ones",
                    param=param,
                    code="images_too_large",
                )


def check_size(width: int, height: int) -> None:
    """Check the sides of a picture in pixels; raises ImageError."""
    if not (width > 0 and height > 0):
        raise ImageError("the image has no pixels")
    if max(width, height) > MAX_SIDE:
        raise ImageError(f"the image is {width} x {height} pixels, and a side may have {MAX_SIDE}; send it smaller")
    if width * height > MAX_PIXELS:
        raise ImageError(
            f"the image is {width} x {height} pixels, and may have {MAX_PIXELS // 1_000_000} million; send it smaller"
        )
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageError(
            f"the image is {width} x {height} pixels, and its long side may be {MAX_ASPECT} times its short one; crop "
            "or divide it"
        )
