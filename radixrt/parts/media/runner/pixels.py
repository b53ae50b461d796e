"""`PixelReader`: brings the pixels of images to the device."""

from __future__ import annotations

import io

import torch

from radixrt.forward_batch.upload import PinnedRing
from radixrt.messages.sections import EncodePiece
from radixrt.runner.step_result import InputLostError

BUFFERS = 2
"""Page-locked buffers: while one is copied, the other is filled."""


class PixelReader:
    """Reads pixels from the files, or from the steps, that the scheduler names.

    On CUDA the pixels are read into page-locked memory and copied on a stream of their own. So the host waits for
    earlier copies at most, never for the kernels of earlier steps.

    Args:
        largest: bytes of the largest image.
    """

    def __init__(self, device: torch.device, largest: int) -> None:
        self._device = device
        self._ring: PinnedRing | None = None
        if device.type == "cuda":
            self._ring = PinnedRing(BUFFERS, largest)
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def read(self, piece: EncodePiece) -> torch.Tensor:
        """Return uint8 [height, width, 3] on the device.

        Raises:
            InputLostError: the file cannot be read, or has fewer bytes.
        """
        shape = piece.height, piece.width, 3
        size = piece.height * piece.width * 3
        if self._ring is None:
            return _filled(torch.empty(size, dtype=torch.uint8), piece).view(shape)
        host = _filled(self._ring.take(size), piece)
        with torch.cuda.stream(self._stream):
            pixels = host.to(self._device, non_blocking=True)
            self._ring.enqueued()
        compute = torch.cuda.current_stream(self._device)
        compute.wait_stream(self._stream)
        pixels.record_stream(compute)
        return pixels.view(shape)


def _filled(target: torch.Tensor, piece: EncodePiece) -> torch.Tensor:
    """Return a uint8 tensor in host memory that was filled with the pixels of an image."""
    try:
        with io.BytesIO(piece.data) if piece.data else open(piece.pixels, "rb", buffering=0) as file:
            count = file.readinto(target.numpy().data)
    except OSError as error:
        raise InputLostError(piece.key, f"the pixels of an image cannot be read: {error.strerror}") from error
    if count != target.numel():
        raise InputLostError(piece.key, f"{count} of {target.numel()} bytes of the pixels of an image are there")
    return target
