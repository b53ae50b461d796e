"""`RayRanks`: the supervisor's end of an epoch's ranks in a Ray cluster.

The supervisor knows that a rank has ended from the rank's agent, which reports exit code and last output, or because
the rank's connection to this process ended. Ray must run only until the ranks are connected. Then the ranks continue
without Ray, and only new ranks need it again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import zmq

from radixrt.config import Config, config_to_dict
from radixrt.engine.cluster.driver_process import DriverProcess
from radixrt.engine.cluster.lifeline import RankLines
from radixrt.engine.cluster.rank_process import RankSettings
from radixrt.engine.cluster.ray_driver import DriverSettings, Spawn
from radixrt.engine.endpoints import MISTAKE, Endpoints, process_name
from radixrt.engine.process_group import ProcessGroup
from radixrt.engine.settings import EngineSettings
from radixrt.errors import EngineError
from radixrt.portable import Wake

logger = logging.getLogger(__name__)

ADDRESS_POLL_MS = 20
REPORT_S = 0.3
"""Seconds that an agent has to report the end of a rank after the rank's connection has ended."""
KILL_TIMEOUT_S = 3.0


class RemoteRank:
    """A rank with the interface of `WorkerProcess`. The ranks of an epoch are started and killed together.

    Attributes:
        pid: process id on the rank's node; 0 until the rank has started.
        exit_descriptor: becomes readable when the rank is dead.
        address: address of the rank's node.
        lost_at: time at which the connection ended; None while it stands.
    """

    is_local = False

    def __init__(self, kind: str, replica: int | None, group: RayRanks) -> None:
        self.kind = kind
        self.name = process_name(kind, replica)
        self.pid = 0
        self._ended = Wake()
        self.exit_descriptor = self._ended.fileno()
        self.address = ""
        self.lost_at: float | None = None
        self._group = group
        self._exit: str | None = None
        self.mistake = ""
        self._signalled = False
        self._tail = ""

    @property
    def is_dead(self) -> bool:
        return self._exit is not None

    @property
    def was_signalled(self) -> bool:
        return self._signalled

    def end(self, how: str, *, signalled: bool = False, tail: str = "", mistake: str = "") -> None:
        """Record the end of the rank; the first record counts.

        Args:
            mistake: error of the rank, if an option or the model is at fault.
        """
        if self._exit is None:
            self._exit, self._signalled, self._tail, self.mistake = how, signalled, tail, mistake
            self._ended.set()

    def describe_exit(self) -> str:
        where = f" (pid {self.pid} on {self.address})" if self.pid else ""
        return f"the {self.name} process{where} {self._exit}"

    def last_lines(self) -> str:
        return " | ".join([line.strip() for line in self._tail.splitlines() if line.strip()][-5:])

    def tell(self, message: dict[str, Any]) -> None:
        """Have the rank connect to the scheduler of the message's epoch."""
        self._group.turn_to(message["epoch"])

    def ask_to_exit(self) -> None:
        self._group.ask_to_exit()

    def reap(self, timeout_s: float) -> None:
        self._group.reap(timeout_s)

    def kill(self) -> None:
        self._group.kill()

    def close(self) -> None:
        self._group.kill()
        with contextlib.suppress(OSError):
            self._ended.close()


