"""`PageRecords`: a table of the prefixes whose keys and values a tier holds, which outlives the process that writes it.

Record k describes page k of the tier: namespace, positions and tokens of the page, and a chain hash that covers the
namespace and all tokens from position 0 to the page's end. A record checks itself, because its hash is computed from
its other fields, and the hashes of the records before it check the path from position 0 to the page. So a reader needs
no order of writes and no lock: whatever bytes a crash, a full disk or another program leaves in the table,
`PageRecords.runs` returns prefixes that were written, or nothing.

A process of another replica reads keys and values of a page without asking anybody: `SharedRecords` tells whether the
page held the expected tokens before and after its bytes were read, and whether its record has changed in between.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from radixrt.mem_cache.allocator import I32, Int32Array
from radixrt.messages.kv_moves import KEY_BYTES
from radixrt.parts.tiers.namespaces import ID_BYTES

VALID = 0x56_4B_58_52
"""Value of the field `valid` of a record that was written completely."""
HEADER_BYTES = 4096
MAGIC = b"radixrt page records 3\n"


def chain(before: bytes, tokens: bytes) -> bytes:
    """Return the chain hash of a page, KEY_BYTES bytes.

    Args:
        before: hash of the page before; of the first page, the namespace's identity (`namespaces.namespace_id`).
        tokens: int32 column of the page.
    """
    return blake2b(before + tokens, digest_size=KEY_BYTES).digest()


class PageRecords:
    """Table of the pages of a tier, a file of HEADER_BYTES bytes and one record for each page, which is mapped into
    memory. The scheduler alone writes records.

    A table of another version or page size, or a file that is no table, counts as empty and is overwritten. If the
    number of pages differs, the records of the pages that exist now are kept.

    Args:
        path: of a file on disk, or of a file in memory (`radixrt.memory_file`).
        num_pages: number of pages of the tier, without page 0, which has a record that is never used.
        page: number of tokens of a page.
        create: make an empty table, whatever the file holds. Otherwise, the file may be missing.

    Raises:
        OSError: the file cannot be written, or has no space.
    """

    def __init__(self, path: str, num_pages: int, page: int, *, create: bool = False) -> None:
        self.num_pages = num_pages
        self.page = page
        layout = _layout(page)
        header = (MAGIC + layout.itemsize.to_bytes(4, "little")).ljust(HEADER_BYTES, b"\0")
        size = HEADER_BYTES + (num_pages + 1) * layout.itemsize
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if create or os.pread(descriptor, HEADER_BYTES, 0) != header:
                os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, size)
            # A write to a mapped page without space on the disk would end the process by SIGBUS.
            os.posix_fallocate(descriptor, 0, size)
            os.pwrite(descriptor, header, 0)
            with os.fdopen(os.dup(descriptor), "r+b") as file:
                raw = np.asarray(np.memmap(file, np.uint8, "r+", HEADER_BYTES, (size - HEADER_BYTES,)))
        finally:
            os.close(descriptor)
        self._raw = raw
        self._records: npt.NDArray[Any] = raw.view(layout)

    def write(self, pages: Int32Array, tokens: Int32Array, start: int, before: bytes, identity: bytes) -> bytes:
        """Write the records of pages that hold consecutive tokens.

        Args:
            pages: int32[n].
            tokens: int32[start + n * page], tokens from position 0 on.
            start: position of the first token of pages[0], a multiple of the page size.
            before: chain hash of the page before; the identity of the namespace if start is 0.
            identity: of the namespace (`namespaces.namespace_id`).

        Returns:
            Chain hash of each page, KEY_BYTES bytes each.

        Raises:
            ValueError: the lengths do not fit together.
        """
        size = self.page
        if start % size or len(tokens) != start + len(pages) * size or len(identity) != ID_BYTES:
            raise ValueError(f"{len(pages)} pages of {size} tokens do not hold {len(tokens)} tokens from {start} on")
        if not len(pages):
            return b""
        rows = np.ascontiguousarray(tokens[start:], dtype=I32).reshape(-1, size)
        hashes = [before]
        for row in rows:
            hashes.append(chain(hashes[-1], row.tobytes()))
        records, keys = self._records, b"".join(hashes)
        records["valid"][pages] = 0  # a reader may see any mix of the old and the new record, whose hash does not fit
        records["changes"][pages] += 1
        records["start"][pages] = start + size * np.arange(len(pages), dtype=I32)
        records["used"][pages] = int(time.time())
        records["namespace"][pages] = np.frombuffer(identity, np.uint8)
        records["before"][pages] = np.frombuffer(keys[:-KEY_BYTES], np.uint8).reshape(-1, KEY_BYTES)
        records["hash"][pages] = np.frombuffer(keys[KEY_BYTES:], np.uint8).reshape(-1, KEY_BYTES)
        records["tag"][pages] = _tags(records, pages)
        records["tokens"][pages] = rows
        records["valid"][pages] = VALID
        return keys[KEY_BYTES:]

    def touch(self, pages: Int32Array) -> None:
        """Note that pages are used now. `runs` returns the paths in the order of their last uses."""
        self._records["used"][pages] = int(time.time())

    def clear(self, pages: Int32Array | None = None) -> None:
        """Make the records of pages empty, or all records. Their tokens are overwritten. The namespaces stay, because
        the pages still hold keys and values."""
        chosen = slice(None) if pages is None else pages
        self._records["valid"][chosen] = 0
        self._records["changes"][chosen] += 1
        for name in self._records.dtype.names or ():
            if name not in ("changes", "namespace"):
                self._records[name][chosen] = 0

    def claim(self, pages: Int32Array, identity: bytes) -> None:
        """Note the namespace whose keys and values are about to be copied to pages without a record."""
        self._records["namespace"][pages] = np.frombuffer(identity, np.uint8)

    def pages_of(self, is_wanted: Callable[[bytes], bool], *, recorded: bool = True) -> Int32Array:
        """Return the pages with a record whose namespace is wanted, int32[n].

        Args:
            is_wanted: called with the identity of each namespace.
            recorded: False to add pages without a record that may still hold keys and values of the namespace.
        """
        records = self._records
        chosen = records["valid"] == VALID if recorded else records["namespace"].any(axis=1)
        pages = np.flatnonzero(chosen)
        found = _bytes_of(records["namespace"][pages])
        wanted = {identity for identity in set(found) if is_wanted(identity)}
        return pages[[identity in wanted for identity in found]].astype(I32)

    def runs(self) -> Iterator[tuple[bytes, Int32Array, Int32Array]]:
        """Return the prefixes that the table describes, and clear every record that belongs to none. A prefix that
        several longer prefixes share is part of each of them. No record may be written before the iterator has ended.

        Returns:
            For each path from position 0 to a last page, the least recently used path first: the identity of the
            namespace, int32[n * page] tokens, int32[n] pages.
        """
        parents, last = self._check()
        namespaces, tokens = self._records["namespace"], self._records["tokens"]
        for leaf in last:
            path = [leaf]
            while (parent := parents[path[-1]]) > 0:
                path.append(parent)
            pages = np.array(path[::-1], I32)
            yield namespaces[leaf].tobytes(), tokens[pages].ravel(), pages

    def _check(self) -> tuple[list[int], list[int]]:
        """Verify every record, and clear the others.

        Returns:
            parents: page before each page; 0 for a first page, and for pages without a valid record.
            last: last pages of the paths, the least recently used one first.
        """
        records = self._records
        written = np.flatnonzero(records["valid"] == VALID)
        # The record of another page, as after a write to a wrong address, says nothing about this page.
        written = written[(written > 0) & (records["tag"][written] == _tags(records, written))]
        candidates: list[int] = written[_intact(self._raw, records, written)].tolist()

        # Parents first. The positions of a path ascend page by page, so that no path leads to itself.
        starts: list[int] = records["start"].tolist()
        namespaces = _bytes_of(records["namespace"])
        befores, hashes = _bytes_of(records["before"]), _bytes_of(records["hash"])
        candidates.sort(key=starts.__getitem__)
        parents = [0] * len(starts)
        by_hash: dict[bytes, int] = {}
        inner: set[int] = set()
        for page in candidates:
            start, namespace, before = starts[page], namespaces[page], befores[page]
            if start == 0:
                if before != namespace:
                    continue
            else:
                parent = by_hash.get(before, 0)
                if not parent or starts[parent] + self.page != start or namespaces[parent] != namespace:
                    continue
                parents[page] = parent
                inner.add(parent)
            by_hash.setdefault(hashes[page], page)  # of two pages with the same prefix, one is kept

        kept = np.fromiter(by_hash.values(), np.int64, len(by_hash))
        bad = np.ones(len(starts), bool)
        bad[kept] = False
        bad &= records["valid"] != 0
        if bad.any():
            self.clear(np.flatnonzero(bad).astype(I32))
        used: list[int] = records["used"].tolist()
        return parents, sorted((page for page in by_hash.values() if page not in inner), key=used.__getitem__)


class SharedRecords:
    """Records of a table that another process writes at the same time.

    Args:
        path: of the table.

    Raises:
        OSError: the table cannot be read, or the file is no table.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        header = os.pread(self._fd, len(MAGIC) + 4, 0)
        if not header.startswith(MAGIC):
            self.close()
            raise OSError(f"{path} is no table of records")
        self._size = int.from_bytes(header[len(MAGIC) :], "little")

    def changes(self, page: int, key: bytes) -> int | None:
        """Return the number of changes of a page's record so far; None if the page does not hold the expected tokens.

        As long as the number is the same, the page's keys and values have not been overwritten: a record is cleared
        before its page is free.

        Args:
            key: chain hash of the page.
        """
        data = os.pread(self._fd, _HEAD.itemsize, HEADER_BYTES + page * self._size)
        if len(data) < _HEAD.itemsize:
            return None
        record = np.frombuffer(data, _HEAD)[0]
        return int(record["changes"]) if record["valid"] == VALID and record["hash"].tobytes() == key else None

    def close(self) -> None:
        os.close(self._fd)


