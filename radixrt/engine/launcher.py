"""`Launcher`: starts, supervises and stops the worker processes of one engine.

The main process holds a pipe to each worker's stdin (closing it ends the worker), a private folder with the sockets,
a thread that receives messages and a thread that watches the workers. If a worker dies, the engine has failed: every
open request ends with an error that names the process, and the other workers are stopped.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import zmq

from radixrt.channel import ZmqInbox, ZmqOutbox
from radixrt.client.engine_client import EngineClient
from radixrt.config import Config, config_to_dict
from radixrt.engine.process import Endpoints, process_kinds, process_name
from radixrt.engine.settings import EngineSettings
from radixrt.errors import EngineError
from radixrt.messages.client import ToMain, ToTokenizer

WATCH_INTERVAL_S = 0.1
STOP_TIMEOUT_S = 3.0
SETTLE_S = 0.05
"""Seconds within which processes that fail for the same reason exit."""


class Launcher:
    """Worker processes of one engine.

    Attributes:
        client: connection to the engine; usable once `start` has returned.
        pids: process ids by process name.
    """

    def __init__(self, config: Config, settings: EngineSettings) -> None:
        self._config = config
        self._settings = settings
        self._folder = tempfile.mkdtemp(prefix="radixrt-")  # mode 0700, random name
        self._context: zmq.Context[Any] = zmq.Context()
        endpoints = Endpoints(self._folder)
        self._inbox: ZmqInbox[ToMain] = ZmqInbox(self._context, endpoints.of("main"), ToMain)
        outbox: ZmqOutbox[ToTokenizer] = ZmqOutbox(self._context, endpoints.of("tokenizer"))
        self._outbox = outbox
        self.client = EngineClient(outbox)
        self._workers: dict[str, subprocess.Popen[str]] = {}
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._close_lock = threading.Lock()
        self._closed = False

    @property
    def pids(self) -> dict[str, int]:
        return {process_name(kind): worker.pid for kind, worker in self._workers.items()}

    def start(self) -> EngineClient:
        """Start the workers and wait until the engine is ready.

        Raises:
            EngineError: a worker failed or the engine was not ready in time; everything is cleaned up.
        """
        atexit.register(self.close)
        try:
            for kind in process_kinds(self._config, self._settings):
                self._workers[kind] = self._spawn(kind)
            for target in (self._receive, self._watch):
                thread = threading.Thread(target=target, name=f"radixrt-{target.__name__.strip('_')}", daemon=True)
                thread.start()
                self._threads.append(thread)
            self._wait_ready()
        except BaseException:
            self.close()
            raise
        return self.client

    def _spawn(self, kind: str) -> subprocess.Popen[str]:
        environment = dict(os.environ)
        if not kind.startswith("runner"):
            environment.setdefault("TOKENIZERS_PARALLELISM", "false")
        worker = subprocess.Popen(
            [sys.executable, "-m", "radixrt.engine.process", kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert worker.stdin is not None
        given = {
            "config": config_to_dict(self._config),
            "settings": self._settings.to_dict(),
            "folder": self._folder,
            "epoch": 0,
        }
        with contextlib.suppress(BrokenPipeError):  # the worker exited at once; the watcher reports it
            worker.stdin.write(json.dumps(given) + "\n")
            worker.stdin.flush()
        return worker

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + self._config.executor.start_timeout_s
        while not self.client.ready.wait(0.02):
            if self.client.failure is not None:
                raise EngineError(self.client.failure)
            if time.monotonic() > deadline:
                raise EngineError(f"not ready after {self._config.executor.start_timeout_s:g} s (start_timeout_s)")

    # --- threads ---

    def _receive(self) -> None:
        while not self._stopping.is_set():
            message = self._inbox.recv(WATCH_INTERVAL_S)
            if message is not None:
                self.client.dispatch(message)

    def _watch(self) -> None:
        while not self._stopping.wait(WATCH_INTERVAL_S):
            if any(worker.poll() is not None for worker in self._workers.values()):
                self.client.fail(self._first_dead())
                self._stop_workers()
                return

    def _first_dead(self) -> str:
        """Describe the process whose failure made the others fail.

        A rank fails without the other ranks, and the scheduler without a rank, so that several processes may exit
        within moments: runners and processes killed by a signal come first.
        """
        time.sleep(SETTLE_S)
        dead = {kind: worker for kind, worker in self._workers.items() if worker.poll() is not None}
        runners = {kind: worker for kind, worker in dead.items() if kind.startswith("runner")}
        ordered = [*runners.items(), *dead.items()]
        kind, worker = min(ordered, key=lambda item: item[1].returncode >= 0)
        return _describe_exit(kind, worker)

    # --- shutdown ---

    def close(self) -> None:
        """Stop all processes and remove the socket folder. Open requests end with an error. Idempotent."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        self._stopping.set()
        self.client.fail("the engine was shut down")
        self._stop_workers()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._inbox.close()
        self._outbox.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)
        atexit.unregister(self.close)

    def _stop_workers(self) -> None:
        for worker in self._workers.values():
            for pipe in (worker.stdin, worker.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError, ValueError):
                        pipe.close()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for worker in self._workers.values():
            try:
                worker.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


def _describe_exit(kind: str, worker: subprocess.Popen[str]) -> str:
    """Describe how a process exited, with the error that it reported."""
    said = ""
    if worker.stdout is not None:
        with contextlib.suppress(OSError, ValueError):
            line = worker.stdout.readline()
            said = f": {json.loads(line)}" if line else ""
    code = worker.returncode
    how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    return f"the {process_name(kind)} process (pid {worker.pid}) {how}{said}"
