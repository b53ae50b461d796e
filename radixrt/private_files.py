"""Folders of files that run or count as this process's own: compiled kernels and constraints, converted models."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def is_trusted(path: Path) -> bool:
    """Return True if a file or folder belongs to this user or root, and nobody else may write to it.

    Raises:
        OSError: there is no such path.
    """
    found = path.stat()
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & WRITABLE_BY_OTHERS


def write_private(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file into a private folder, which is made; at once for other processes that look for the file.

    Raises:
        OSError: as `make_private_folder`; or the file cannot be written, and nothing of it is left.
    """
    make_private_folder(path.parent)
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def make_private_folder(folder: Path) -> None:
    """Make a folder, and the missing folders above it, for this user alone (mode 0700, whatever the umask). From an
    existing folder of this user, the right of others to write is taken away.

    Raises:
        OSError: the folder cannot be made; or it belongs to somebody else, or root lets others write to it.
    """
    for each in [*reversed(folder.parents), folder]:
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat()
    if found.st_uid == os.geteuid() and found.st_mode & WRITABLE_BY_OTHERS:
        folder.chmod(stat.S_IMODE(found.st_mode) & ~WRITABLE_BY_OTHERS)
    if not is_trusted(folder):
        raise PermissionError(errno.EPERM, "other users can write to the folder, or it belongs to one", str(folder))
