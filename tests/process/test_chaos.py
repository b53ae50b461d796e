"""Eight random faults under a mixed load; `make chaos` causes 1,000 and prints their table."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.process.chaos.campaign import Campaign, Result, judge, start_server, watched_folders
from tests.process.chaos.faults import ROUTER, RUNNER, SCHEDULER, STOPS, STOPS_BEHIND_ROUTER, Fault
from tests.process.chaos.load import Record
from tests.process.chaos.report import report

KILLS = 8


def test_no_request_is_lost_to_random_faults(long_model: Path) -> None:
    folders = Result()
    with watched_folders(folders):
        server = start_server(long_model)
        try:
            result = Campaign(server, seed=18, clients=4, second_faults=False).run(KILLS)
        finally:
            if server.process.poll() is None:
                server.process.kill()
    print(report(result))
    assert not result.problems + folders.leftovers, report(result)
    assert result.answered


@pytest.mark.parametrize(
    ("process", "record", "verdict"),
    [
        (RUNNER, Record("plain", 1.0, 6.0, answer="right"), "answered"),
        (RUNNER, Record("plain", 1.0, 6.0, answer="wrong"), "changed"),
        (RUNNER, Record("plain", 1.0, 6.0, error="503: the ModelRunner process died"), "lost"),
        (SCHEDULER, Record("plain", 1.0, 6.0, error="503: the scheduler process (pid 7) was killed"), "ended"),
        (SCHEDULER, Record("plain", 1.0, 6.0, error="500: internal error"), "lost"),
        (SCHEDULER, Record("plain", 6.0, 7.0, error="503: the scheduler process (pid 7) was killed"), "lost"),
        (SCHEDULER, Record("plain", 1.0, 6.0, broken="ReadError"), "lost"),
    ],
)
def test_only_a_fault_of_its_own_time_excuses_an_error(process: str, record: Record, verdict: str) -> None:
    assert verdicts([process], record, STOPS) == [verdict]


LOST = "500: the request was open on 2 replicas that died, and is not sent to another one"


@pytest.mark.parametrize(
    ("processes", "error", "verdict"),
    [
        ([ROUTER], "503: the router process (pid 7) was killed", "ended"),
        ([SCHEDULER], "503: the scheduler process (pid 7) was killed", "lost"),
        ([SCHEDULER], LOST, "lost"),
        ([RUNNER], LOST, "lost"),
        ([SCHEDULER, SCHEDULER], LOST, "suspects"),
        ([SCHEDULER, RUNNER], LOST, "suspects"),
        ([SCHEDULER, RUNNER], "503: the scheduler process (pid 7) was killed", "lost"),
    ],
)
def test_behind_a_router_a_single_replica_is_no_excuse(processes: list[str], error: str, verdict: str) -> None:
    assert verdicts(processes, Record("plain", 1.0, 6.0, error=error), STOPS_BEHIND_ROUTER) == [verdict]


def verdicts(processes: list[str], record: Record, stops: set[str]) -> list[str]:
    """Return the lists of a result that a request is in, after these processes were killed while it ran."""
    result = Result(
        faults=[Fault(each, signal.SIGKILL, 7, at=2.0, open_requests=frozenset(), recovered=5.0) for each in processes]
    )
    judge(result, [record], {"plain": "right"}, stops)
    names = ("answered", "changed", "lost", "ended", "suspects")
    return [name for name in names if getattr(result, name)]
