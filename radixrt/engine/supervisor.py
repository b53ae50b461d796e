"""`Supervisor`: a thread that starts, watches and restarts the worker processes of a group.

A group is a whole engine; or, in an engine with replicas, the processes of a replica (scheduler and ModelRunners), or
the processes that all replicas share (tokenizer and router).

A worker fails by ending, or by hanging. `Watchdog` recognizes a hanging worker from the heartbeat, and the supervisor
kills the worker. `RestartPolicy` decides which processes to restart. Each restart begins an *epoch*. The sockets of an
epoch have their own endpoints, because ZMQ would deliver messages queued for a dead process to its successor. All
processes to be restarted are dead before the first new process starts.

- A ModelRunner fails: all ranks are killed and restarted with as many KV slots as before. `RunnerRestarted` informs the
  scheduler, which resumes every request.
- The tokenizer or the scheduler fails: both are restarted, and open requests end with an error. The ModelRunners
  continue and connect to the new scheduler. The tokenizer and the router are restarted in the same way, and so is the
  scheduler of a replica, whose requests the router moves to other replicas.

The supervisor's thread starts the workers, because the kernel kills a worker when the starting thread ends. A
ModelRunner may have been started by the main thread before (`head_start`).
"""

from __future__ import annotations

import dataclasses
import logging
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
from radixrt.engine.tier_memory import SAVE_S, TierMemory, open_tiers
from radixrt.engine.watchdog import SAMPLE_INTERVAL_S, Watchdog
from radixrt.engine.worker_process import WorkerProcess
from radixrt.errors import EngineError
from radixrt.heartbeat import HeartbeatFile
from radixrt.memory_file import MemoryFile
from radixrt.messages.client import EngineReady, ToTokenizer
from radixrt.messages.scheduler import RunnerRestarted, SchedulerReady
from radixrt.os_process import read_stat
from radixrt.portable import Wake

if TYPE_CHECKING:
    from radixrt.engine.cluster.ray_ranks import RemoteRank

logger = logging.getLogger(__name__)

RECEIVE_WAIT_S = 0.1
STOP_TIMEOUT_S = 3.0
SAVE_NOTICE_S = 0.5
"""Time after which the log says that prefixes are being saved."""
SETTLE_S = 0.05
"""Seconds to wait after the first failure: processes that fail for the same reason end within this time."""


@dataclass(frozen=True)
class Failure:
    """Workers that failed together.

    Attributes:
        kinds: kinds of the workers.
        reason: which worker failed first and how, for clients and the log.
        output: last lines of that worker's stderr, joined into one line.
        mistake: that worker's error, if an option or the model is at fault; else "".
    """

    kinds: tuple[str, ...]
    reason: str
    output: str
    mistake: str = ""


class Receiver:
    """A thread that delivers the messages from an epoch's processes to the owner of the group."""

    def __init__(self, inbox: ZmqInbox[Any], owner: Owner) -> None:
        self._inbox = inbox
        self._owner = owner
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="radixrt-receive", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the inbox. Messages still in the inbox are lost."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._inbox.recv(RECEIVE_WAIT_S)
            if message is not None:
                self._owner.dispatch(message)
        self._inbox.close()


