"""A headless Chromium, driven over a pipe by the DevTools protocol, without any package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
LIMIT_S = 20.0


class Browser:
    """One browser with one page; close it.

    Attributes:
        errors: exceptions and error lines of the page's console, violations of its content security policy included.
    """

    def __init__(self, width: int = 1360, height: int = 900, *, dark: bool = False) -> None:
        assert BROWSER is not None
        self._profile = tempfile.mkdtemp()
        commands, write = os.pipe()
        read, answers = os.pipe()
        low = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (commands, answers)]  # so that 3 and 4 are free
        arguments = [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--hide-scrollbars",
            f"--user-data-dir={self._profile}", "--no-first-run", "about:blank",
        ]  # fmt: skip
        silent = os.open(os.devnull, os.O_WRONLY)
        actions = [(os.POSIX_SPAWN_DUP2, low[0], 3), (os.POSIX_SPAWN_DUP2, low[1], 4)]
        actions += [(os.POSIX_SPAWN_DUP2, silent, 2), (os.POSIX_SPAWN_DUP2, silent, 1)]
        self._pid = os.posix_spawn(BROWSER, arguments, os.environ, file_actions=actions, setsid=True)
        for fd in (commands, answers, silent, *low):
            os.close(fd)
        self._write, self._read = os.fdopen(write, "wb", 0), read
        self._buffer = b""
        self._count = 0
        self._session = ""
        self.errors: list[str] = []
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.command(f"{domain}.enable")
        self.resize(width, height, dark=dark)

    def command(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._count:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._read, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        frame, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(frame)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        self.command("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Value of a JavaScript expression, awaited if it is a promise."""
        answer = self.command("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script: str) -> Any:
        """Wait until a JavaScript expression is true, and return its value."""
        deadline = time.monotonic() + LIMIT_S
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"never true: {script}; errors: {self.errors}"
            time.sleep(0.03)
        return value

    def move(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Save a picture of what is visible, or of the whole page, as PNG."""
        data = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self._write.close()
        os.close(self._read)
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._profile, ignore_errors=True)
