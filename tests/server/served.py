"""`Served`: the scripted engine behind a real server, in a process of its own (`serve_fake`)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]


class Served:
    """A server of the scripted engine; `options` are those of ServerConfig.

    Attributes:
        frozen: objects that it excluded from garbage collection, a number, when it was ready.
    """

    def __init__(self, grace_s: float, **options: object) -> None:
        settings = json.dumps({"grace_s": grace_s, **options})
        command = [sys.executable, "-m", "tests.server.serve_fake", settings]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=ROOT, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
        assert self.process.stdout is not None
        self.url, _, self.frozen = self.process.stdout.readline().strip().partition(" ")
        self.answers: list[httpx.Response] = []
        self.lines: list[str] = []

    def start_stream(self, words: int) -> threading.Thread:
        """Ask for a stream of words, the last of which waits for `release`; return when the first word has arrived."""
        begun = threading.Event()

        def ask() -> None:
            body = {"prompt": "x", "max_tokens": words, "stream": True}
            with (
                suppress(httpx.RemoteProtocolError),  # cut off in the middle: no answer
                httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=120) as response,
            ):
                for line in response.iter_lines():
                    self.lines.append(line + "\n")
                    begun.set()
                self.answers.append(httpx.Response(200, text="".join(self.lines), headers=response.headers))

        thread = threading.Thread(target=ask)
        thread.start()
        assert begun.wait(60)
        return thread

    def release(self) -> None:
        """Let streams send their last word."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def gaps(self) -> tuple[float, float]:
        """Return the longest gaps of the event loop since the last call, in seconds (`tests.server.loop_watch`)."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("gaps\n")
        self.process.stdin.flush()
        loop_s, process_s = self.process.stdout.readline().split()
        return float(loop_s), float(process_s)

    def wait_for_drain(self) -> None:
        while httpx.get(f"{self.url}/ready", timeout=60).status_code == 200:
            time.sleep(0.01)

    def wait_for_lines(self, count: int) -> None:
        """Wait until the stream has `count` more lines."""
        wanted = len(self.lines) + count
        while len(self.lines) < wanted:
            assert self.process.poll() is None
            time.sleep(0.01)

    def end(self, timeout_s: float = 60) -> str:
        out, err = self.process.communicate(timeout=timeout_s)
        assert self.process.returncode == 0, err
        return out
