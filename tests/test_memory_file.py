"""Files in memory that other processes open by a path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from radixrt.heartbeat import HeartbeatFile, open_heartbeat
from radixrt.memory_file import MemoryFile

WRITE = "import os, sys; os.write(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600), b'written')"


def test_another_process_writes_to_it(tmp_path: Path) -> None:
    path = str(tmp_path / "shared")
    file = MemoryFile(path)
    assert file.exists
    subprocess.run([sys.executable, "-c", WRITE, path], check=True)
    assert Path(path).read_bytes() == b"written"
    assert os.stat(path).st_dev != os.stat(tmp_path).st_dev
    file.close()
    file.close()
    assert not os.path.exists(path)


@pytest.mark.parametrize("missing", ["call", "proc"])
def test_an_ordinary_file_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def refuse(*_: object) -> int:
        raise OSError("not here")

    if missing == "call":
        monkeypatch.setattr(os, "memfd_create", refuse)
    else:
        monkeypatch.setattr(os, "getpid", lambda: 1 << 30)
    path = str(tmp_path / "heartbeats")
    assert not MemoryFile(path).exists
    file = HeartbeatFile(path, 2)
    open_heartbeat(path, 1).beat()
    assert file.read(1).count == 1
    assert not os.path.islink(path)


def test_a_heartbeat_may_lie_in_memory(tmp_path: Path) -> None:
    path = str(tmp_path / "heartbeats")
    memory = MemoryFile(path)
    file = HeartbeatFile(path, 2)
    open_heartbeat(path, 1).beat()
    memory.close()
    assert file.read(1).count == 1
    assert file.read(0).count == 0


def test_a_size_takes_no_memory_until_it_is_written(tmp_path: Path) -> None:
    path = str(tmp_path / "large")
    file = MemoryFile(path, 2**40)
    assert os.stat(path).st_size == 2**40
    assert os.stat(path).st_blocks == 0
    file.close()
