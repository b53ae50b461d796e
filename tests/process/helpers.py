"""Processes of a real server or engine, and short ways to ask it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import psutil

from tests.server_process import LIMIT_S, ServerProcess, metrics, wait_for


def socket_folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("radixrt-*"))


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def workers(server: ServerProcess) -> dict[str, psutil.Process]:
    """Return a server's processes by kind: tokenizer, scheduler, runner."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    return {c.cmdline()[-1]: c for c in children if "radixrt.engine.process" in c.cmdline()}


def wait_requests(server: ServerProcess, number: int) -> None:
    """Wait until so many requests run, which the metrics tell four times a second."""
    assert wait_for(lambda: f"radixrt_num_requests_running {number}.0" in metrics(server.url))


def generate(server: ServerProcess, **body: object) -> httpx.Response:
    payload = {"text": "hello", "sampling_params": {"temperature": 0, "max_tokens": 4}, **body}
    return httpx.post(f"{server.url}/generate", json=payload, timeout=LIMIT_S)


def program_with_engine(folder: Path, then: str = "") -> tuple[subprocess.Popen[str], dict[str, int]]:
    """Start a Python program that starts an offline engine, runs `then` and ends without closing the engine.

    Returns:
        The program, whose standard input is a pipe, and the pids of its engine's processes by name.
    """
    script = (
        "import json, radixrt, sys\n"
        f"e = radixrt.Engine({str(folder)!r}, dtype='float32', kv_cache_tokens=4096, show_progress=False)\n"
        "print(json.dumps(e.pids), flush=True)\n"
        f"{then}\n"
    )
    program = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    return program, json.loads(program.stdout.readline())
