"""`Launcher`: starts an engine in worker processes, for the offline API and for the server.

The launcher owns the private folder and the ZMQ context of the engine. `Supervisor` owns the worker processes, and
`ReplicaSet` owns the supervisors of replicas.
"""

from __future__ import annotations

import atexit
import contextlib
import tempfile
import threading
import time
from typing import Any

import zmq

from radixrt.channel import ZmqOutbox
from radixrt.client.engine_client import EngineClient
from radixrt.config import Config
from radixrt.engine.cluster.local_cluster import LocalCluster, start_local_cluster
from radixrt.engine.endpoints import FRONT_KINDS, Endpoints, process_kinds
from radixrt.engine.engine_folder import EngineFolder, check_temporary_folder, remove_stale_folders
from radixrt.engine.process_group import ProcessGroup
from radixrt.engine.replica_set import ReplicaSet
from radixrt.engine.restarts import ExitCode
from radixrt.engine.settings import EngineSettings
from radixrt.engine.supervisor import Supervisor
from radixrt.engine.worker_process import WorkerProcess
from radixrt.errors import EngineError
from radixrt.messages.client import ToTokenizer
from radixrt.os_process import interrupts_deferred


class Launcher:
    """Worker processes of one engine.

    Attributes:
        client: connection to the engine, usable after `start` has returned.
        replicas: the engine's replicas; None for an engine without a router.

    Args:
        early: see `Supervisor`; of an engine without replicas.

    Raises:
        ConfigError: the name of the temporary folder is too long.
        EngineError: the temporary folder cannot be written, or a Ray cluster does not start.
    """

    def __init__(self, config: Config, settings: EngineSettings, early: dict[str, WorkerProcess] | None = None) -> None:
        self._start_timeout_s = config.executor.start_timeout_s
        self._num_replicas = config.executor.replicas
        self._exit_code: ExitCode | None = None
        self._close_lock = threading.Lock()
        self._closed = False
        self.replicas: ReplicaSet | None = None
        try:
            check_temporary_folder(has_replicas=self._num_replicas is not None)
            remove_stale_folders()
            self._folder = EngineFolder()
            self._context: zmq.Context[Any] = zmq.Context()
            outbox: ZmqOutbox[ToTokenizer] = ZmqOutbox(self._context, Endpoints(self.folder).of("tokenizer", 0))
            self.client = EngineClient(outbox, lambda: self.pids)
            self._cluster: LocalCluster | None = None
            if config.executor.executor == "ray" and config.executor.ray_address == "local":
                self._cluster, config = start_local_cluster(config, self.folder)
            with interrupts_deferred():
                self._supervisor = self._supervise(config, settings, early)
                atexit.register(self.close)  # from here on there are threads and sockets
        except OSError as error:
            raise EngineError(
                f"cannot use the temporary folder {tempfile.gettempdir()}: {error}; make room, or set TMPDIR"
            ) from error

    def _supervise(
        self, config: Config, settings: EngineSettings, early: dict[str, WorkerProcess] | None
    ) -> Supervisor:
        context, client = self._context, self.client
        if self._num_replicas is None:
            group = ProcessGroup(process_kinds(config, settings), self.folder)
            return Supervisor(config, settings, group, context, client, early=early)
        front = Supervisor(
            config,
            settings,
            ProcessGroup(FRONT_KINDS, self.folder, core="router"),
            context,
            client,
            lambda epoch: replicas.router_restarted(),
        )
        replicas = ReplicaSet(config, settings, self.folder, context, client, front.send, self._give_up)
        self.replicas = replicas
        return front

    def _give_up(self, reason: str) -> None:
        """End the engine, because no replica is left."""
        self._exit_code = ExitCode.RESTARTS_SPENT
        self.client.fail(reason)

    @property
    def folder(self) -> str:
        """Path of the engine's private folder."""
        return self._folder.path

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by process name."""
        return self._supervisor.pids | ({} if self.replicas is None else self.replicas.pids)

    @property
    def exit_code(self) -> ExitCode | None:
        """Exit code for a server whose engine has failed; None while the engine works."""
        return self._supervisor.exit_code or self._exit_code

    def start(self) -> EngineClient:
        """Start the workers and wait until the engine is ready.

        Raises:
            EngineError: a worker failed or the engine was not ready in time; everything is cleaned up.
        """
        try:
            with interrupts_deferred():
                self._supervisor.start()
            if self.replicas is not None:
                for _ in range(self._num_replicas or 0):
                    with interrupts_deferred():
                        self.replicas.add()
            self._wait_ready()
        except BaseException:
            self.close()
            raise
        return self.client

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while not (self.client.ready.wait(0.02) and (self.replicas is None or self.replicas.all_ready)):
            if self.client.failure is not None:
                raise EngineError(self.client.failure)
            if self.replicas is not None:
                self.replicas.check_started()
                time.sleep(0.02)
            if time.monotonic() > deadline:
                raise EngineError(f"not ready after {self._start_timeout_s:g} s (start_timeout_s)")

    def close(self, *, saves: bool = True) -> None:
        """Stop all processes and remove the folder. Open requests end with an error. Idempotent.

        Args:
            saves: prefixes are saved to disk first, for some seconds, which KeyboardInterrupt ends.
        """
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        # A second signal interrupts the saving and nothing else: everything is stopped as without one.
        with contextlib.suppress(KeyboardInterrupt):
            with interrupts_deferred():
                self.client.fail("the engine was shut down")
                groups = [self._supervisor, *([] if self.replicas is None else self.replicas.begin_close())]
                for group in groups if saves else ():
                    group.begin_stop()
            for group in groups if saves else ():
                group.wait_saved()
        with contextlib.suppress(KeyboardInterrupt), interrupts_deferred():
            for group in groups:
                group.stop_saving()
            self._supervisor.begin_stop()
            if self.replicas is not None:
                self.replicas.close()
            self._supervisor.stop()
            if self._cluster is not None:
                self._cluster.close()
            self._context.term()
            self._folder.remove()
            atexit.unregister(self.close)
