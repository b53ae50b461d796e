"""`Supervisor`: the thread that starts the worker processes of one engine, watches them, and starts them anew.

A worker fails by ending, or by hanging, which `Watchdog` decides from its heartbeat; a worker that hangs is killed.
`RestartPolicy` decides what follows. Each restart begins an *epoch*: its processes have endpoints of their own, because
ZMQ would deliver what is queued for a dead process to its successor. Old processes are dead before new ones start.

- ModelRunners fail: all ranks are killed and started anew with as many KV slots as before, and the scheduler, which
  learns of it by `RunnerRestarted`, resumes every request.
- The tokenizer or the scheduler fails: both are started anew, and open requests end with an error. The ModelRunners go
  on living: they connect to the new scheduler.

The kernel kills a worker when the thread that started it ends, so all of them are started by this thread.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import select
import threading
import time
from dataclasses import dataclass
from typing import Any

import zmq

from radixrt.channel import ZmqInbox, ZmqOutbox
from radixrt.client.engine_client import EngineClient
from radixrt.config import Config, config_to_dict
from radixrt.engine.endpoints import Endpoints, is_runner, process_kinds
from radixrt.engine.restarts import ExitCode, Plan, RestartPolicy
from radixrt.engine.settings import EngineSettings
from radixrt.engine.watchdog import SAMPLE_INTERVAL_S, Watchdog
from radixrt.engine.worker_process import WorkerProcess
from radixrt.errors import EngineError
from radixrt.heartbeat import HeartbeatFile
from radixrt.messages.client import EngineReady, ToMain, ToTokenizer
from radixrt.messages.scheduler import RunnerRestarted, ToScheduler
from radixrt.os_process import read_stat

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
    """A thread that delivers what the tokenizer of one epoch sends."""

    def __init__(self, inbox: ZmqInbox[ToMain], client: EngineClient) -> None:
        self._inbox = inbox
        self._client = client
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
                self._client.dispatch(message)
        self._inbox.close()


class Supervisor:
    """Worker processes of one engine; see the module's docstring.

    Args:
        context: for the sockets of the main process.
        folder: private folder of the engine.
        client: learns of every failure and restart.

    Attributes:
        client: the engine's client, which sends to the tokenizer of the current epoch.
        exit_code: exit code for a server whose engine has failed; None until then.

    Raises:
        OSError: the temporary folder is full.
    """

    def __init__(self, config: Config, settings: EngineSettings, folder: str, context: zmq.Context[Any]) -> None:
        self._config = config
        self._settings = settings
        self._endpoints = Endpoints(folder)
        self._context = context
        self._kinds = process_kinds(config, settings)
        self._policy = RestartPolicy(
            self._kinds,
            external=config.executor.executor == "external",
            max_restarts=config.recovery.max_restarts,
            window_s=config.recovery.restart_window_s,
        )
        self._watchdog = Watchdog()
        self._heartbeats = HeartbeatFile(self._endpoints.heartbeats, len(self._kinds))
        self._workers: dict[str, WorkerProcess] = {}
        self._epoch = 0
        self._scheduler_epoch = 0  # in which the tokenizer and the scheduler were started
        self.client = EngineClient(self._tokenizer_outbox(), lambda: self.pids)
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

    def start(self) -> None:
        """Start the thread, and with it the workers; `client.ready` or `client.failure` tell the result."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the workers and the thread, and close the sockets. Call once."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join()
        self._receiver.stop()
        self._to_scheduler.close()
        self.client.close()
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
                elif self._down_since is not None and self.client.status.state == "serving":
                    logger.warning("serving again after %.1f s", time.monotonic() - self._down_since)
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
        info, requests = self.client.info, self.client.open_requests
        if info is None:
            self._give_up(failure.reason, ExitCode.FAILED)
            return
        serves = info.epoch >= self._scheduler_epoch
        if self.client.stats is not None:
            self._policy.forgive(self.client.stats.killers)
        plan = self._policy.decide(failure.kinds, time.monotonic(), scheduler_serves=serves)
        fate = "ended with an error" if plan.ends_requests else "waiting"
        output = f"; its last output: {failure.output}" if failure.output else ""
        logger.error("%s; %s; open requests %s: %d%s", failure.reason, plan.description, fate, requests, output)
        if plan.exit_code is not None:
            self._give_up(failure.reason, plan.exit_code)
        else:
            self._restart(plan, failure.reason, info)

    def _give_up(self, reason: str, code: ExitCode) -> None:
        self.exit_code = code
        self.client.fail(reason)

    def _restart(self, plan: Plan, reason: str, info: EngineReady) -> None:
        self._down_since = self._down_since or time.monotonic()
        self._epoch += 1
        names = [self._workers[kind].name for kind in plan.restart]
        if plan.ends_requests:
            self._disconnect()
            self.client.reconnect(reason, names, self._epoch, self._tokenizer_outbox())
        else:
            self.client.runners_restart(reason, names, self._epoch)
        for kind in plan.restart:
            self._workers[kind].kill()
        for kind in plan.restart:
            self._workers.pop(kind).close()
        if plan.ends_requests:
            self._scheduler_epoch = self._epoch
            self._connect()
            for worker in self._workers.values():  # a ModelRunner that lives
                worker.tell({"epoch": self._epoch})
        else:
            self._to_scheduler.send(RunnerRestarted(self._epoch, reason))
        self._spawn(plan.restart, info)

    # --- sockets of an epoch ---

    def _tokenizer_outbox(self) -> ZmqOutbox[ToTokenizer]:
        return ZmqOutbox(self._context, self._endpoints.of("tokenizer", self._epoch))

    def _connect(self) -> None:
        to_scheduler: ZmqOutbox[ToScheduler] = ZmqOutbox(self._context, self._endpoints.of("scheduler", self._epoch))
        self._to_scheduler = to_scheduler
        self._receiver = Receiver(ZmqInbox(self._context, self._endpoints.of("main", self._epoch), ToMain), self.client)

    def _disconnect(self) -> None:
        self._to_scheduler.close()
        self._receiver.stop()

    # --- workers ---

    def _spawn(self, kinds: tuple[str, ...], info: EngineReady | None = None) -> None:
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
        for kind in kinds:
            slot = self._kinds.index(kind)
            self._heartbeats.reset(slot, config.executor.start_timeout_s)
            given = {
                "config": config_to_dict(config if is_runner(kind) else self._config),
                "settings": self._settings.to_dict(),
                "folder": self._endpoints.folder,
                "epoch": self._epoch,
                "slot": slot,
            }
            self._workers[kind] = WorkerProcess(kind, given)

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


def _root_cause(dead: list[WorkerProcess]) -> WorkerProcess:
    """Return the worker whose failure made the others fail.

    A rank fails without the other ranks, and the scheduler without a rank, so that several processes may end within
    moments: processes killed by a signal come first, then runners.
    """
    return min(dead, key=lambda worker: (not worker.was_signalled, not is_runner(worker.kind)))
