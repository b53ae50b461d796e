"""Linux's calls and their replacements, which every system has."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from radixrt.portable import Wake, allocate, exit_descriptor, num_cores
from tests.server_process import LIMIT_S


def readable(descriptor: int, seconds: float = 0.0) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def test_a_wake_is_readable_from_set_to_clear() -> None:
    wake = Wake()
    try:
        assert not readable(wake.fileno())
        for _ in range(100_000):  # more than a pipe holds
            wake.set()
        assert readable(wake.fileno())
        wake.clear()
        assert not readable(wake.fileno())
        wake.clear()
        wake.set()
        assert readable(wake.fileno())
    finally:
        wake.close()


@pytest.fixture(params=["Linux", "elsewhere"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "elsewhere":
        for name in ("pidfd_open", "posix_fallocate", "sched_getaffinity"):
            monkeypatch.delattr(os, name, raising=False)
    return str(request.param)


def test_cores(system: str) -> None:
    assert 1 <= num_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize("size", [1, 4096, (1 << 20) + 5])
def test_a_file_grows_and_keeps_its_content(system: str, tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    descriptor = os.open(path, os.O_RDWR)
    try:
        for _ in range(2):
            allocate(descriptor, size)
            assert os.fstat(descriptor).st_size == size
            assert os.fstat(descriptor).st_blocks * 512 >= size
        allocate(descriptor, 1)
    finally:
        os.close(descriptor)
    assert path.read_bytes() == b"x" + bytes(size - 1)


def test_the_end_of_a_child(system: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    descriptor = exit_descriptor(child)
    try:
        assert not readable(descriptor)
        child.kill()
        assert readable(descriptor, LIMIT_S)
        assert child.wait(LIMIT_S) < 0
    finally:
        os.close(descriptor)
        assert child.stdin is not None
        child.stdin.close()
