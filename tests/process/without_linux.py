"""Takes from a Python process what Linux alone has. `test_without_linux.py` copies the file as sitecustomize.py, which
each process of the engine imports before anything else.

Calls into the C library and into other packages' compiled code stay: this is no other system, but Python code that uses
the interfaces of Linux fails as it would there. psutil, which knows several systems, may read /proc.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl
import io
import mmap
import os
import select
import selectors  # noqa: F401 (keeps epoll for itself, in the place of kqueue)
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

CALLS: dict[Any, tuple[str, ...]] = {
    os: (
        "copy_file_range", "eventfd", "eventfd_read", "eventfd_write", "memfd_create", "pidfd_open", "pipe2",
        "posix_fadvise", "posix_fallocate", "sched_getaffinity", "sched_setaffinity", "sched_setscheduler", "setns",
        "splice", "unshare", "waitid",
    ),
    select: ("epoll",),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo"),
}  # fmt: skip
CONSTANTS: dict[Any, tuple[str, ...]] = {
    fcntl: ("F_",),
    mmap: ("MADV_HUGEPAGE", "MADV_NOHUGEPAGE", "MADV_POPULATE"),
    os: ("EFD_", "MFD_", "O_DIRECT", "O_TMPFILE", "P_PIDFD", "SCHED_"),
    socket: ("MSG_NOSIGNAL", "SOCK_SEQPACKET", "SO_PEERCRED"),
    time: ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC_RAW"),
}
"""Beginnings of names."""
PORTABLE = {"F_DUPFD", "F_DUPFD_CLOEXEC", "F_GETFD", "F_GETFL", "F_SETFD", "F_SETFL", "F_GETLK", "F_SETLK", "F_SETLKW"}
PORTABLE |= {"F_RDLCK", "F_WRLCK", "F_UNLCK", "O_DIRECTORY"}
FOLDERS = ("/proc", "/dev/shm", "/sys")
OF_PATHS = ("access", "listdir", "lstat", "open", "readlink", "scandir", "stat")


def hide() -> None:
    """Remove calls and constants, and let paths of Linux's folders be missing."""
    for module, names in CALLS.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for module, beginnings in CONSTANTS.items():
        for name in [name for name in dir(module) if name.startswith(beginnings) and name not in PORTABLE]:
            delattr(module, name)
    builtins.open = io.open = _without_folders(io.open)
    for name in OF_PATHS:
        setattr(os, name, _without_folders(getattr(os, name)))
    find = ctypes.CDLL.__getattr__

    def find_portable(library: ctypes.CDLL, name: str) -> Any:
        if name == "prctl":
            raise AttributeError(name)
        return find(library, name)

    ctypes.CDLL.__getattr__ = find_portable  # type: ignore[method-assign]


def _without_folders(call: Callable[..., Any]) -> Callable[..., Any]:
    def checked(path: Any = ".", *rest: Any, **options: Any) -> Any:
        if isinstance(path, (str, os.PathLike)):
            text = os.fspath(path)
            hidden = isinstance(text, str) and any(text == each or text.startswith(f"{each}/") for each in FOLDERS)
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if hidden and not caller.startswith("psutil"):
                raise FileNotFoundError(errno.ENOENT, "hidden by tests/process/without_linux.py", text)
        return call(path, *rest, **options)

    return checked


def note() -> None:
    """Leave the command of this process in a folder, so that the test knows which processes ran."""
    path = f"{os.environ['RADIXRT_TEST_PROCESSES']}/{os.getpid()}"
    with open(path, "w", encoding="utf-8") as file:
        file.write(" ".join(sys.orig_argv))


if __name__ == "sitecustomize":
    hide()
    note()
