"""`ReplicaSet`: adds, drains and removes the replicas of an engine, and announces every change to the router.

Each replica is a group of processes with its own supervisor, folder and number. The replica's scheduler reports to the
main process when the replica is ready. The main process alone decides which replicas the router has, and announces all
of them again after a restart of the router.

Two numbers tell old messages from new. The *epoch* counts the restarts within a replica's supervisor. The *life* counts
the schedulers of all replicas: each start of a scheduler begins a life, and no two replicas have a life in common.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import zmq

from radixrt.channel import Outbox
from radixrt.client.engine_client import EngineClient, EngineStatus
from radixrt.config import Config
from radixrt.config.roles import Role, parse_roles
from radixrt.engine.endpoints import Endpoints, replica_kinds
from radixrt.engine.process_group import ProcessGroup
from radixrt.engine.settings import EngineSettings
from radixrt.engine.supervisor import Supervisor
from radixrt.errors import EngineError, RequestError
from radixrt.messages.client import ToTokenizer
from radixrt.messages.fleet import ReplicaNotice, ReplicaStats
from radixrt.messages.scheduler import SchedulerReady
from radixrt.messages.scheduler_stats import SchedulerStats

logger = logging.getLogger(__name__)

POLL_S = 0.05
HAND_OVER_S = 10.0
"""Longest time in which the prefixes of a replica that is removed are copied by other replicas."""

State = Literal["starting", "serving", "restarting", "draining", "drained", "fenced", "failed"]


@dataclass(frozen=True)
class ReplicaStatus:
    """State of one replica, for operators.

    Attributes:
        state: "drained": no new requests, and none is left; "fenced": the router has heard nothing for
            `replica_stall_s`, and treats the replica as dead until the next message.
        reason: why the replica is restarting or has failed.
        pids: process ids by process name.
        stats: the latest report; None before the first.
        role: the work that the router gives to the replica.
    """

    replica: int
    state: State
    reason: str
    pids: dict[str, int]
    stats: ReplicaStats | None
    role: Role = "both"


class _Replica:
    """A replica in the main process; the `Owner` of the replica's processes.

    Attributes:
        life: current life of the scheduler; see the module's docstring.
        info: sizes of the pools; None until the replica was ready for the first time.
        is_up: the scheduler has been ready in this life.
        has_runner: the ModelRunner has been ready in this life, and is not restarting.
        is_draining: the router sends no new requests.
    """

    def __init__(self, replicas: ReplicaSet, number: int, life: int) -> None:
        self._replicas = replicas
        self.number = number
        self.life = life
        self.info: SchedulerReady | None = None
        self.status = EngineStatus("starting")
        self.is_up = self.has_runner = self.is_draining = False
        self.epoch = 0
        self.supervisor: Supervisor

    @property
    def latest(self) -> ReplicaStats | None:
        return self._replicas.client.replica_stats.get(self.number)

    @property
    def stats(self) -> SchedulerStats | None:
        latest = self.latest
        return None if latest is None else latest.stats

    @property
    def open_requests(self) -> int:
        latest = self.latest
        return 0 if latest is None else latest.view.open

    def dispatch(self, message: SchedulerReady) -> None:
        self._replicas.ready(self, message)

    def runners_restart(self, reason: str, names: Iterable[str], epoch: int) -> None:
        self._replicas.runners_restart(self, reason, names, epoch)

    def reconnect(self, reason: str, names: Iterable[str], epoch: int, outbox: Outbox[ToTokenizer]) -> None:
        outbox.close()  # requests come from the router
        self._replicas.lost(self, EngineStatus("restarting", reason), names, epoch)

    def fail(self, reason: str) -> None:
        self._replicas.lost(self, EngineStatus("failed", reason), (), self.epoch)

    def close(self) -> None: ...


class ReplicaSet:
    """See the module's docstring. Any thread may call the methods.

    Args:
        folder: private folder of the engine; each replica gets a folder inside.
        tell: sends a notice to the router.
        give_up: called with the reason when all replicas have failed.

    Attributes:
        client: is informed of restarts, and has the latest reports of the replicas.
    """

    def __init__(
        self,
        config: Config,
        settings: EngineSettings,
        folder: str,
        context: zmq.Context[Any],
        client: EngineClient,
        tell: Callable[[ReplicaNotice], None],
        give_up: Callable[[str], None],
    ) -> None:
        self._config = config
        self._roles = parse_roles(config.executor.roles)
        self._settings = settings
        self._folder = folder
        self._context = context
        self.client = client
        self._tell = tell
        self._give_up = give_up
        self._lock = threading.RLock()
        self._replicas: dict[int, _Replica] = {}
        self._ending: set[int] = set()  # numbers of removed replicas whose processes may still use their devices
        self._lives = itertools.count(1)
        self._closing = False

    # --- operators ---

    def add(self) -> int:
        """Start a replica with the engine's options; return the smallest free number, which becomes the replica's. On
        CUDA, the number selects the replica's devices.

        Raises:
            EngineError: the engine is being closed, or the temporary folder is full.
        """
        with self._lock:
            if self._closing:
                raise EngineError("the engine is being shut down")
            taken = self._replicas.keys() | self._ending
            number = next(each for each in itertools.count() if each not in taken)
            replica = _Replica(self, number, next(self._lives))
            group = ProcessGroup(
                replica_kinds(self._config, self._settings),
                f"{self._folder}/r{number}.{replica.life}",
                owner_kind="scheduler",
                messages=SchedulerReady,
                replica=number,
            )
            try:
                os.mkdir(group.folder, 0o700)
                replica.supervisor = Supervisor(
                    _config_of(self._config, number), self._settings, group, self._context, replica
                )
            except OSError as error:
                raise EngineError(f"cannot use the temporary folder {group.folder}: {error}") from error
            self._replicas[number] = replica
            if self.client.info is not None:  # silent for the replicas with which the engine starts
                logger.info("replica %d is being started", number)
            replica.supervisor.start()  # under the lock: `close` must find a started supervisor, or no replica
        return number

    def drain(self, number: int, *, on: bool = True) -> None:
        """Stop sending new requests to a replica, or, with `on` False, resume.

        Raises:
            RequestError: there is no such replica, or no other replica takes requests.
        """
        with self._lock:
            replica = self._get(number)
            if on and not replica.is_draining:
                self._check_not_last(replica)
            if replica.is_draining != on:
                logger.info("replica %d %s", number, "gets no new requests" if on else "gets requests again")
            replica.is_draining = on
            self._notify(replica)

    def remove(self, number: int, timeout_s: float | None = None) -> None:
        """Drain a replica, wait until it has no open requests, let other replicas copy its prefixes, and stop its
        processes.

        Args:
            timeout_s: requests still open after this time move to other replicas; None: `request_timeout_s`, the
                timeout of requests that set none.

        Raises:
            RequestError: see `drain`.
        """
        self._finish_remove(self._drain_to_remove(number), timeout_s)

    def begin_remove(self, number: int, timeout_s: float | None = None) -> None:
        """Start `remove` in a separate thread, and return without waiting."""
        replica = self._drain_to_remove(number)
        threading.Thread(target=self._finish_remove, args=(replica, timeout_s), name="radixrt-remove").start()

    def _drain_to_remove(self, number: int) -> _Replica:
        with self._lock:
            replica = self._get(number)
            if replica.status.state != "failed":
                self.drain(number)
            return replica

    def _finish_remove(self, replica: _Replica, timeout_s: float | None) -> None:
        limit = self._config.scheduler.request_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline and not self._closing and not self._is_idle(replica):
            time.sleep(POLL_S)
        self._hand_over(replica)
        # The router moves the open requests as soon as the notice says that the replica is down; only then are the
        # processes stopped. The number stays taken until they are gone, because they may still use their devices.
        with self._lock:
            if self._closing or self._replicas.get(replica.number) is not replica:
                return  # another call removed the replica, or the engine is closed
            logger.info("replica %d is removed; its open requests: %d", replica.number, replica.open_requests)
            del self._replicas[replica.number]
            self._ending.add(replica.number)
            replica.is_up = False
            self._notify(replica)
            self.client.forget_replica(replica.number, replica.life)
        try:
            self._stop([replica])
        finally:
            self._ending.discard(replica.number)

    def _hand_over(self, replica: _Replica) -> None:
        """Let other replicas copy the prefixes of a replica that is removed."""
        if not self._config.cache.kv_host_gib or not replica.has_runner or not self._is_idle(replica):
            return
        with self._lock:
            self._notify(replica, leaves=True)
        deadline = time.monotonic() + HAND_OVER_S
        while time.monotonic() < deadline and not self._closing and replica.has_runner:
            if replica.latest is not None and replica.latest.view.has_handed_over:
                return
            time.sleep(POLL_S)

    def describe(self) -> list[ReplicaStatus]:
        """Return all replicas, by number."""
        with self._lock:
            return [self._status_of(replica) for _, replica in sorted(self._replicas.items())]

    def _status_of(self, replica: _Replica) -> ReplicaStatus:
        status, latest = replica.status, replica.latest
        state: State = status.state
        if status.state == "serving":
            if latest is not None and latest.view.state == "fenced":
                state = "fenced"
            elif replica.is_draining:
                state = "drained" if self._is_idle(replica) else "draining"
        pids = {} if state == "failed" else replica.supervisor.pids
        return ReplicaStatus(replica.number, state, status.reason, pids, latest, self._role_of(replica))

    def _role_of(self, replica: _Replica) -> Role:
        """Return the role of a replica; one that was added beyond the listed roles answers what it computes."""
        return self._roles[replica.number] if replica.number < len(self._roles) else "both"

    def _get(self, number: int) -> _Replica:
        replica = self._replicas.get(number)
        if replica is None:
            there = ", ".join(map(str, sorted(self._replicas)))
            raise RequestError(
                f"there is no replica {number}; the replicas are {there}", param="replica", code="not_found", status=404
            )
        return replica

    def _check_not_last(self, replica: _Replica) -> None:
        others = [each for each in self._replicas.values() if each is not replica]
        if not any(each.is_up and not each.is_draining for each in others):
            raise RequestError(
                f"replica {replica.number} is the last one that takes requests; add another one first",
                param="replica",
                code="last_replica",
                status=409,
            )

    @staticmethod
    def _is_idle(replica: _Replica) -> bool:
        latest = replica.latest
        if not replica.is_up or replica.status.state == "failed":
            return True
        return latest is not None and latest.view.state != "serving" and not latest.view.open and not latest.view.queued

    # --- for the launcher ---

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by process name."""
        with self._lock:
            replicas = [each for each in self._replicas.values() if each.status.state != "failed"]
        return {name: pid for replica in replicas for name, pid in replica.supervisor.pids.items()}

    @property
    def all_ready(self) -> bool:
        """Every replica is ready."""
        with self._lock:
            return all(replica.is_up for replica in self._replicas.values())

    def check_started(self) -> None:
        """Raise EngineError if a replica has failed."""
        with self._lock:
            for replica in self._replicas.values():
                if replica.status.state == "failed":
                    raise EngineError(replica.status.reason)

    def router_restarted(self) -> None:
        """Announce all replicas to a new router."""
        with self._lock:
            for replica in self._replicas.values():
                self._notify(replica)

    def begin_close(self) -> list[Supervisor]:
        """Add and remove no replica any more; return the supervisors of all."""
        with self._lock:
            self._closing = True
            return [replica.supervisor for replica in self._replicas.values()]

    def close(self) -> None:
        """Stop all replicas."""
        self.begin_close()
        with self._lock:
            replicas, self._replicas = list(self._replicas.values()), {}
        self._stop(replicas)

    @staticmethod
    def _stop(replicas: list[_Replica]) -> None:
        for replica in replicas:
            replica.supervisor.begin_stop()
        for replica in replicas:
            replica.supervisor.stop()
            with contextlib.suppress(OSError):
                shutil.rmtree(replica.supervisor.folder)

    # --- the supervisors' threads ---

    def ready(self, replica: _Replica, message: SchedulerReady) -> None:
        """Mark a replica as serving. Ignore messages from an earlier epoch, and from a replica that has failed."""
        with self._lock:
            if message.epoch != replica.epoch or replica.status.state == "failed":
                return
            replica.info, replica.status = message, EngineStatus("serving")
            replica.is_up = replica.has_runner = True
            self._notify(replica)

    def runners_restart(self, replica: _Replica, reason: str, names: Iterable[str], epoch: int) -> None:
        """Mark a replica whose ModelRunner restarts. The replica's requests wait there; the router sends new requests
        to other replicas."""
        with self._lock:
            replica.status, replica.epoch, replica.has_runner = EngineStatus("restarting", reason), epoch, False
            self.client.restarts.update(names)
            self._notify(replica)
            self._check_any(reason)

    def lost(self, replica: _Replica, status: EngineStatus, names: Iterable[str], epoch: int) -> None:
        """Mark a replica whose scheduler is dead. The router moves the replica's requests to other replicas."""
        with self._lock:
            replica.is_up = replica.has_runner = False
            self._notify(replica)
            self.client.restarts.update(names)
            self.client.forget_replica(replica.number, replica.life)
            # The notice above ends the old life. Messages of the next scheduler belong to the new life.
            replica.status, replica.epoch, replica.life = status, epoch, next(self._lives)
            if status.state == "failed" and self.client.info is not None:
                logger.error(
                    "replica %d has failed for good: %s; to replace it, remove it and add another one",
                    replica.number,
                    status.reason,
                )
            self._check_any(status.reason)

    def _check_any(self, reason: str) -> None:
        """Pause the client if no replica can serve, and give up if all replicas have failed."""
        replicas = self._replicas.values()
        if self._closing or any(each.is_up and each.has_runner for each in replicas):
            return
        if all(each.status.state == "failed" for each in replicas):
            self._give_up(reason)
        elif self.client.info is not None:
            self.client.pause(reason)

    def _notify(self, replica: _Replica, *, leaves: bool = False) -> None:
        """Send the state of a replica to the router, once the sizes of the replica's pools are known.

        Args:
            leaves: the replica hands its prefixes over.
        """
        if replica.info is None:
            return
        endpoint = Endpoints(replica.supervisor.folder).of("scheduler", replica.supervisor.core_epoch)
        takes_new = replica.has_runner and not replica.is_draining
        number, life, role = replica.number, replica.life, self._role_of(replica)
        self._tell(ReplicaNotice(number, life, replica.is_up, takes_new, endpoint, replica.info, leaves, role))


def _config_of(config: Config, number: int) -> Config:
    """Return the engine's options with a step trace file for this replica: steps.json becomes steps.1.json."""
    if config.executor.step_trace is None:
        return config
    path = Path(config.executor.step_trace)
    trace = str(path.with_name(f"{path.stem}.{number}{path.suffix}"))
    return dataclasses.replace(config, executor=dataclasses.replace(config.executor, step_trace=trace))
