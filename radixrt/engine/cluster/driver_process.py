"""`DriverProcess`: the main process's connection to the process of `ray_driver`."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Sequence
from typing import Any

import msgspec

from radixrt.engine.cluster.ray_driver import DriverSettings, Spawn
from radixrt.os_process import child_command

READ_BYTES = 65536


class DriverProcess:
    """Starts the process of `ray_driver`. Create it in a thread that lives as long as the engine, because the kernel
    kills the process when the creating thread ends (see `radixrt.engine.worker_process`).

    Args:
        outlives_thread: the creating thread may end; the process ends with the main process.

    Attributes:
        error: error reported by the process before it ended, or "".
    """

    def __init__(self, settings: DriverSettings, *, outlives_thread: bool = False) -> None:
        module = "radixrt.engine.cluster.ray_driver"
        command = child_command(module, outlives_thread=outlives_thread)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
        self._buffer = b""
        self.error = ""
        self._write(msgspec.json.encode(settings))

    def fileno(self) -> int:
        """Descriptor that is readable when `reports` may be called."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def reports(self) -> list[dict[str, Any]] | None:
        """Read the reports that have arrived; None after the process has ended. Waits if `fileno` is not readable."""
        assert self._process.stdout is not None
        piece = self._process.stdout.read1(READ_BYTES)  # type: ignore[attr-defined]
        if not piece:
            return None
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        found = [json.loads(line) for line in lines]
        self.error = next((each for each in found if isinstance(each, str)), self.error)
        return [each for each in found if isinstance(each, dict)]

    def spawn(self, batch: Sequence[Spawn]) -> None:
        """Start processes through the agents. `reports` returns their reports later."""
        self._write(msgspec.json.encode(batch))

    def ask_to_exit(self) -> None:
        """Have the agents kill their processes, and end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.close()

    def reap(self, timeout_s: float) -> bool:
        """Wait until the process has ended; return False if it is alive after timeout_s."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Close the pipes. The process has ended, and its reports are not read any longer."""
        self.ask_to_exit()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
