"""`Uploader`: copies a step's numbers to the device in one asynchronous copy."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

ALIGNMENT = 16
"""Alignment of the arrays of a packed copy, in bytes, so that kernels can use wide loads."""

RING = 8
"""Number of host buffers. A step takes at most two buffers, and two steps are in flight, so the copy from the next
buffer has ended long before."""


class PinnedRing:
    """Ring of page-locked host buffers of one size, which all grow together: the allocation of page-locked memory waits
    for the device, so there should be few, and none after the largest step at the start.

    Args:
        count: number of buffers.
        size: bytes of each buffer at first.
    """

    def __init__(self, count: int = RING, size: int = 0) -> None:
        self._count = count
        self._next = 0
        self._resize(size)

    def _resize(self, size: int) -> None:
        # Torch keeps memory that a copy in flight reads.
        self._memory = torch.empty(self._count, size, dtype=torch.uint8, pin_memory=size > 0)
        self._copied: list[torch.cuda.Event | None] = [None] * self._count

    def take(self, size: int) -> torch.Tensor:
        """Return uint8 [size] that no copy is reading. After enqueuing its copy, call `enqueued`."""
        self._next = (self._next + 1) % self._count
        if self._memory.shape[1] < size:
            self._resize(max(2 * size, 4096))
        copied = self._copied[self._next]
        if copied is not None:
            copied.synchronize()
        return self._memory[self._next, :size]

    def enqueued(self) -> None:
        """Record that the copy from the last buffer is in the current stream."""
        event = self._copied[self._next]
        if event is None:
            event = self._copied[self._next] = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()


class Uploader:
    """Copies arrays to the device. On the CPU the tensors share the arrays' memory; to CUDA, all arrays of a call are
    copied by a single asynchronous copy.

    Args:
        size: bytes of the largest call, if no step at the start makes it.
    """

    def __init__(self, device: torch.device, size: int = 0) -> None:
        self._device = device
        self._ring = PinnedRing(size=size) if device.type == "cuda" else None

    def upload(self, arrays: Sequence[npt.NDArray[Any]]) -> list[torch.Tensor]:
        """Return a tensor on the device for each array, of the same shape and dtype."""
        if self._ring is None:
            return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        offsets, size = layout(arrays)
        packed = torch.empty(size, dtype=torch.uint8, device=self._device)
        self.upload_into(packed, arrays, offsets)
        return [view(packed, offset, array) for offset, array in zip(offsets, arrays, strict=True)]

    def upload_into(self, target: torch.Tensor, arrays: Sequence[npt.NDArray[Any]], offsets: Sequence[int]) -> None:
        """Copy the arrays to their byte offsets in a uint8 tensor on the CUDA device; the content of gaps is
        undefined."""
        assert self._ring is not None
        host = self._ring.take(target.numel())
        pack(host, arrays, offsets)
        target.copy_(host, non_blocking=True)
        self._ring.enqueued()


def layout(arrays: Sequence[npt.NDArray[Any]]) -> tuple[list[int], int]:
    """Return the byte offset of each array in a packed buffer, and the size of that buffer."""
    offsets, size = [], 0
    for array in arrays:
        offsets.append(size)
        size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, size


def pack(target: torch.Tensor, arrays: Sequence[npt.NDArray[Any]], offsets: Sequence[int]) -> None:
    """Write the arrays at their byte offsets into a uint8 tensor in host memory; gaps keep their content."""
    packed = target.numpy()
    for array, offset in zip(arrays, offsets, strict=True):
        packed[offset : offset + array.nbytes].view(array.dtype)[:] = array.reshape(-1)


def view(packed: torch.Tensor, offset: int, like: npt.NDArray[Any]) -> torch.Tensor:
    """Return the view of a packed uint8 tensor that holds an array of this shape and dtype."""
    return packed[offset : offset + like.nbytes].view(_torch_dtype(like.dtype)).view(like.shape)


@functools.cache
def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
