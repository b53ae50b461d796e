"""A server in its own process, and functions that wait for its events, however slow the machine is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import httpx

LIMIT_S = 120.0
"""Time after which an event that must come is given up. It bounds a hanging test and is no measure of speed."""


def wait_for(condition: Callable[[], bool]) -> bool:
    """Wait until the condition holds. Return False if it did not within LIMIT_S."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def without_model(text: str) -> str:
    """Return the text of /metrics without the label that all series have."""
    text = re.sub(r',?model_name="[^"]*"', "", text)
    return text.replace("{,", "{").replace("{}", "")


def metrics(url: str) -> set[str]:
    """Return the lines of a server's /metrics, without the label `model_name`."""
    return set(without_model(httpx.get(f"{url}/metrics", timeout=LIMIT_S).text).splitlines())


def wait_idle(url: str) -> None:
    """Wait until a server has no open, running or waiting request."""
    idle = {f"radixrt_{state} 0.0" for state in ("open_requests", "num_requests_running", "num_requests_waiting")}
    assert wait_for(lambda: idle <= metrics(url)), "requests are left over"


def wait_open(url: str, count: int) -> None:
    """Wait until a server has exactly so many open requests."""
    assert wait_for(lambda: f"radixrt_open_requests {count}.0" in metrics(url))


class ServerProcess:
    """`radixrt launch` as a user runs it, on a free port."""

    def __init__(self, *arguments: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "radixrt", "launch", "--port", "0", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"is ready on (https?://\S+)", line)
            if found:
                self.url = found.group(1)

    def wait_ready(self) -> ServerProcess:
        if not wait_for(lambda: bool(self.url) or self.process.poll() is not None) or not self.url:
            self.process.kill()  # no caller has it yet, to stop it
            raise AssertionError("the server did not start:\n" + "".join(self.lines))
        return self

    def wait(self) -> int:
        """Wait until the server has ended and `lines` holds all that it printed; return its exit code."""
        code = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return code

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.terminate()
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
