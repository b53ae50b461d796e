"""`MemoryFile`: a file in memory that processes of the same user open by a path, for shared mappings.

Writing to a mapped file on a disk may block: the kernel writes the pages back every few seconds and write-protects them
for that time, and the first write to each page afterwards waits for the file system's journal, at times for tens of
milliseconds. A file in memory is never written back. The file does not use /dev/shm, which is small in containers, and
nothing has to be removed: the kernel frees the file when the last process has unmapped it.
"""

from __future__ import annotations

import contextlib
import os


class MemoryFile:
    """A file in memory, and a symbolic link to the file. On an old kernel, or without /proc, no link is created, and a
    process that creates a file at the path gets an ordinary file.

    Args:
        path: path of the link, which must not exist yet. The link is valid until `close`.
        size: size of the file in bytes. Memory is taken only for pages that are written.
    """

    def __init__(self, path: str, size: int = 0) -> None:
        self._fd: int | None = None
        with contextlib.suppress(OSError, AttributeError):  # without the call, or without /proc
            self._fd = os.memfd_create(os.path.basename(path), os.MFD_CLOEXEC)
            os.ftruncate(self._fd, size)
            os.symlink(f"/proc/{os.getpid()}/fd/{self._fd}", path)
            if os.path.exists(path):
                return
            os.unlink(path)
        self.close()

    @property
    def exists(self) -> bool:
        """False if the path is free for an ordinary file."""
        return self._fd is not None

    def close(self) -> None:
        """Close the file, so that no process can open it through the link any longer. Existing mappings stay valid.
        Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
