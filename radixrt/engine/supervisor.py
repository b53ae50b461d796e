"""`Supervisor`: the thread that starts the worker processes of one group, watches them, and starts them anew.

A group is an engine, or, where there are replicas, one replica (scheduler and ModelRunners), or what they share
(tokenizer and router).

A worker fails by ending, or by hanging, which `Watchdog` decides from its heartbeat; a worker that hangs is killed.
`RestartPolicy` decides what follows. Each restart begins an *epoch*: its processes have endpoints of their own, because
ZMQ would deliver what is queued for a dead process to its successor. Old processes are dead before new ones start.

- ModelRunners fail: all ranks are killed and started anew with as many KV slots as before, and the scheduler, which
  learns of it by `RunnerRestarted`, resumes every request.
- The tokenizer or the scheduler fails: both are started anew, and open requests end with an error. The ModelRunners go
  on living: they connect to the new scheduler. The same for the tokenizer and the router; and for the scheduler of a
  replica, whose requests the router gives to others.

The kernel kills a worker when the thread that started it ends, so all of them are started by this thread.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import zmq

from radixrt.channel import TaggedOutbox, ZmqInbox, ZmqOutbox
from radixrt.config import Config, config_to_dict
from radixrt.engine.endpoints import Endpoints, is_runner
from radixrt.engine.process_group import Owner, ProcessGroup
from radixrt.engine.restarts import ExitCode, Plan, RestartPolicy
from radixrt.engine.settings import EngineSettings
from radixrt.engine.watchdog import SAMPLE_INTERVAL_S, Watchdog
from radixrt.engine.worker_process import WorkerProcess
from radixrt.errors import EngineError
from radixrt.heartbeat import HeartbeatFile
from radixrt.memory_file import MemoryFile
from radixrt.messages.client import EngineReady, ToTokenizer
from radixrt.messages.scheduler import RunnerRestarted, SchedulerReady
from radixrt.os_process import read_stat

if TYPE_CHECKING:
    from radixrt.engine.cluster.ray_ranks import RemoteRank

logger = logging.getLogger(__name__)

RECEIVE_WAIT_S = 0.1
STOP_TIMEOUT_S = 3.0
SETTLE_S = 0.05
"""Seconds within which processes that fail for the same reason end."""


@dataclass(frozen=True)
class Failure:
    """Workers that failed together.

    Attributes:
        kinds: of the workers.
        reason: which of them failed first and how, for clients and the log.
        output: its last lines of stderr, on one line.
    """

    kinds: tuple[str, ...]
    reason: str
    output: str


class Receiver:
    """A thread that delivers what the processes of one epoch send to main."""

    def __init__(self, inbox: ZmqInbox[Any], owner: Owner) -> None:
        self._inbox = inbox
        self._owner = owner
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="radixrt-receive", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the inbox; what is in it is lost."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._inbox.recv(RECEIVE_WAIT_S)
            if message is not None:
                self._owner.dispatch(message)
        self._inbox.close()


class Supervisor:
    """Worker processes of one group; see the module's docstring.

    Args:
        context: for the sockets of the main process.
        owner: learns of every failure and restart; it has an outbox of epoch 0 already.
        on_epoch: called with the epoch when the core is started anew, once messages can be sent to it.

    Attributes:
        core_epoch: epoch in which the core was started.
        exit_code: exit code for a server whose engine has failed; None until then.

    Raises:
        OSError: the temporary folder is full.
    """

    def __init__(
        self,
        config: Config,
        settings: EngineSettings,
        group: ProcessGroup,
        context: zmq.Context[Any],
        owner: Owner,
        on_epoch: Callable[[int], None] | None = None,
    ) -> None:
        self._config = config
        self._settings = settings
        self._group = group
        self._endpoints = Endpoints(group.folder)
        self._context = context
        self._kinds = group.kinds
        self._policy = RestartPolicy(
            self._kinds,
            external=config.executor.executor == "external",
            max_restarts=config.recovery.max_restarts,
            window_s=config.recovery.restart_window_s,
            replica=group.replica,
        )
        # The router fences a replica whose scheduler is stopped, and which may go on later. Nobody stands in for any
        # other process: the scheduler of a stopped ModelRunner is heard, and its requests would wait.
        self._watchdog = Watchdog({} if group.replica is None else {"scheduler": config.recovery.hang_timeout_s})
        self._memory = [MemoryFile(path) for path in (self._endpoints.heartbeats, self._endpoints.masks)]
        self._heartbeats = HeartbeatFile(self._endpoints.heartbeats, len(self._kinds))
        self._workers: dict[str, WorkerProcess | RemoteRank] = {}
        self._epoch = 0
        self.core_epoch = 0
        self._owner = owner
        self._on_epoch = on_epoch
        self._core_lock = threading.Lock()
        self._connect()
        self._down_since: float | None = None
        self.exit_code: ExitCode | None = None
        self._stopping = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="radixrt-supervisor", daemon=True)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by process name."""
        return {worker.name: worker.pid for worker in list(self._workers.values())}

    @property
    def folder(self) -> str:
        """Private folder of the group."""
        return self._group.folder

    def start(self) -> None:
        """Start the thread, and with it the workers; the owner learns of the result."""
        self._thread.start()

    def send(self, message: Any) -> None:
        """Send a message to the core, unless it is about to be started anew; any thread may call it."""
        with self._core_lock:
            if not self._to_core.socket.closed:
                self._to_core.send(message)

    def begin_stop(self) -> None:
        """Make the thread end; `stop` waits for it."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Stop the workers and the thread, and close the sockets. Call once."""
        self.begin_stop()
        if self._thread.ident is not None:
            self._thread.join()
        self._receiver.stop()
        self._to_core.close()
        self._owner.close()
        for file in self._memory:
            file.close()
        os.close(self._wake)

    # --- the thread ---

    def _run(self) -> None:
        try:
            self._spawn(self._kinds)
            while not self._stopping and self.exit_code is None:
                self._wait()
                failure = self._find_failure()
                if failure is not None and not self._stopping:
                    self._react(failure)
                elif self._down_since is not None and self._owner.status.state == "serving":
                    who = "" if self._group.replica is None else f"replica {self._group.replica} is "
                    logger.warning("%sserving again after %.1f s", who, time.monotonic() - self._down_since)
                    self._down_since = None
        except Exception as error:
            logger.exception("the supervision of the worker processes failed")
            self._give_up(f"the engine's processes cannot be supervised: {error}", ExitCode.FAILED)
        finally:
            self._stop_workers()

    def _wait(self) -> None:
        """Wait until a worker ends, `stop` is called or the heartbeats are due."""
        poller = select.poll()
        for descriptor in (self._wake, *(worker.pidfd for worker in self._workers.values())):
            poller.register(descriptor, select.POLLIN)
        poller.poll(SAMPLE_INTERVAL_S * 1000)

    def _find_failure(self) -> Failure | None:
        if any(worker.is_dead for worker in self._workers.values()):
            time.sleep(SETTLE_S)
            dead = [worker for worker in self._workers.values() if worker.is_dead]
            first = _root_cause(dead)
            return Failure(tuple(worker.kind for worker in dead), first.describe_exit(), first.last_lines())
        now = time.monotonic()
        for slot, worker in enumerate(self._workers[kind] for kind in self._kinds):
            if not worker.is_local:
                continue  # ZMQ's heartbeats watch it
            stat = read_stat(worker.pid)
            if stat is None or stat.state == "Z":
                continue  # it has just ended
            how = self._watchdog.observe(worker.kind, worker.pid, self._heartbeats.read(slot), stat, now)
            if how is not None:
                worker.kill()
                reason = f"the {worker.name} process (pid {worker.pid}) {how} and was killed"
                return Failure((worker.kind,), reason, worker.last_lines())
        return None

    # --- failures ---

    def _react(self, failure: Failure) -> None:
        info, requests = self._owner.info, self._owner.open_requests
        if info is None:
            self._give_up(failure.reason, ExitCode.FAILED)
            return
        serves = info.epoch >= self.core_epoch
        stats = self._owner.stats
        if stats is not None:
            self._policy.forgive(stats.killers)
        plan = self._policy.decide(failure.kinds, time.monotonic(), scheduler_serves=serves)
        fate = "waiting"
        if plan.ends_requests:
            fate = "ended with an error" if self._group.replica is None else "given to other replicas"
        output = f"; its last output: {failure.output}" if failure.output else ""
        logger.error("%s; %s; open requests %s: %d%s", failure.reason, plan.description, fate, requests, output)
        if plan.exit_code is not None:
            self._give_up(failure.reason, plan.exit_code)
        else:
            self._restart(plan, failure.reason, info)

    def _give_up(self, reason: str, code: ExitCode) -> None:
        self.exit_code = code
        self._owner.fail(reason)

    def _restart(self, plan: Plan, reason: str, info: EngineReady | SchedulerReady) -> None:
        self._down_since = self._down_since or time.monotonic()
        self._epoch += 1
        names = [self._workers[kind].name for kind in plan.restart]
        if plan.ends_requests:
            self._disconnect()
            self._owner.reconnect(reason, names, self._epoch, self._owner_outbox())
        else:
            self._owner.runners_restart(reason, names, self._epoch)
        for kind in plan.restart:
            self._workers[kind].kill()
        for kind in plan.restart:
            self._workers.pop(kind).close()
        if plan.ends_requests:
            self.core_epoch = self._epoch
            self._connect()
            if self._on_epoch is not None:
                self._on_epoch(self._epoch)
            for worker in self._workers.values():  # a ModelRunner that lives
                worker.tell({"epoch": self._epoch})
        else:
            self.send(RunnerRestarted(self._epoch, reason))
        self._spawn(plan.restart, info)

    # --- sockets of an epoch ---

    def _owner_outbox(self) -> ZmqOutbox[ToTokenizer]:
        return ZmqOutbox(self._context, self._endpoints.of(self._group.owner_kind, self._epoch))

    def _connect(self) -> None:
        # A scheduler behind a router reads frames with tags.
        kind: type[ZmqOutbox[Any]] = ZmqOutbox if self._group.replica is None else TaggedOutbox
        self._to_core = kind(self._context, self._endpoints.of(self._group.core, self._epoch))
        inbox: ZmqInbox[Any] = ZmqInbox(self._context, self._endpoints.of("main", self._epoch), self._group.messages)
        self._receiver = Receiver(inbox, self._owner)

    def _disconnect(self) -> None:
        with self._core_lock:
            self._to_core.close()
        self._receiver.stop()

    # --- workers ---

    def _spawn(self, kinds: tuple[str, ...], info: EngineReady | SchedulerReady | None = None) -> None:
        """Start workers.

        Args:
            info: sizes of the pools of new ModelRunners; None: as configured.
        """
        config = self._config
        if info is not None:
            cache = dataclasses.replace(
                config.cache, kv_cache_tokens=info.num_slots, num_states=info.num_states or config.cache.num_states
            )
            config = dataclasses.replace(config, cache=cache)
        if config.executor.executor == "ray" and (ranks := [kind for kind in kinds if is_runner(kind)]):
            from radixrt.engine.cluster.ray_ranks import start_ranks

            group = self._group
            self._workers.update(start_ranks(self._context, config, self._settings, group, ranks, self._epoch))
        for kind in kinds:
            if kind in self._workers:
                continue
            slot = self._kinds.index(kind)
            self._heartbeats.reset(slot, config.executor.start_timeout_s)
            given = {
                "config": config_to_dict(config if is_runner(kind) else self._config),
                "settings": self._settings.to_dict(),
                "folder": self._endpoints.folder,
                "epoch": self._epoch,
                "slot": slot,
                "replica": self._group.replica,
            }
            self._workers[kind] = WorkerProcess(kind, given, self._group.replica)

    def _stop_workers(self) -> None:
        for worker in self._workers.values():
            worker.ask_to_exit()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for worker in self._workers.values():
            try:
                worker.reap(max(0.0, deadline - time.monotonic()))
            except EngineError:
                worker.kill()
            worker.close()


def _root_cause(dead: list[WorkerProcess | RemoteRank]) -> WorkerProcess | RemoteRank:
    """Return the worker whose failure made the others fail.

    A rank fails without the other ranks, and the scheduler without a rank, so that several processes may end within
    moments: processes killed by a signal come first, then runners.
    """
    return min(dead, key=lambda worker: (not worker.was_signalled, not is_runner(worker.kind)))
