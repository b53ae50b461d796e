"""Processes of compile workers, as their client sees them: a fork server, and the workers forked from it.

A fork server (`radixrt.constrained.compile.worker`) loads the vocabulary once, which takes a second of a core. A worker
is forked from it within milliseconds, so that a worker whose constraint is hard to compile is replaced at once.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
from dataclasses import dataclass, field

import msgspec

from radixrt.constrained.compile.job_queue import Job
from radixrt.constrained.compile.protocol import FrameReader, frame
from radixrt.messages.parts import FinishError
from radixrt.os_process import child_command

MAX_FAILURE_BYTES = 1 << 16


class ForkServer:
    """A fork server that starts. The server ends with this process, and its workers end with the server.

    Attributes:
        failure: why the server could not start, if it has said so.
        has_served: a worker has become ready.
    """

    def __init__(self, module: str, settings: bytes, now: float) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(child_command(module), stdin=theirs.fileno())
        self._socket.sendall(frame(settings))
        self._socket.setblocking(False)
        self.started = now
        self.failure: FinishError | None = None
        self.has_served = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def fork(self) -> Worker | None:
        """Ask for another worker, which reports when it is ready; return None if the server has ended."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            try:
                socket.send_fds(self._socket, [b"+"], [theirs.fileno()])
            except OSError:
                ours.close()
                return None
        return Worker(ours)

    def has_ended(self) -> bool:
        """Read what the server has written; return True if the server has ended."""
        data = b""
        for _ in range(2):  # a server that left data unread is an error first, and then what it has written
            try:
                data = self._socket.recv(MAX_FAILURE_BYTES)
                break
            except BlockingIOError:
                return False
            except OSError:
                continue
        if data:
            with contextlib.suppress(msgspec.MsgspecError):
                self.failure = msgspec.msgpack.decode(data, type=FinishError)
        return not data

    def continue_if_stopped(self) -> None:
        """Continue a server that somebody has stopped by a signal."""
        # Without `waitid` (macOS before Python 3.13) a stopped server stays stopped. A server that is dead is found by
        # `has_ended`.
        with contextlib.suppress(ChildProcessError, AttributeError):
            if os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG) is not None:
                self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._socket.close()
        with contextlib.suppress(OSError):
            self.process.kill()


@dataclass(eq=False)
class Worker:
    """A worker and its socket.

    Attributes:
        connection: non-blocking.
        pid: process id; 0 until the worker is ready.
        stopped: this process has stopped the worker by a signal.
        cpu_before: processor time of the process before its current job, in seconds.
    """

    connection: socket.socket
    pid: int = 0
    job: Job | None = None
    busy_since: float = 0.0
    cpu_before: float = 0.0
    stopped: bool = False
    unsent: bytes = b""
    _pidfd: int = -1
    _reader: FrameReader = field(default_factory=FrameReader)

    @property
    def is_free(self) -> bool:
        """The worker is ready for a job."""
        return self.job is None and self.pid != 0

    @property
    def events(self) -> int:
        """Events of `selectors` that the worker's socket waits for."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.unsent else 0)

    def fileno(self) -> int:
        return self.connection.fileno()

    def become_ready(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError, AttributeError):  # of a pid alone on other systems than Linux
            self._pidfd = os.pidfd_open(pid)
        self.pid = pid

    def send(self, data: bytes) -> None:
        """Send a frame; the rest of it waits in `unsent` for `flush`."""
        self.unsent += frame(data)
        self.flush()

    def flush(self) -> None:
        try:
            self.unsent = self.unsent[self.connection.send(self.unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # the worker is dead, which `receive` finds
            self.unsent = b""

    def receive(self) -> list[bytes] | None:
        """Return the frames that have arrived; None if the worker has ended."""
        frames: list[bytes] = []
        while True:
            try:
                piece = self.connection.recv(1 << 20)
            except BlockingIOError:
                return frames
            except OSError:
                return None
            if not piece:
                return frames or None
            frames += self._reader.feed(piece)

    def stop(self, stop: bool) -> None:
        """Stop or continue the process by a signal."""
        self.stopped = stop
        self.send_signal(signal.SIGSTOP if stop else signal.SIGCONT)

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, number)
            elif self.pid and not hasattr(os, "pidfd_open"):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process; one that is not ready yet ends when it finds its socket closed."""
        self.send_signal(signal.SIGKILL)
        self.connection.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
