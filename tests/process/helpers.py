"""Processes of a real server or engine, and short ways to ask it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

import radixrt
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
    lines = {child: child.cmdline() for child in children}
    module = "radixrt.engine.process"
    return {line[line.index(module) + 1]: child for child, line in lines.items() if module in line}


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


@contextmanager
def only(engine: radixrt.Engine, number: int) -> Iterator[None]:
    """Let only one replica take requests."""
    replicas = engine.replicas
    assert replicas is not None

    def is_in(*states: str) -> bool:
        """The router has reported one of these states of the other replica."""
        stats = replicas.describe()[1 - number].stats
        return stats is not None and stats.view.state in states

    assert wait_for(lambda: all(each.state == "serving" for each in replicas.describe()))
    assert wait_for(lambda: is_in("serving"))
    replicas.drain(1 - number)
    assert wait_for(lambda: is_in("draining", "fenced"))
    yield
    replicas.drain(1 - number, on=False)