class RayRanks:
    """See the module's docstring.

    Args:
        context: ZMQ context for the connections.
        config: options, with the sizes of the ranks' pools filled in.
        kinds: kind of each rank, in the order of the ranks.
        epoch: epoch of the scheduler to which the ranks connect first.
        replica: number of the replica that the ranks belong to, if there are replicas.

    Attributes:
        ranks: the ranks in the order of `kinds`.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        config: Config,
        settings: EngineSettings,
        endpoints: Endpoints,
        kinds: Sequence[str],
        epoch: int,
        replica: int | None,
    ) -> None:
        self._context = context
        self._config = config
        self._settings = settings
        self._endpoints = endpoints
        self.ranks = [RemoteRank(kind, replica, self) for kind in kinds]
        self._epoch: int | None = epoch  # epoch whose addresses are to be sent to the ranks; None when sent
        self._lines: RankLines | None = None
        self._driver: DriverProcess | None = DriverProcess(_driver_settings(config, settings, restarts=epoch > 0))
        self._process = self._driver
        self._wake = Wake()
        self._stopping = self._closed = False
        self._thread = threading.Thread(target=self._run, name="radixrt-cluster", daemon=True)
        self._thread.start()

    # --- from the supervisor's thread ---

    def turn_to(self, epoch: int) -> None:
        """Have the ranks connect to the scheduler of this epoch as soon as the scheduler listens."""
        self._epoch = epoch
        self._wake_up()

    def ask_to_exit(self) -> None:
        """End the ranks, without waiting."""
        self._stopping = True
        self._wake_up()

    def reap(self, timeout_s: float) -> None:
        """Wait until the ranks are gone.

        Raises:
            EngineError: the agents have not answered within timeout_s.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive() or not self._process.reap(timeout_s):
            raise EngineError("the agents of the Ray cluster do not answer")

    def kill(self) -> None:
        """End the ranks, wait, and close the descriptors. If the agents do not answer, the ranks end because their
        connections ended. Called for each rank; only the first call has an effect."""
        if self._closed:
            return
        self.ask_to_exit()
        with contextlib.suppress(EngineError):
            self.reap(KILL_TIMEOUT_S)
        self._process.kill()
        if not self._thread.is_alive():  # a living thread still polls these descriptors
            self._closed = True
            self._process.close()
            self._wake.close()

    def _wake_up(self) -> None:
        if not self._closed:
            self._wake.set()

    # --- the thread ---

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wait()
                self._read_driver()
                self._check_lines()
                self._announce()
        except Exception as error:
            logger.exception("the ranks in the Ray cluster cannot be supervised")
            self._end_all(f"cannot be supervised: {error}")
        if self._lines is not None:
            self._lines.close()
        self._process.ask_to_exit()

    def _wait(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake.fileno(), zmq.POLLIN)
        if self._driver is not None:
            poller.register(self._driver.fileno(), zmq.POLLIN)
        if self._lines is not None:
            for socket in self._lines.sockets():
                poller.register(socket, zmq.POLLIN)
        hurry = self._epoch is not None or any(rank.lost_at and not rank.is_dead for rank in self.ranks)
        self._readable = {each for each, _ in poller.poll(ADDRESS_POLL_MS if hurry else None)}
        with contextlib.suppress(BlockingIOError):
            self._wake.clear()

    def _read_driver(self) -> None:
        if self._driver is None or self._driver.fileno() not in self._readable:
            return
        reports = self._driver.reports()
        for report in reports or ():
            self._handle(report)
        if reports is None:
            self._driver_ended(self._driver.error)
            self._driver = None

    def _handle(self, report: dict[str, Any]) -> None:
        if "placed" in report:
            self._placed(**report["placed"])
        elif "started" in report:
            self._rank(report["started"]).pid = report["pid"]
        elif "ended" in report:
            code, error = report["code"], report["error"]
            how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
            self._rank(report["ended"]).end(
                f"{how}: {error}" if error else how,
                signalled=code < 0,
                tail=report["tail"],
                mistake=error if code == MISTAKE else "",
            )
        elif "lost" in report:
            rank = self._rank(report["lost"])
            if self._is_connected(rank):
                logger.warning("the agent of %s in the Ray cluster is gone; the rank goes on", rank.name)
            else:
                rank.end(f"is gone, or its node: {report['error']}")

    def _placed(self, host: str, agents: list[str]) -> None:
        """Start the ranks on the agents' nodes."""
        self._endpoints.write_cluster_host(host)
        stages = rank_stages(self._settings)
        size = sum(len(stage) for stage in stages)
        lines = self._lines = RankLines(self._context, host, size)
        spawns = []
        for agent, stage in enumerate(stages):
            for local_rank, rank in enumerate(stage):
                self.ranks[rank].address = agents[agent]
                given = RankSettings(
                    name=self.ranks[rank].name,
                    config=rank_options(self._config),
                    settings=self._settings.to_dict(),
                    lifeline=lines.of_rank(rank),
                    rank=rank,
                    size=size,
                    local_rank=local_rank,
                    local_size=len(stage),
                )
                settings = msgspec.to_builtins(given)
                spawns.append(Spawn(self.ranks[rank].kind, agent, "rank", settings, rendezvous=size > 1))
        where = ", ".join(sorted(set(agents)))
        logger.info("placed in the Ray cluster: %d ranks on %s", size, where)
        assert self._driver is not None
        self._driver.spawn(spawns)

    def _driver_ended(self, error: str) -> None:
        waiting = [rank for rank in self.ranks if not self._is_connected(rank)]
        for rank in waiting:
            rank.end(f"cannot be started: {error or 'the process that speaks with Ray has ended'}")
        if not waiting:
            logger.warning("Ray is gone; serving goes on, and ranks that fail can be started anew once it is back")

    def _check_lines(self) -> None:
        if self._lines is None:
            return
        now = time.monotonic()
        for lost in self._lines.lost():
            self.ranks[lost].lost_at = now
        for rank in self.ranks:
            if rank.lost_at is not None and (self._driver is None or now - rank.lost_at > REPORT_S):
                rank.end("is gone, or its node: its connection has ended")

    def _announce(self) -> None:
        epoch = self._epoch
        if self._lines is None or epoch is None:
            return
        path = Path(self._endpoints.rank_addresses(epoch))
        if path.exists():
            self._lines.announce(epoch, path.read_text(encoding="utf-8"))
            if self._epoch == epoch:
                self._epoch = None

    def _end_all(self, how: str) -> None:
        for rank in self.ranks:
            rank.end(how)

    def _is_connected(self, rank: RemoteRank) -> bool:
        return self._lines is not None and self._lines.is_connected(self.ranks.index(rank))

    def _rank(self, kind: str) -> RemoteRank:
        return next(rank for rank in self.ranks if rank.kind == kind)


