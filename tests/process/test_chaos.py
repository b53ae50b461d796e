"""Eight random faults under a mixed load; `make chaos` causes 1,000 and prints their table."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.process.chaos.campaign import Campaign, Result, judge, start_server, watched_folders
from tests.process.chaos.faults import RUNNER, SCHEDULER, Fault
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
    fault = Fault(process, signal.SIGKILL, pid=7, at=2.0, open_requests=frozenset(), recovered=5.0)
    result = Result(faults=[fault])
    judge(result, [record], {"plain": "right"})
    found = {"answered": result.answered, "changed": result.changed, "lost": result.lost, "ended": result.ended}
    assert [name for name, value in found.items() if value] == [verdict]
