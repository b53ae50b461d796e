"""Caches of compiled constraints: on disk, for the compile workers, and in memory, loaded, for the scheduler."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import logging
import os
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from radixrt.channel import UNDECODABLE
from radixrt.constrained.compile.compiled import CompiledConstraint
from radixrt.private_files import is_trusted, write_private

if TYPE_CHECKING:
    from radixrt.constrained.runtime.grammar_template import GrammarTemplate

logger = logging.getLogger(__name__)

# --- on disk ---


MIN_COMPILE_S = 0.005
"""A constraint that compiles faster is not worth a file."""
MAX_FILES = 10_000


class CompileCache:
    """A folder of compiled constraints. The least recently used files are removed beyond a size of `max_bytes`."""

    def __init__(self, folder: Path, vocabulary_fingerprint: str, max_bytes: int) -> None:
        self._folder = folder
        self._prefix = hashlib.sha256(f"{vocabulary_fingerprint} {code_fingerprint()}".encode()).hexdigest()
        self._max_bytes = max_bytes
        self._bytes_written = 0
        self._has_failed = False

    def get(self, key: str) -> CompiledConstraint | None:
        """Return the compiled constraint for a `Constraint.key`; None if it is not cached, or others could write it."""
        path = self._path(key)
        try:
            if not (is_trusted(self._folder) and is_trusted(path)):
                return None
            data = path.read_bytes()
        except OSError:
            return None
        try:
            compiled = msgspec.msgpack.decode(data, type=CompiledConstraint)
        except UNDECODABLE:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return compiled

    def put(self, key: str, compiled: CompiledConstraint) -> None:
        """Store a compiled constraint if compiling it took long enough. The first error of the disk is logged."""
        if compiled.compile_s < MIN_COMPILE_S:
            return
        data = msgspec.msgpack.encode(compiled)
        if len(data) > self._max_bytes // 4:
            return
        try:
            write_private(self._path(key), data)
        except OSError as error:
            if not self._has_failed:
                logger.warning("compiled constraints are not kept on disk: %s", error)
            self._has_failed = True
            return
        if self._bytes_written == 0 or self._bytes_written > self._max_bytes // 8:
            self._bytes_written = 0
            self._trim()
        self._bytes_written += len(data)

    def _path(self, key: str) -> Path:
        return self._folder / hashlib.sha256(f"{self._prefix} {key}".encode()).hexdigest()

    def _trim(self) -> None:
        files: list[tuple[float, int, str]] = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._folder):
                with contextlib.suppress(OSError):
                    stat = entry.stat()
                    files.append((stat.st_mtime, stat.st_size, entry.path))
        total = sum(size for _, size, _ in files)
        surplus = len(files) - MAX_FILES
        for _, size, path in sorted(files):
            if total <= self._max_bytes and surplus <= 0:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size
            surplus -= 1


@cache
def code_fingerprint() -> str:
    """Return a hash of the sources of constrained decoding and of the versions of the mask libraries."""
    digest = hashlib.sha256()
    for library in ("llguidance", "xgrammar"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            digest.update(f"{library} {importlib.metadata.version(library)}".encode())
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


# --- in memory ---


BASE_BYTES = 64 * 1024
BYTES_PER_BYTE = 40
"""Estimated memory of a loaded grammar per byte of its compiled form: parser tables, lexer and recognizer states."""
BYTES_PER_BUILDING_S = 300_000_000
"""Estimated memory of the lexer states that a library builds per second of slow masks."""


class TemplateCache:
    """LRU cache of loaded constraints.

    The size is an estimate, because libraries do not report the memory of a grammar and allocate much of it later.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, tuple[GrammarTemplate, CompiledConstraint]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        return sum(_size(*entry) for entry in self._entries.values())

    def get(self, key: str) -> tuple[GrammarTemplate, CompiledConstraint] | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: str, template: GrammarTemplate, compiled: CompiledConstraint) -> None:
        """Store a constraint. A constraint larger than the whole cache is kept until another constraint is stored."""
        self._entries[key] = (template, compiled)
        surplus = self.num_bytes - self._max_bytes
        while surplus > 0 and len(self._entries) > 1:
            _, oldest = self._entries.popitem(last=False)
            surplus -= _size(*oldest)


def _size(template: GrammarTemplate, compiled: CompiledConstraint) -> int:
    return BASE_BYTES + BYTES_PER_BYTE * compiled.size + int(BYTES_PER_BUILDING_S * template.building_s)
