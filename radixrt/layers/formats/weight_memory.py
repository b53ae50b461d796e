"""`WeightMemory`: memory of the weights that compiled CPU kernels read, in large pages where the system has them.

A step reads all weights once, so that each page of 4 KiB costs a look-up of its address, and the processor does not
fetch ahead beyond a page. Pages of 2 MiB need one contiguous region: weights lie side by side in large chunks.
"""

from __future__ import annotations

import contextlib
import math
import mmap

import torch

CHUNK = 32 << 20
"""Bytes of a chunk. Memory that no weight takes has no pages, but for the rest of the last large page of a chunk."""
LINE = 64
"""Bytes of a cache line, to which weights are aligned."""


class WeightMemory:
    """Memory for the weights of one model. A chunk is freed with the last tensor in it."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a contiguous tensor, aligned to cache lines, whose values are arbitrary."""
        size = math.prod(shape) * dtype.itemsize
        whole = -(-size // LINE) * LINE
        if whole > len(self._chunk):
            chunk = _new_chunk(max(CHUNK, whole))
            if whole >= CHUNK:  # the rest of the present chunk is kept for smaller weights
                return chunk[:size].view(dtype).view(shape)
            self._chunk = chunk
        taken, self._chunk = self._chunk[:size], self._chunk[whole:]
        return taken.view(dtype).view(shape)


def _new_chunk(size: int) -> torch.Tensor:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):  # systems without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
