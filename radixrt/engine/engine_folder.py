"""`EngineFolder`: the private folder of an engine, for sockets and shared files, and the removal of stale folders.

The main process creates and removes its folder; workers never do. A main process that was killed leaves its folder
behind, and the next engine of the same user on this machine removes the folder. A folder is stale if two checks agree
that its owner is gone: the pid and start time in the folder's name, and the owner's lock on the folder, which processes
in other pid namespaces see as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import tempfile
from pathlib import Path

from radixrt.errors import ConfigError
from radixrt.os_process import is_alive, read_stat

logger = logging.getLogger(__name__)

PREFIX = "radixrt-"
MAX_SOCKET_PATH = 107
"""Longest path of a Unix socket, in bytes (unix(7))."""
LONGEST_FOLDER = len(PREFIX + "4194304.9999999999-random_8")
LONGEST_SOCKET = (len("/runner-999.9999"), len("/r999.9999/runner-999.9999"))
"""Bytes of the longest name of a socket in the folder, without replicas and with them: a rank's, after restarts."""
_OWNER = re.compile(PREFIX + r"(\d+)\.(\d+)-.+")


class EngineFolder:
    """A new folder of this process, mode 0700, with a random name.

    Attributes:
        path: of the folder.
    """

    def __init__(self) -> None:
        own = read_stat(os.getpid())
        start = 0 if own is None else own.start_time
        self.path = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}.{start}-")
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def check_temporary_folder(*, has_replicas: bool) -> None:
    """Check that sockets fit into a folder of an engine in the temporary folder.

    Args:
        has_replicas: the sockets are in folders of the engine's replicas.

    Raises:
        ConfigError: the name of the temporary folder is too long.
    """
    base = tempfile.gettempdir()
    surplus = len(os.fsencode(base)) + 1 + LONGEST_FOLDER + LONGEST_SOCKET[has_replicas] - MAX_SOCKET_PATH
    if surplus > 0:
        raise ConfigError(
            f"the name of the temporary folder {base} is {surplus} bytes too long for sockets in it; set TMPDIR to a "
            "folder with a shorter name"
        )


def remove_stale_folders() -> list[str]:
    """Remove the folders in the temporary folder whose engines are gone; return their paths."""
    removed = []
    for folder in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        with contextlib.suppress(OSError):
            if _is_stale(folder):
                shutil.rmtree(folder)
                removed.append(str(folder))
    if removed:
        logger.info("removed what engines that were killed left behind: %s", ", ".join(removed))
    return removed


def _is_stale(folder: Path) -> bool:
    owner = _OWNER.fullmatch(folder.name)
    if owner is None or folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        return False
    if is_alive(int(owner[1]), int(owner[2])):
        return False
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
