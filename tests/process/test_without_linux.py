"""The engine and the server without the system calls and files that Linux alone has, in real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.process import without_linux
from tests.server_process import LIMIT_S, ServerProcess, wait_for, wait_idle

QUESTION = "What is the capital of France?"


@pytest.fixture
def processes(tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder in which each process of Python without Linux's interfaces leaves its command."""
    site, seen = tmp_path / "site", tmp_path / "processes"
    for folder in (site, seen):
        folder.mkdir()
    shutil.copy(without_linux.__file__, site / "sitecustomize.py")
    own = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{site}:{own}" if own else str(site))
    monkeypatch.setenv("RADIXRT_TEST_PROCESSES", str(seen))
    return seen


def pids(processes: Path, command: str) -> list[int]:
    return [int(file.name) for file in processes.iterdir() if command in file.read_text()]


def test_what_is_hidden(processes: Path) -> None:
    code = """
import ctypes, fcntl, os, pathlib, select, signal, time
for module, name in [
    (os, "sched_getaffinity"), (os, "pidfd_open"), (os, "memfd_create"), (os, "eventfd"), (os, "posix_fallocate"),
    (signal, "pidfd_send_signal"), (time, "CLOCK_BOOTTIME"), (fcntl, "F_ADD_SEALS"), (select, "epoll"),
    (ctypes.CDLL(None), "prctl"),
]:
    assert not hasattr(module, name), name
assert not pathlib.Path("/proc/self/stat").exists()
assert not os.path.exists("/dev/shm")
for read in (open, os.listdir, lambda path: pathlib.Path(path).read_text()):
    try:
        read("/proc/self/stat")
    except FileNotFoundError:
        continue
    raise AssertionError(read)
import psutil
assert psutil.Process().create_time() > 0
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S)
    assert ran.returncode == 0, ran.stderr


def test_radixrt_generate(processes: Path) -> None:
    command = [sys.executable, "-m", "radixrt", "generate", QUESTION, "--dtype", "float32", "--max-tokens", "24"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=4 * LIMIT_S)
    assert ran.returncode == 0, ran.stderr
    assert "Paris" in ran.stdout
    assert ran.stderr == ""
    for kind in ("tokenizer", "scheduler", "runner"):
        assert len(pids(processes, f"radixrt.engine.process {kind}")) == 1


def test_a_server(processes: Path) -> None:
    server = ServerProcess("--dtype", "float32", "--kv-cache-tokens", "4096").wait_ready()

    def ask(content: str, **options: Any) -> str:
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 24, **options}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=LIMIT_S)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text

    try:
        assert "Paris" in ask(QUESTION)
        schema = {"type": "object", "properties": {"large": {"type": "boolean"}}, "required": ["large"]}
        form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
        assert isinstance(json.loads(ask(QUESTION, response_format=form))["large"], bool)
        assert pids(processes, "radixrt.constrained.compile.worker")

        # A ModelRunner that dies is noticed and started again.
        (first,) = pids(processes, "radixrt.engine.process runner")
        os.kill(first, signal.SIGKILL)
        assert wait_for(lambda: len(pids(processes, "radixrt.engine.process runner")) == 2)
        assert "Paris" in ask(QUESTION)
        wait_idle(server.url)
    finally:
        code = server.stop()
    assert code == 0, "".join(server.lines)
