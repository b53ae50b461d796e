"""System calls that Linux alone has, with replacements on other systems."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading

ZEROS = bytes(1 << 20)


class Wake:
    """A descriptor that becomes readable when `set` was called, to wake up a thread that waits for several descriptors.
    Any thread may call `set`."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        for descriptor in (self._reader, self._writer):
            os.set_blocking(descriptor, False)

    def fileno(self) -> int:
        return self._reader

    def set(self) -> None:
        """Make the descriptor readable until `clear` is called."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full, and so readable
            os.write(self._writer, b"\0")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):  # nobody has called `set`
            while os.read(self._reader, 4096):
                pass

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


def num_cores() -> int:
    """Return the number of cores that this process may be scheduled on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def allocate(descriptor: int, size: int) -> None:
    """Make a file at least so many bytes long, with space for all of them: writing to a mapped page without space would
    end the process by SIGBUS.

    Raises:
        OSError: no space is left.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    at = os.fstat(descriptor).st_size
    while at < size:
        at += os.pwrite(descriptor, ZEROS[: size - at], at)


def exit_descriptor(process: subprocess.Popen[bytes]) -> int:
    """Return a descriptor that becomes readable when a child of this process has ended. Close it after that."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(process.pid)
    reader, writer = os.pipe()

    def wait() -> None:
        process.wait()
        os.close(writer)

    threading.Thread(target=wait, name="radixrt-exit", daemon=True).start()
    return reader