def open_records(path: Path) -> PageRecords | None:
    """Return the table of a file that no engine uses; None if the file is no table.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        header = file.read(len(MAGIC) + 4)
    size = int.from_bytes(header[len(MAGIC) :], "little")
    tokens = (size - _layout(0).itemsize) // I32.itemsize
    if not header.startswith(MAGIC) or tokens < 1:
        return None
    return PageRecords(str(path), (path.stat().st_size - HEADER_BYTES) // size - 1, tokens)


def summary(path: Path) -> tuple[int, int, int]:
    """Read a table that another process may be writing.

    Returns:
        Number of pages with a record, tokens of a page, and time of the last use in seconds since the epoch, 0 if there
        is none.

    Raises:
        OSError: the file cannot be read.
    """
    data = path.read_bytes()
    size = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 4], "little")
    tokens = (size - _layout(0).itemsize) // I32.itemsize
    if not data.startswith(MAGIC) or tokens < 1 or (len(data) - HEADER_BYTES) % size:
        return 0, 0, 0
    records = np.frombuffer(data, _layout(tokens), offset=HEADER_BYTES)
    used = records["used"][records["valid"] == VALID]
    return len(used), tokens, int(used.max(initial=0))


_HEAD = np.dtype(
    [
        ("valid", "<u4"),
        ("used", "<u4"),
        ("changes", "<u4"),
        ("start", "<i4"),
        ("tag", "<u4"),
        ("namespace", "u1", (ID_BYTES,)),
        ("hash", "u1", (KEY_BYTES,)),
    ]
)
"""Fields of a record that `SharedRecords` reads. `changes` counts how often the record was written or cleared."""


def _layout(page: int) -> np.dtype[Any]:
    # The hash before and the tokens are neighbours: the hash of a record is taken over one piece of memory.
    return np.dtype([*_HEAD.descr, ("before", "u1", (KEY_BYTES,)), ("tokens", "<i4", (page,))])


def _tags(records: npt.NDArray[Any], pages: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.uint32]:
    """Return the first four bytes of each page's hash, combined with the page's number."""
    firsts = records["hash"][pages, :4].copy().view("<u4").ravel()
    return np.asarray(firsts ^ pages.astype(np.uint32), np.uint32)


def _intact(
    raw: npt.NDArray[np.uint8], records: npt.NDArray[Any], pages: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return whether each page's hash is the one of its record."""
    layout = records.dtype
    assert layout.fields is not None
    view, begin = raw.data, layout.fields["before"][1]
    hashes = b"".join(
        [
            blake2b(view[at + begin : at + layout.itemsize], digest_size=KEY_BYTES).digest()
            for at in (pages * layout.itemsize).tolist()
        ]
    )
    computed = np.frombuffer(hashes, np.uint8).reshape(-1, KEY_BYTES)
    return np.asarray((computed == records["hash"][pages]).all(axis=1))


def _bytes_of(column: npt.NDArray[np.uint8]) -> list[bytes]:
    """Return the rows of uint8[n, width] as byte strings."""
    width = column.shape[1]
    return np.ascontiguousarray(column).view(f"V{width}").ravel().tolist()
