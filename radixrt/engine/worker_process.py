"""`WorkerProcess`: starts a worker process from the main process, keeps the end of its output, and stops it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from functools import cached_property
from typing import Any

from radixrt.engine.endpoints import MISTAKE, is_runner, process_name
from radixrt.errors import EngineError
from radixrt.kernels.threads import without_openmp_bindings
from radixrt.os_process import child_command, end_group
from radixrt.portable import exit_descriptor

TAIL_BYTES = 8192
TAIL_LINES = 5
"""Last lines of a worker's output that are kept for the log line about the worker's end."""
TAIL_WAIT_S = 0.1
KILL_TIMEOUT_S = 30.0
"""Longest wait for a killed process: the GPU driver may keep the process in the kernel for seconds to free memory."""

CHILDREN_WAIT_S = 1.0
"""Longest wait for the children of a dead worker, e.g. compile workers."""


class WorkerProcess:
    """A process that runs `radixrt.engine.process`. Start it from a thread that lives as long as the engine: the kernel
    kills the worker when that thread ends.

    The worker's stderr is passed through, and its last lines are kept. The worker leads a process group, to which its
    children belong.

    Args:
        kind: a key of `radixrt.engine.endpoints.NAMES`, with a rank for one of several runners.
        replica: number of the replica that the worker belongs to, if there are replicas.
        early: the worker, a ModelRunner on a CPU, imports torch before it reads its settings.

    The worker waits for its settings, which the caller sends with `tell`.
    """

    is_local = True

    def __init__(self, kind: str, replica: int | None = None, *, early: bool = False) -> None:
        self.kind = kind
        self.name = process_name(kind, replica)
        environment = without_openmp_bindings(os.environ)
        if not is_runner(kind):
            environment.setdefault("TOKENIZERS_PARALLELISM", "false")
        if sys.stderr.isatty():
            environment.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))  # for progress bars
        self._process = subprocess.Popen(
            child_command("radixrt.engine.process", kind),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            process_group=0,
        )
        self.exit_descriptor = exit_descriptor(self._process)
        self._tail = b""
        self._reader = threading.Thread(target=self._pass_stderr, name=f"radixrt-stderr-{kind}", daemon=True)
        self._reader.start()
        if early:
            self.tell({"early": True})

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_dead(self) -> bool:
        return self._process.poll() is not None

    @property
    def was_signalled(self) -> bool:
        """True if the process is dead because of a signal."""
        return (self._process.poll() or 0) < 0

    def tell(self, message: dict[str, Any]) -> None:
        """Write a line of JSON to the worker's stdin. Do nothing if the worker is dead."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def ask_to_exit(self) -> None:
        """Close the worker's stdin, which ends it."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.close()

    def kill(self) -> None:
        """Kill the process, if it is alive, and wait for its end.

        Raises:
            EngineError: the process does not end within `KILL_TIMEOUT_S`, because a driver keeps it in the kernel.
        """
        self._process.kill()
        self.reap(KILL_TIMEOUT_S)

    def reap(self, timeout_s: float) -> None:
        """Wait until the process has ended.

        Raises:
            EngineError: the process is alive after timeout_s seconds.
        """
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise EngineError(f"the {self.name} process (pid {self.pid}) does not end") from None

    def close(self) -> None:
        """Close the pipes to a dead process, and end the process's children."""
        end_group(self.pid, CHILDREN_WAIT_S)
        self.ask_to_exit()
        assert self._process.stdout is not None
        self._process.stdout.close()
        with contextlib.suppress(OSError):
            os.close(self.exit_descriptor)

    def describe_exit(self) -> str:
        """Describe how the dead process ended, including the error that the process reported on stdout."""
        code = self._process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        said = f": {self._reported}" if self._reported else ""
        return f"the {self.name} process (pid {self.pid}) {how}{said}"

    @property
    def mistake(self) -> str:
        """Error of the dead process if an option or the model is at fault; else ""."""
        return self._reported if self._process.returncode == MISTAKE else ""

    @cached_property
    def _reported(self) -> str:
        """Error that the dead process reported on stdout."""
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            line = self._process.stdout.readline()
            return str(json.loads(line)) if line else ""
        return ""

    def last_lines(self) -> str:
        """Return the last lines of the dead process's stderr, joined into one line."""
        self._reader.join(TAIL_WAIT_S)  # the pipe may stay open: children of the process have it too
        lines = self._tail.decode(errors="replace").replace("\r", "\n").splitlines()
        return " | ".join([line.strip() for line in lines if line.strip()][-TAIL_LINES:])

    def _pass_stderr(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            while piece := os.read(stderr.fileno(), TAIL_BYTES):
                self._tail = (self._tail + piece)[-TAIL_BYTES:]
                with contextlib.suppress(OSError):
                    while piece:
                        piece = piece[os.write(2, piece) :]
