"""Traces of several ranks: which files there are, and how busy each rank was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.step_traces import answering_trace, busy_shares, rank_traces
from benchmarks.fleet.device import read_step_trace


def span(lane: str, step: int, begin: float, seconds: float) -> dict[str, Any]:
    shape = {"decode_rows": 1, "context": 5, "prompt_tokens": 0, "pairs": 0.0}
    times = {"ts": begin * 1e6, "dur": seconds * 1e6}
    return {"name": f"{lane} decode", "ph": "X", "args": {"step": step, **shape}, **times}


def write(path: Path, began: float, spans: list[dict[str, Any]]) -> None:
    name = {"name": "process_name", "ph": "M", "args": {"name": "ModelRunner", "began": began}}
    path.write_text(json.dumps([name, *spans]))


def two_stages(folder: Path) -> Path:
    """Two steps that take each stage a second; the second stage waits for the first, and samples for half a second."""
    first, second = [], []
    for step in range(2):
        first += [span("launch", step, step, 1.0), span("launch-sampling", step, step + 1, 0.0)]
        second += [
            span("launch", step, 10 + 1.5 * step, 2.0 - 0.5 * step),
            span("receive", step, 10 + 1.5 * step, 1.0 - 0.5 * step),
            span("launch-sampling", step, 12 + 1.5 * step, 0.5), span("answer", step, 12.5 + 1.5 * step, 0.0),
        ]  # fmt: skip
    write(folder / "steps.rank0.json", 100.0, first)
    write(folder / "steps.rank1.json", 90.0, second)
    write(folder / "steps.rank1.other.json", 0.0, [])
    return folder / "steps.json"


def test_each_stage_is_busy_while_it_computes(tmp_path: Path) -> None:
    path = two_stages(tmp_path)
    assert [each.name for each in rank_traces(path)] == ["steps.rank0.json", "steps.rank1.json"]
    assert busy_shares(rank_traces(path)) == pytest.approx([2 / 4, 3 / 4])


def test_pauses_without_a_step_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    write(
        path,
        0.0,
        [each for n in range(2) for each in (span("launch", n, 10 * n, 2.0), span("receive", n, 10 * n, 1.0))],
    )
    assert busy_shares(rank_traces(path)) == pytest.approx([0.5])


def test_times_of_the_device_are_those_that_count(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    spans = [span("launch", 0, 0, 0.1), span("device", 0, 0, 3.0), span("device-receive", 0, 0, 1.0)]
    write(path, 0.0, [*spans, span("launch-sampling", 0, 0.1, 0.1), span("device-sampling", 0, 3.5, 0.5)])
    assert busy_shares([path]) == pytest.approx([2.5 / 4])


def test_steps_are_read_of_the_rank_that_answers(tmp_path: Path) -> None:
    path = two_stages(tmp_path)
    assert answering_trace(path) == tmp_path / "steps.rank1.json"
    assert len(read_step_trace(path, min_steps=2)) == 2


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nor one of a rank \(none.rank0.json\)"):
        read_step_trace(tmp_path / "none.json")
    write(tmp_path / "a.json", 0.0, [])
    with pytest.raises(ValueError, match="no step in common"):
        busy_shares([tmp_path / "a.json"])
