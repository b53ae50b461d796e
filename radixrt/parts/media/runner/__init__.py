"""Runner end of images."""

from radixrt.parts.media.runner.image_reader import ImageReader

__all__ = ["ImageReader"]
