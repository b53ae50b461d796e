"""Files of the disk tier: who uses them, and what they hold.

    kv_disk/                       the folder of the option, mode 0700, files 0600
      FINGERPRINT/                 a model with its options (`fingerprint.py`), 32 hexadecimal digits
        model.json                 its name, for people
        REPLICA/                   0, or the number of a replica
          lock                     locked by the engine that uses the folder
          records                  tokens of each page (`records.py`)
          pages-RANK               keys and values, a header and the bytes of each page
          layout.json              sizes of the above

An engine locks its folder for as long as it runs. Folders of other models stay as they are, except that those used
least recently are removed once they take more than the quota.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from radixrt.mem_cache.allocator import Int32Array
from radixrt.messages.kv_moves import arena_path
from radixrt.parts.tiers import records
from radixrt.parts.tiers.namespaces import is_of
from radixrt.parts.tiers.settings import data_path, page_stride, table_path
from radixrt.private_files import make_private_folder, write_private

logger = logging.getLogger(__name__)

NAME_DIGITS = 32
LOCK_WAIT_S = 0.5
"""Longest wait for a lock: a command that lists the folders takes each lock for a moment."""
_NAME = re.compile(rf"[0-9a-f]{{{NAME_DIGITS}}}")
_PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_libc = ctypes.CDLL(None, use_errno=True)


class FolderInUse(Exception):
    """Another engine uses the folder."""


class DiskFolder:
    """Folder of the disk tier of one engine, or of one of its replicas, locked until `close`.

    Args:
        root: folder of all models.
        fingerprint: of the model (`model_fingerprint`).
        replica: number of the replica; 0 for an engine without replicas.
        model: name of the model, for people.

    Attributes:
        path: of the folder.

    Raises:
        FolderInUse: another engine uses the folder.
        OSError: the folder cannot be made, or other users can write to it.
    """

    def __init__(self, root: Path, fingerprint: str, replica: int, model: str) -> None:
        own = root / fingerprint[:NAME_DIGITS]
        self.path = str(own / str(replica))
        make_private_folder(own)
        make_private_folder(Path(self.path))
        deadline = time.monotonic() + LOCK_WAIT_S
        while (lock := _lock(Path(self.path))) is None:
            if time.monotonic() > deadline:
                raise FolderInUse(self.path)
            time.sleep(0.05)
        self._lock = lock
        write_private(own / "model.json", json.dumps({"model": model}).encode())

    def close(self) -> None:
        os.close(self._lock)


@dataclass(frozen=True)
class StoredModel:
    """Pages of one model on disk.

    Attributes:
        folder: of the model, in `kv_disk`.
        model: its name; "" if nobody wrote it down.
        pages: pages of all replicas.
        page: tokens of a page; 0 if there is none.
        num_bytes: bytes on disk.
        used: time of the last use, in seconds since the epoch; 0 if there is no page.
        in_use: an engine runs on the folder.
    """

    folder: Path
    model: str
    pages: int
    page: int
    num_bytes: int
    used: int
    in_use: bool


def stored_models(root: Path) -> list[StoredModel]:
    """Return the models that have a folder, the one used last first."""
    return sorted((_stored(folder) for folder in _models(root)), key=lambda each: (-each.used, each.folder))


def _models(root: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from (each for each in root.iterdir() if _NAME.fullmatch(each.name) and is_own(each))


def _replicas(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(each for each in folder.iterdir() if each.name.isdecimal() and is_own(each))
    return []


def is_own(folder: Path) -> bool:
    """Return True for a folder of this user, which is no link."""
    found = folder.lstat()
    return folder.is_dir() and not folder.is_symlink() and found.st_uid == os.geteuid()


def _stored(folder: Path) -> StoredModel:
    pages, page, num_bytes, used, in_use = 0, 0, 0, 0, False
    for replica in _replicas(folder):
        in_use |= is_locked(replica)
        with contextlib.suppress(OSError):
            num_bytes += sum(file.stat().st_blocks * 512 for file in replica.iterdir())
            count, tokens, last = records.summary(Path(table_path(str(replica))))
            pages, page, used = pages + count, max(page, tokens), max(used, last)
    model = str(_read_json(folder / "model.json").get("model", ""))
    return StoredModel(folder, model, pages, page, num_bytes, used, in_use)


def remove_model(folder: Path) -> None:
    """Remove the files of a model that no engine uses.

    Raises:
        FolderInUse: an engine uses the folder.
        OSError: a file cannot be removed.
    """
    with contextlib.ExitStack() as locks:
        for replica in _replicas(folder):
            lock = _lock(replica)
            if lock is None:
                raise FolderInUse(str(replica))
            locks.callback(os.close, lock)
        shutil.rmtree(folder)


def remove_oldest(root: Path, keep: str, quota: int) -> None:
    """Remove the models used least recently until all models but one, and but those in use, take at most `quota` bytes.

    Args:
        keep: fingerprint of the model that stays.
    """
    total = 0
    for each in stored_models(root):
        if each.in_use or each.folder.name == keep[:NAME_DIGITS]:
            continue
        total += each.num_bytes
        if total > quota:
            with contextlib.suppress(OSError, FolderInUse):
                remove_model(each.folder)
                name, age = each.model or each.folder.name, (time.time() - each.used) / 86400
                logger.info("removed the prefixes of %s, unused for %.1f days, to keep to kv_disk_gib", name, age)


# --- a folder in use ---


def write_layout(folder: str, page: int, token_bytes: Sequence[int], num_pages: int) -> None:
    """Write down the sizes of the files in a folder. If pages have another size now, the folder is emptied; pages that
    a smaller quota leaves out are cut off.

    Args:
        page: tokens of a page.
        token_bytes: bytes of one token's keys and values in each rank.
        num_pages: number of pages, without page 0.

    Raises:
        OSError: a file cannot be written.
    """
    layout = {"page": page, "token_bytes": list(token_bytes)}
    path = Path(folder, "layout.json")
    if _read_json(path) != layout:
        for file in [Path(table_path(folder)), *Path(folder).glob("pages-*")]:
            file.unlink(missing_ok=True)
        write_private(path, json.dumps(layout).encode())
    for rank, size in enumerate(token_bytes):
        end = (num_pages + 1) * page_stride(page * size)
        with contextlib.suppress(FileNotFoundError):
            if os.path.getsize(data_path(folder, rank)) > end:
                os.truncate(data_path(folder, rank), end)


def forget_stored(folder: Path, namespace: str, *, whole_owner: bool) -> int:
    """Drop the pages of a namespace from the files of a model that no engine uses; return their number.

    Args:
        namespace, whole_owner: see `namespaces.is_of`.

    Raises:
        FolderInUse: an engine uses the folder.
        OSError: a file cannot be written.
    """
    count = 0
    for replica in _replicas(folder):
        lock = _lock(replica)
        if lock is None:
            raise FolderInUse(str(replica))
        try:
            table_file = Path(table_path(str(replica)))
            table = records.open_records(table_file) if table_file.exists() else None
            if table is not None:
                is_wanted = partial(is_of, namespace=namespace, whole_owner=whole_owner)
                pages = table.pages_of(is_wanted)
                table.clear(pages)
                erase_pages(str(replica), table.pages_of(is_wanted, recorded=False))
                count += len(pages)
        finally:
            os.close(lock)
    return count


def zero_pages(arena: str, page: int, token_bytes: Sequence[int], pages: Int32Array) -> None:
    """Overwrite pages of the host tier. CUDA may have pinned their memory, so that they cannot be given back.

    Args:
        arena: see `TierSettings`.
        page: tokens of a page.
        token_bytes: bytes of one token's keys and values in each rank.

    Raises:
        OSError: a file cannot be written.
    """
    for rank, size in enumerate(token_bytes):
        with open(arena_path(arena, rank), "r+b", buffering=0) as file:
            for number in pages.tolist():
                os.pwrite(file.fileno(), bytes(page * size), number * page * size)


def erase_pages(folder: str, pages: Int32Array) -> None:
    """Free the space of pages in the data files, so that their bytes are gone.

    Raises:
        OSError: a file cannot be written.
    """
    layout: Any = _read_json(Path(folder, "layout.json"))
    for rank, token_bytes in enumerate(layout.get("token_bytes", ())):
        stride = page_stride(layout["page"] * token_bytes)
        with contextlib.suppress(FileNotFoundError), open(data_path(folder, rank), "r+b", buffering=0) as file:
            for page in pages.tolist():
                _erase(file.fileno(), page * stride, stride)


def _erase(descriptor: int, start: int, length: int) -> None:
    """Make a hole in a file; on file systems without holes, write zeros."""
    if _libc.fallocate(descriptor, _PUNCH_HOLE, ctypes.c_long(start), ctypes.c_long(length)):
        end = min(start + length, os.fstat(descriptor).st_size)
        for at in range(start, end, 2**20):
            os.pwrite(descriptor, bytes(min(2**20, end - at)), at)


# --- locks ---


def is_locked(folder: Path) -> bool:
    """Return True if an engine uses a folder."""
    lock = _lock(folder)
    if lock is None:
        return True
    os.close(lock)
    return False


def _lock(folder: Path) -> int | None:
    """Lock a folder; return the descriptor that holds the lock, or None if another engine does."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _read_json(path: Path) -> dict[str, object]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_bytes())
        if isinstance(found, dict):
            return found
    return {}
