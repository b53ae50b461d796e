"""The benchmark of a server's start: processor time by process, and its table."""

from __future__ import annotations

import os

from benchmarks.serving.start import PROCESSES, cpu_seconds, row


def test_processor_time_of_a_tree_of_processes() -> None:
    found = cpu_seconds(os.getpid())
    assert tuple(found) == PROCESSES
    assert found["main"] > 0


def test_a_row_has_the_sum() -> None:
    cells = row("1", 2.04, {"main": 0.5, "tokenizer": 0.25, "scheduler": 0.25, "runner": 1.5, "grammar compilers": 0.0})
    assert cells == ["1", "2.0", "0.50", "0.25", "0.25", "1.50", "0.00", "2.50"]
