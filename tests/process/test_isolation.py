"""Commands that run in a folder whose Python files have the names of modules import none of these files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from radixrt.engine.cluster.driver_process import DriverProcess
from radixrt.engine.cluster.ray_driver import DriverSettings, Spawn
from tests.process.ray_nodes import needs_ray, next_report
from tests.server_process import LIMIT_S, ServerProcess

NAMES = (
    "asyncio", "concurrent", "copy", "csv", "ctypes", "email", "hashlib", "html", "http", "inspect", "json", "logging",
    "multiprocessing", "pickle", "platform", "queue", "random", "secrets", "select", "selectors", "shutil", "socket",
    "ssl", "statistics", "struct", "subprocess", "tempfile", "token", "traceback", "uuid", "numpy", "pydantic", "ray",
    "starlette", "tokenizers", "torch", "transformers", "uvicorn", "zmq",
)  # fmt: skip
"""Modules of Python and of packages which radixrt's processes import, and names that users give to their files."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("open(__file__ + '.imported', 'w').close()\nraise SystemExit(__file__)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def imported(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.imported"))


def test_a_server_imports_nothing_from_the_current_folder(folder: Path, long_model: Path) -> None:
    server = ServerProcess("--model", str(long_model), "--dtype", "float32", "--kv-cache-tokens", "4096").wait_ready()
    body = {"text": "a", "sampling_params": {"max_tokens": 8, "json_schema": {"type": "integer", "maximum": 99}}}
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=LIMIT_S)
    assert server.stop() == 0
    assert answer.status_code == 200, answer.text  # compiled in a process of its own
    assert imported(folder) == []


def test_the_doctor_imports_nothing_from_the_current_folder(folder: Path) -> None:
    command = [sys.executable, "-m", "radixrt", "doctor", "--device", "cpu"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert said.returncode == 0, said.stdout + said.stderr
    assert imported(folder) == []


@needs_ray
def test_ray_imports_nothing_from_the_current_folder(folder: Path) -> None:
    """An agent in a worker of Ray, and a process that the agent starts, which ends because it has no settings."""
    driver = DriverProcess(DriverSettings("local", [1], "CPU", LIMIT_S), outlives_thread=True)
    assert "placed" in next_report(driver)
    driver.spawn([Spawn("a rank", 0, "rank", {"name": "a rank"})])
    assert "started" in next_report(driver)
    ended = next_report(driver)
    driver.ask_to_exit()
    assert driver.reap(LIMIT_S)
    driver.close()
    assert "missing required field" in ended["tail"]
    assert imported(folder) == []
