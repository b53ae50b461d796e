"""`Launcher`: the engine in worker processes, as the offline API and the server start it.

It owns what the processes share, the private folder and the ZMQ context; `Supervisor` owns the processes.
"""

from __future__ import annotations

import atexit
import tempfile
import threading
import time
from typing import Any

import zmq

from radixrt.client.engine_client import EngineClient
from radixrt.config import Config
from radixrt.engine.engine_folder import EngineFolder, remove_stale_folders
from radixrt.engine.restarts import ExitCode
from radixrt.engine.settings import EngineSettings
from radixrt.engine.supervisor import Supervisor
from radixrt.errors import EngineError


class Launcher:
    """Worker processes of one engine.

    Attributes:
        client: connection to the engine; usable once `start` has returned.

    Raises:
        EngineError: the temporary folder cannot be written.
    """

    def __init__(self, config: Config, settings: EngineSettings) -> None:
        self._start_timeout_s = config.executor.start_timeout_s
        try:
            remove_stale_folders()
            self._folder = EngineFolder()
            self._context: zmq.Context[Any] = zmq.Context()
            self._supervisor = Supervisor(config, settings, self._folder.path, self._context)
        except OSError as error:
            raise EngineError(
                f"cannot use the temporary folder {tempfile.gettempdir()}: {error}; make room, or set TMPDIR"
            ) from error
        self.client: EngineClient = self._supervisor.client
        self._close_lock = threading.Lock()
        self._closed = False

    @property
    def folder(self) -> str:
        """Path of the engine's private folder."""
        return self._folder.path

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by process name."""
        return self._supervisor.pids

    @property
    def exit_code(self) -> ExitCode | None:
        """Exit code for a server whose engine has failed; None while it works."""
        return self._supervisor.exit_code

    def start(self) -> EngineClient:
        """Start the workers and wait until the engine is ready.

        Raises:
            EngineError: a worker failed or the engine was not ready in time; everything is cleaned up.
        """
        atexit.register(self.close)
        try:
            self._supervisor.start()
            self._wait_ready()
        except BaseException:
            self.close()
            raise
        return self.client

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while not self.client.ready.wait(0.02):
            if self.client.failure is not None:
                raise EngineError(self.client.failure)
            if time.monotonic() > deadline:
                raise EngineError(f"not ready after {self._start_timeout_s:g} s (start_timeout_s)")

    def close(self) -> None:
        """Stop all processes and remove the folder. Open requests end with an error. Idempotent."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        self.client.fail("the engine was shut down")
        self._supervisor.stop()
        self._context.term()
        self._folder.remove()
        atexit.unregister(self.close)
