"""`RestartPolicy`: decides which processes to restart after a failure, and when to give up. Sans I/O."""

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
        restart: kinds of the processes to kill, if alive, and to start again.
        ends_requests: open requests end with an error, because the process with their state is gone.
        description: for the log, e.g. "restarting ModelRunner, restart 1 of 3 in 300 s".
        exit_code: set if the engine gives up instead.
    """

    restart: tuple[str, ...]
    ends_requests: bool
    description: str
    exit_code: ExitCode | None = None


class RestartPolicy:
    """Decides for a group of processes, with a budget of restarts.

    Args:
        kinds: kinds of all processes of the group.
        external: some ranks were started by a launcher (torchrun, SLURM), which alone can start them again.
        max_restarts, window_s: at most `max_restarts` restarts within `window_s` seconds.
        replica: number of the replica that the processes form, if there are replicas.
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

    def refund(self, killers: int) -> None:
        """Take the restarts off the budget that were caused by requests which the scheduler has identified as killers
        of the ModelRunner. Each killer caused two restarts, the first and the one of its trial, and causes no more.

        Args:
            killers: number of identified killers since the scheduler started.
        """
        for _ in range(2 * max(killers - self._killers, 0)):
            if self._times:
                self._times.pop()
        self._killers = killers

    def decide(self, failed: Collection[str], now: float, *, scheduler_serves: bool) -> Plan:
        """Return the reaction to a failure of processes, and count a restart against the budget.

        - A dead rank restarts all ranks, because the other ranks wait for the dead one in a collective.
        - The tokenizer and the scheduler (or the router) are restarted together, because each of them has a part of
          the state of every request.
        - Ranks outlive the scheduler. Several ranks outlive a single scheduler only: the scheduler may have died
          between sending a step to one rank and to the next. Then the new scheduler fails before it serves, or a rank
          hangs in that step, and everything is restarted.

        Args:
            failed: kinds of the processes that failed.
            now: time of a monotonic clock, in seconds.
            scheduler_serves: the scheduler has been ready before, so that it can wait for new ranks.
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
