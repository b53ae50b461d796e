"""Runner end of images."""

from radixrt.parts.media.runner.image_encoder import ImageEncoder

__all__ = ["ImageEncoder"]