def start_ranks(
    context: zmq.Context[Any],
    config: Config,
    settings: EngineSettings,
    group: ProcessGroup,
    kinds: Sequence[str],
    epoch: int,
) -> dict[str, RemoteRank]:
    """Start the ranks of a group of processes in the cluster; see `RayRanks`."""
    started = RayRanks(context, config, settings, Endpoints(group.folder), kinds, epoch, group.replica)
    return dict(zip(kinds, started.ranks, strict=True))


def rank_stages(settings: EngineSettings) -> list[list[int]]:
    """Return the ranks of each pipeline stage. The ranks of a stage share a node."""
    tp = settings.tp
    return [list(range(stage * tp, (stage + 1) * tp)) for stage in range(settings.stages)]


def rank_options(config: Config) -> dict[str, Any]:
    """Return the options that a rank needs. The HTTP server's options, which include API keys, are not sent."""
    server = {"log_level": config.server.log_level, "log_format": config.server.log_format}
    section = set(vars(config.server))
    return {name: value for name, value in config_to_dict(config).items() if name not in section} | server


def _driver_settings(config: Config, settings: EngineSettings, *, restarts: bool) -> DriverSettings:
    executor = config.executor
    return DriverSettings(
        address=executor.ray_address or "auto",
        agents=[len(stage) for stage in rank_stages(settings)],
        resource=executor.ray_resource or ("GPU" if executor.device == "cuda" else "CPU"),
        timeout_s=executor.start_timeout_s,
        waits_for_cluster=restarts,
        option="ray_address" if executor.cluster is None else "cluster",
        log_level=config.server.log_level,
        log_format=config.server.log_format,
    )
