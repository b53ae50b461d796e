"""Compiled constraints on disk."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from radixrt.constrained.compile.cache import CompileCache
from radixrt.constrained.compile.compiled import CompiledConstraint


def compiled(size: int = 100, compile_s: float = 1.0) -> CompiledConstraint:
    return CompiledConstraint(
        backend="llguidance", source="s" * size, serialized=None, productions=b"p", shortest=[1], specials=[],
        why="", ignored=[], compile_s=compile_s, load_s=0.1, mask_s=1e-6,
    )  # fmt: skip


def test_what_was_put_is_there_for_the_next_process(tmp_path: Path) -> None:
    first = CompileCache(tmp_path / "new", "vocabulary", 10**6)
    assert first.get("key") is None
    first.put("key", compiled())
    assert CompileCache(tmp_path / "new", "vocabulary", 10**6).get("key") == compiled()
    assert CompileCache(tmp_path / "new", "another vocabulary", 10**6).get("key") is None
    assert first.get("another key") is None


def test_what_compiles_fast_is_not_kept(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path, "vocabulary", 10**6)
    cache.put("key", compiled(compile_s=0.001))
    assert cache.get("key") is None


def test_a_disk_that_takes_nothing_is_one_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = CompileCache(tmp_path / "file" / "grammars", "vocabulary", 10**6)
    for key in ("one", "two"):
        cache.put(key, compiled())
        assert cache.get(key) is None
    (line,) = caplog.messages
    assert "compiled constraints are not kept on disk" in line
    assert str(tmp_path / "file" / "grammars") in line


def test_files_that_are_damaged_are_ignored_and_removed(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path, "vocabulary", 10**6)
    good = msgspec.msgpack.encode(compiled())
    for data in (b"", b"\x00", good[:-5], b"\xc1" * 50, msgspec.msgpack.encode({"backend": "other"})):
        cache.put("key", compiled())
        (path,) = tmp_path.iterdir()
        path.write_bytes(data)
        assert cache.get("key") is None
        assert not list(tmp_path.iterdir())


def test_files_that_others_could_write_are_not_read(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path, "vocabulary", 10**6)
    cache.put("key", compiled())
    assert cache.get("key") is not None
    (path,) = tmp_path.iterdir()
    path.chmod(0o666)
    assert cache.get("key") is None
    path.chmod(0o600)
    tmp_path.chmod(0o777)
    assert cache.get("key") is None


def test_the_folder_stays_within_its_size(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path, "vocabulary", 100_000)
    for i in range(40):
        cache.put(f"key{i}", compiled(10_000))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 130_000
    assert cache.get("key39") is not None
    assert cache.get("key0") is None
    cache.put("huge", compiled(50_000))
    assert cache.get("huge") is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = CompileCache(tmp_path / "file" / "folder", "vocabulary", 10**6)
    cache.put("key", compiled())
    assert cache.get("key") is None