class Supervisor:
    """Supervises the worker processes of a group; see the module's docstring.

    The *core* of a group is the process that has the state of the requests: the scheduler, or the router.

    Args:
        context: ZMQ context for the sockets of the main process.
        owner: is informed of every failure and restart. The owner has an outbox for epoch 0 already.
        on_epoch: called with the new epoch after a restart of the core, as soon as messages can be sent to the core.
        early: workers by kind that were started before, which are taken out of it; see `head_start`.

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
        early: dict[str, WorkerProcess] | None = None,
    ) -> None:
        self._early = {} if early is None else early
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
        # A replica's scheduler that is stopped by a signal may continue later. It gets the full hang timeout, because
        # the router fences the replica meanwhile. No other process has such a replacement: while a ModelRunner is
        # stopped, its scheduler still responds, the router does not fence the replica, and the requests would wait.
        self._watchdog = Watchdog({} if group.replica is None else {"scheduler": config.recovery.hang_timeout_s})
        self._memory: list[MemoryFile | TierMemory] = [
            MemoryFile(path) for path in (self._endpoints.heartbeats, self._endpoints.masks)
        ]
        self._tiers = None
        if "scheduler" in self._kinds and (tiers := open_tiers(config, settings, self._endpoints, group.replica)):
            self._memory.append(tiers)
            self._tiers = tiers.settings
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
        self._wake, self._no_save = Wake(), Wake()
        self._saved = threading.Event()
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
        """Start the thread, which starts the workers. The owner is informed of the result."""
        self._thread.start()

    def send(self, message: Any) -> None:
        """Send a message to the core. During a restart of the core, the message is dropped. Any thread may call this
        method."""
        with self._core_lock:
            if not self._to_core.socket.closed:
                self._to_core.send(message)

    def begin_stop(self) -> None:
        """Make the thread end, after it has let the scheduler save prefixes to disk; `stop` waits for the thread."""
        self._stopping = True
        self._wake.set()

    def wait_saved(self) -> None:
        """Wait until a group that stops has saved its prefixes, at most SAVE_S. KeyboardInterrupt may end the wait."""
        if self._thread.ident is not None:
            self._saved.wait()

    def stop_saving(self) -> None:
        """Stop the group without saving, or without saving the rest."""
        self._no_save.set()

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
        self._wake.close()
        self._no_save.close()

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
            self._save()
            self._saved.set()
            self._stop_workers()

    def _wait(self) -> None:
        """Wait until a worker ends, `stop` is called or the heartbeats are due."""
        poller = select.poll()
        for descriptor in (self._wake.fileno(), *(worker.exit_descriptor for worker in self._workers.values())):
            poller.register(descriptor, select.POLLIN)
        poller.poll(SAMPLE_INTERVAL_S * 1000)

    def _find_failure(self) -> Failure | None:
        # Dead processes first. One failure often ends several processes, so wait for the rest before naming the cause.
        if any(worker.is_dead for worker in self._workers.values()):
            time.sleep(SETTLE_S)
            dead = [worker for worker in self._workers.values() if worker.is_dead]
            first = _root_cause(dead)
            kinds = tuple(worker.kind for worker in dead)
            return Failure(kinds, first.describe_exit(), first.last_lines(), first.mistake)
        # Then the heartbeats of living processes.
        now = time.monotonic()
        for slot, worker in enumerate(self._workers[kind] for kind in self._kinds):
            if not worker.is_local:
                continue  # ZMQ's heartbeats watch ranks on other machines
            stat = read_stat(worker.pid)
            if stat is None or stat.state == "Z":
                continue  # the process has just ended; the next round finds it
            how = self._watchdog.observe(worker.kind, worker.pid, self._heartbeats.read(slot), stat, now)
            if how is not None:
                worker.kill()
                reason = f"the {worker.name} process (pid {worker.pid}) {how} and was killed"
                return Failure((worker.kind,), reason, worker.last_lines())
        return None

    # --- failures ---

    def _react(self, failure: Failure) -> None:
        # A group that was never ready is not restarted: the cause is most likely the configuration.
        info, requests = self._owner.info, self._owner.open_requests
        if info is None:
            self._give_up(failure.mistake or failure.reason, ExitCode.FAILED)
            return
        serves = info.epoch >= self.core_epoch
        stats = self._owner.stats
        if stats is not None:
            self._policy.refund(stats.killers)
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
        # Inform the owner first, so that clients stop sending requests to processes that are about to be killed.
        if plan.ends_requests:
            self._disconnect()
            self._owner.reconnect(reason, names, self._epoch, self._owner_outbox())
        else:
            self._owner.runners_restart(reason, names, self._epoch)
        # Kill all processes before the first new one starts, because the new ones use the same devices and files.
        for kind in plan.restart:
            self._workers[kind].kill()
        for kind in plan.restart:
            self._workers.pop(kind).close()
        # Open the sockets of the new epoch, and inform the processes that continue.
        if plan.ends_requests:
            self.core_epoch = self._epoch
            self._connect()
            if self._on_epoch is not None:
                self._on_epoch(self._epoch)
            for worker in self._workers.values():  # ModelRunners that outlived the scheduler
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
        # New ModelRunners need pools of the old sizes: the scheduler's slots refer to them.
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
                "tiers": None if self._tiers is None else dataclasses.asdict(self._tiers),
            }
            worker = self._early.pop(kind, None) or WorkerProcess(kind, self._group.replica)
            self._workers[kind] = worker
            worker.tell(given)

    def _save(self) -> None:
        """Let the scheduler save prefixes to disk, until that is done or `stop_saving` is called."""
        scheduler = self._workers.get("scheduler")
        has_disk = self._tiers is not None and bool(self._tiers.disk)
        if scheduler is None or not has_disk or self.exit_code is not None or self._owner.info is None:
            return
        poller = select.poll()
        for descriptor in (scheduler.exit_descriptor, self._no_save.fileno()):
            poller.register(descriptor, select.POLLIN)
        if poller.poll(0):
            return
        scheduler.tell({"save_s": SAVE_S})
        if not poller.poll(SAVE_NOTICE_S * 1000):
            logger.info("prefixes are being saved to disk for at most %g s; a second signal ends that", SAVE_S)
            if any(descriptor == self._no_save.fileno() for descriptor, _ in poller.poll(SAVE_S * 1000)):
                logger.info("a signal has ended the saving; what is not on disk is computed again after a restart")

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
    """Return the worker whose failure most likely made the other workers fail.

    A rank cannot run without the other ranks, nor the scheduler without its ranks, so several processes may end within
    moments. Processes killed by a signal come first, then ModelRunners.
    """
    return min(dead, key=lambda worker: (not worker.was_signalled, not is_runner(worker.kind)))
