"""`MemoryFile`: a file in memory that other processes of this user open by a path, for what they map together.

A mapped file on a disk is not free to write: the kernel writes its pages back every few seconds and protects them for
it, and the first write to each page afterwards waits for the file system's journal, at times for tens of milliseconds.
A file in memory is never written back. It needs no room in /dev/shm, which containers keep small, and leaves nothing
behind: the kernel frees it with the last process that maps it.
"""

from __future__ import annotations

import contextlib
import os


class MemoryFile:
    """A file in memory, and a symbolic link to it. Where there can be none, on an old kernel or without /proc, nothing
    is at the path, and who creates a file there gets an ordinary one.

    Args:
        path: of the link; nothing is there yet. It leads to the file while this process keeps it.
    """

    def __init__(self, path: str) -> None:
        self._fd: int | None = None
        with contextlib.suppress(OSError, AttributeError):  # without the call, or without /proc
            self._fd = os.memfd_create(os.path.basename(path), os.MFD_CLOEXEC)
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
        """Let nobody else open it; what is mapped stays. A second call does nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
