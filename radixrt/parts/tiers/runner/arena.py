"""`Arena`: memory of the host for keys and values, in a file that outlives this process. `Pinning`: its registration
with CUDA, so that the device copies without the host."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import queue
import threading
from collections.abc import Callable, Iterator

import torch

logger = logging.getLogger(__name__)

CHUNK_BYTES = 64 * 2**20
"""Bytes that are registered at once. CUDA calls of other threads wait for a registration, here for about 10 ms."""
COPY_BYTES = 16 * 2**20
"""Longest copy on a link, 0.3 ms on PCIe 5.0. Copies of one direction are made one after another: the inputs of a step
wait for a copy that has begun."""
MADV_POPULATE_WRITE = 23


class Arena:
    """One row of bytes for each place, see `radixrt.messages.kv_moves`.

    Args:
        path: a file of this user, which is enlarged if it is too short. Its bytes are kept. The file is not created: an
            arena without the bytes of an earlier process would give wrong keys and values.

    Attributes:
        memory: uint8 [num_rows * row_bytes].
        rows: uint8 [num_rows, row_bytes], the same memory.

    Raises:
        OSError: the file does not exist or cannot be enlarged.
        ValueError: a row has no bytes.
    """

    def __init__(self, path: str, num_rows: int, row_bytes: int) -> None:
        size = num_rows * row_bytes
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if found.st_nlink:  # on a file system, where writing to a page without a block may kill the process
                os.posix_fallocate(fd, 0, size)
            elif found.st_size < size:
                os.ftruncate(fd, size)
            self.memory = torch.frombuffer(mmap.mmap(fd, size), dtype=torch.uint8)
        finally:
            os.close(fd)
        self.rows = self.memory.view(num_rows, row_bytes)


class Pinning:
    """Registers chunks of an arena with CUDA in a thread, each when it is first needed. Registration commits the
    chunk's memory, and takes about 0.1 s.

    Args:
        register, unregister: called with the address and size, or the address, of a chunk; by default CUDA's functions.
            Raise RuntimeError if CUDA refuses.
    """

    def __init__(
        self,
        memory: torch.Tensor,
        device: torch.device,
        register: Callable[[int, int], None] | None = None,
        unregister: Callable[[int], None] | None = None,
    ) -> None:
        self._address, self._size = memory.data_ptr(), memory.nbytes
        self._device = torch.cuda.current_device() if device.type == "cuda" else None
        self._register = register or _register
        self._unregister = unregister or _unregister
        self._asked: set[int] = set()
        self._results: dict[int, bool] = {}  # by chunk: True if it is registered
        self._chunks: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="radixrt-pinning", daemon=True)
        self._thread.start()

    def is_ready(self, first: int, last: int) -> bool:
        """Return True if bytes first..last - 1 are registered; otherwise have them registered. Never waits.

        Raises:
            OSError: CUDA refuses to register them.
        """
        chunks = range(first // CHUNK_BYTES, (last - 1) // CHUNK_BYTES + 1)
        # The next chunk too: most likely it is needed soon, because places are handed out in ascending order.
        for chunk in (*chunks, chunks.stop):
            if chunk not in self._asked and chunk * CHUNK_BYTES < self._size:
                self._asked.add(chunk)
                self._chunks.put(chunk)
        if any(self._results.get(chunk) is False for chunk in chunks):
            raise OSError("CUDA cannot register the memory of the host tier; see the warning about it")
        return all(chunk in self._results for chunk in chunks)

    def _run(self) -> None:
        while (chunk := self._chunks.get()) is not None:
            start = chunk * CHUNK_BYTES
            address, size = self._address + start, min(CHUNK_BYTES, self._size - start)
            # Commit the pages before, because CUDA holds its lock while it does so.
            _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), MADV_POPULATE_WRITE)
            try:
                if self._device is not None:
                    torch.cuda.set_device(self._device)
                self._register(address, size)
                self._results[chunk] = True
            except RuntimeError as error:
                logger.warning("CUDA cannot register %d MiB of the host tier: %s", size >> 20, error)
                self._results[chunk] = False

    def close(self) -> None:
        """End the thread and unregister the memory, which no copy may use any more."""
        self._chunks.put(None)
        self._thread.join()
        for chunk, registered in self._results.items():
            if registered:
                self._unregister(self._address + chunk * CHUNK_BYTES)
        self._results.clear()


def chunk_slices(first: int, last: int) -> Iterator[slice]:
    """Yield the parts of bytes first..last - 1 that are each in one chunk, and at most COPY_BYTES: CUDA refuses a copy
    of memory that was registered by several calls."""
    while first < last:
        end = min(last, (first // CHUNK_BYTES + 1) * CHUNK_BYTES, first + COPY_BYTES)
        yield slice(first, end)
        first = end


def _register(address: int, size: int) -> None:
    torch.cuda.check_error(int(torch.cuda.cudart().cudaHostRegister(address, size, 0)))  # type: ignore[no-untyped-call]


def _unregister(address: int) -> None:
    torch.cuda.check_error(int(torch.cuda.cudart().cudaHostUnregister(address)))  # type: ignore[no-untyped-call]


_libc = ctypes.CDLL(None)
