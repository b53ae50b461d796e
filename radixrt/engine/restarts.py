"""`RestartPolicy`: decides which processes are started anew when some have failed, and when to give up. Sans I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum

from radixrt.engine.endpoints import is_runner, process_name


class ExitCode(IntEnum):
    """Exit codes of the server after a failure of the engine; docs/operations.md describes them."""

    FAILED = 1
    RESTARTS_SPENT = 3
    EXTERNAL_RANK = 4


@dataclass(frozen=True)
class Plan:
    """Reaction to a failure.

    Attributes:
        restart: kinds of the processes to kill, if they live, and to start anew.
        ends_requests: open requests end with an error, because the process that knew them is gone.
        description: for the log, e.g. "restarting ModelRunner, restart 1 of 3 in 300 s".
        exit_code: set if the engine gives up instead.
    """

    restart: tuple[str, ...]
    ends_requests: bool
    description: str
    exit_code: ExitCode | None = None


class RestartPolicy:
    """Decisions for one engine; remembers its latest restarts.

    Args:
        kinds: kinds of all processes of the engine.
        external: some ranks were started by others, who alone can start them anew.
        max_restarts, window_s: restarts allowed within so many seconds.
        replica: number of the replica that the processes are, if there are replicas.
    """

    def __init__(
        self, kinds: Collection[str], *, external: bool, max_restarts: int, window_s: float, replica: int | None = None
    ) -> None:
        self._kinds = tuple(kinds)
        self._external = external
        self._max_restarts = max_restarts
        self._window_s = window_s
        self._times: deque[float] = deque()
        self._killers = 0
        self._replica = replica

    def forgive(self, killers: int) -> None:
        """Take back the restarts that requests caused which the scheduler has found out, two for each: they do not
        recur.

        Args:
            killers: number of these requests since the scheduler started.
        """
        for _ in range(2 * max(killers - self._killers, 0)):
            if self._times:
                self._times.pop()
        self._killers = killers

    def decide(self, failed: Collection[str], now: float, *, scheduler_serves: bool) -> Plan:
        """Return the reaction to the failure of these processes, and count it as a restart if it is one.

        One dead rank restarts all ranks: the others wait for it in a collective. The tokenizer and the scheduler, or
        the router, are restarted together, because each of them holds a part of every request. Ranks outlive the
        scheduler. Several ranks do so once: a scheduler may have died between sending a step to one rank and to the
        next, and then the new scheduler fails before it serves, or a rank hangs in that step.

        Args:
            scheduler_serves: the scheduler has been ready, so that it can wait for new ranks.
        """
        if self._external:
            return self._give_up(ExitCode.EXTERNAL_RANK, "exiting: ranks that were started externally cannot restart")
        while self._times and now - self._times[0] > self._window_s:
            self._times.popleft()
        if len(self._times) >= self._max_restarts:
            spent = f"{len(self._times)} restarts within {self._window_s:g} s (max_restarts, restart_window_s)"
            ends = "exiting" if self._replica is None else "not starting it anew"
            return self._give_up(ExitCode.RESTARTS_SPENT, f"{ends} after {spent}")
        self._times.append(now)
        runners = tuple(kind for kind in self._kinds if is_runner(kind))
        others = tuple(kind for kind in self._kinds if not is_runner(kind))
        if scheduler_serves and all(is_runner(kind) for kind in failed):
            restart, ends_requests = runners, False
        elif (scheduler_serves or len(runners) == 1) and not any(is_runner(kind) for kind in failed):
            restart, ends_requests = others, True
        else:
            restart, ends_requests = self._kinds, True
        names = " and ".join(process_name(kind, self._replica) for kind in restart)
        count = f"restart {len(self._times)} of {self._max_restarts} in {self._window_s:g} s"
        return Plan(restart, ends_requests, f"restarting {names}, {count}")

    def _give_up(self, code: ExitCode, why: str) -> Plan:
        return Plan((), True, why, code)
