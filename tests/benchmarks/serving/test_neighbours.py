"""The benchmark beside busy loops: its processes, the fair share, its table."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.serving.neighbours import Rates, busy_loops, fair_share, report
from radixrt.os_process import read_stat


def test_busy_loops_run_and_end() -> None:
    def children() -> set[int]:
        task = Path(f"/proc/self/task/{os.getpid()}/children")
        return {int(word) for word in task.read_text().split()}

    before = children()
    with busy_loops(2):
        started = children() - before
        assert len(started) == 2
    assert all(read_stat(pid) is None for pid in started)


def test_the_fair_share_is_of_the_rate_alone() -> None:
    assert [fair_share(2, loops) for loops in (0, 1, 2)] == [1.0, 2 / 3, 0.5]
    rates: Rates = {("single", 0, "a"): [58.0, 60.0, 90.0], ("single", 2, "a"): [30.0], ("json", 2, "a"): [7.0]}
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in report(rates, 2).splitlines()[2:]]
    assert rows[1] == ["single", "2", "a", "30.0", "30.0", "1.00"]
    assert rows[2][4:] == ["", ""]
