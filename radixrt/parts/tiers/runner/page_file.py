"""`PageFile`: the pages of one rank on disk. Imports no torch."""

from __future__ import annotations

import errno
import mmap
import os
import struct

import numpy as np
import numpy.typing as npt
import xxhash

from radixrt.parts.tiers.settings import PAGE_HEADER_BYTES, page_stride

MAGIC = b"RADIXKV1"
_HEADER = struct.Struct("<8s16s16s16sQ")
"""Magic, layout, key, checksum, bytes of the page."""
FREE_SHARE, FREE_BYTES = 0.05, 2**30
"""Space of the file system that stays free: a share, at most some bytes."""


class PageError(Exception):
    """A page on disk is not the expected one; says why."""


class PageFile:
    """A file of numbered pages, of this user alone, each with a header. The file is opened when it is first needed.

    A page is verified when it is read: its header has the layout, key, length and checksum. So nothing is synced to
    disk, a torn write or a page of another model is found, and no table of the file is trusted.

    Args:
        path: of the file. Its folder exists.
        layout: 16 bytes that differ between models, and between ranks that hold other heads or layers of a model.

    Attributes:
        page: uint8 [page_bytes], the page to write, or the page that was read.
    """

    def __init__(self, path: str, page_bytes: int, layout: bytes) -> None:
        self._path = path
        self._layout = layout
        self._fd: int | None = None
        self._block = memoryview(mmap.mmap(-1, PAGE_HEADER_BYTES + page_bytes))
        self.page: npt.NDArray[np.uint8] = np.frombuffer(self._block, np.uint8, offset=PAGE_HEADER_BYTES)
        self._stride = page_stride(page_bytes)

    def _open(self) -> int:
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        return self._fd

    def write(self, number: int, key: bytes) -> None:
        """Write `page` and its key.

        Raises:
            OSError: the disk fails, or the file system has little free space (ENOSPC).
        """
        fd = self._open()
        found = os.fstatvfs(fd)
        floor = min(FREE_SHARE * found.f_blocks * found.f_frsize, FREE_BYTES)
        if found.f_bavail * found.f_frsize < floor + len(self._block):
            raise OSError(errno.ENOSPC, f"less than {floor / 2**30:.2f} GiB would be free", self._path)
        _HEADER.pack_into(self._block, 0, MAGIC, self._layout, key, self._checksum(), len(self.page))
        done, start = 0, number * self._stride
        while done < len(self._block):
            done += os.pwrite(fd, self._block[done:], start + done)

    def read(self, number: int, key: bytes) -> None:
        """Read a page into `page`, and verify the page.

        Raises:
            PageError: the page has another key, or is damaged.
            OSError: the disk fails.
        """
        fd, done, start = self._open(), 0, number * self._stride
        while done < len(self._block):
            count = os.preadv(fd, [self._block[done:]], start + done)
            if not count:
                raise PageError("the file is too short")
            done += count
        magic, layout, found, checksum, size = _HEADER.unpack_from(self._block)
        if (magic, layout, size) != (MAGIC, self._layout, len(self.page)):
            raise PageError("its header is damaged, or of another model")
        if found != key:
            raise PageError("it holds other tokens")
        if checksum != self._checksum():
            raise PageError("its checksum is wrong")

    def _checksum(self) -> bytes:
        """Return the checksum of `page`. xxhash releases the interpreter's lock."""
        return xxhash.xxh3_128_digest(self._block[PAGE_HEADER_BYTES:])

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
