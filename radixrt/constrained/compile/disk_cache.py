"""Compiled constraints on disk, so that what was expensive once is not so again after a restart.

One file for each constraint, named by a hash of everything that it depends on: the constraint, the vocabulary, and the
code that compiled it. Files are written under another name and then renamed, so a reader sees a whole file or none; one
that does not decode is removed. Only the compile workers touch the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import tempfile
from functools import cache
from pathlib import Path

import msgspec

from radixrt.channel import UNDECODABLE
from radixrt.constrained.compile.compiler import CompiledConstraint

MIN_COMPILE_S = 0.005
"""What compiles faster is not worth a file."""
MAX_FILES = 10_000


class CompileCache:
    """A folder of compiled constraints, of at most `max_bytes` in all; the files not used longest leave first."""

    def __init__(self, folder: Path, vocabulary_fingerprint: str, max_bytes: int) -> None:
        self._folder = folder
        self._prefix = hashlib.sha256(f"{vocabulary_fingerprint} {code_fingerprint()}".encode()).hexdigest()
        self._max_bytes = max_bytes
        self._bytes_written = 0

    def get(self, key: str) -> CompiledConstraint | None:
        """What was compiled for `Constraint.key`, or None."""
        path = self._path(key)
        try:
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
        """Keep it, if it took long enough; a disk that is full or not writable is no error."""
        if compiled.compile_s < MIN_COMPILE_S:
            return
        data = msgspec.msgpack.encode(compiled)
        if len(data) > self._max_bytes // 4:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, name = tempfile.mkstemp(dir=self._folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                os.replace(name, self._path(key))
            except BaseException:
                os.unlink(name)
                raise
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
    """Of this package's sources and of the mask libraries' versions."""
    digest = hashlib.sha256()
    for library in ("llguidance", "xgrammar"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            digest.update(f"{library} {importlib.metadata.version(library)}".encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
