"""Start a server under test in a process group of its own, wait until it is ready, and stop exactly that group."""

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.common.machine import group_members


class ServerError(Exception):
    """A server that ended, or was not ready in time."""


@dataclass(frozen=True)
class RunningServer:
    url: str
    pid: int
    ready_seconds: float


@contextmanager
def started(command: str, log: Path, ready_limit_s: float, grace_s: float) -> Iterator[RunningServer]:
    """Runs `command`, split as a shell would and with {port} filled in, until the block ends.

    Its output goes to `log`. Raises ServerError if it does not answer in `ready_limit_s` seconds.
    """
    port = free_port()
    words = [word.replace("{port}", str(port)) for word in shlex.split(command)]
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as out:
        start = time.perf_counter()
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            _wait_ready(process, url, start + ready_limit_s, log)
            yield RunningServer(url, process.pid, time.perf_counter() - start)
        finally:
            _end(process, grace_s)


def served_model(url: str) -> str:
    """The first model that a server lists."""
    answer = httpx.get(f"{url.rstrip('/').removesuffix('/v1')}/v1/models", trust_env=False, timeout=30.0)
    return str(answer.raise_for_status().json()["data"][0]["id"])


def flush_cache(url: str) -> None:
    """Empty the cache of a server that has a route for it."""
    answer = httpx.post(f"{url}/flush_cache", trust_env=False, timeout=60.0)
    if answer.status_code != 404:  # other servers have no such route
        answer.raise_for_status()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_ready(process: subprocess.Popen[bytes], url: str, deadline: float, log: Path) -> None:
    with httpx.Client(trust_env=False, timeout=5.0) as http:
        while True:
            if process.poll() is not None:
                raise ServerError(f"the server ended with {process.returncode}:\n{_tail(log)}")
            if any(_answers(http, url + path) for path in ("/health", "/v1/models")):
                return
            if time.perf_counter() > deadline:
                raise ServerError(f"the server was not ready in time:\n{_tail(log)}")
            time.sleep(0.1)


def _answers(http: httpx.Client, address: str) -> bool:
    try:
        return http.get(address).status_code == 200
    except httpx.HTTPError:
        return False


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Send SIGTERM to the group, and SIGKILL to its remaining processes after `grace_s` seconds; wait for it.

    The group's number is the pid of `process`. The kernel gives it to nobody else while the group has a member, and no
    signal is sent to a group without one.
    """
    for sig, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
        if group_members(process.pid):
            os.killpg(process.pid, sig)
        deadline = time.perf_counter() + patience
        while group_members(process.pid) and time.perf_counter() < deadline:
            time.sleep(0.05)
    process.wait(timeout=10.0)


def _tail(log: Path, lines: int = 25) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
