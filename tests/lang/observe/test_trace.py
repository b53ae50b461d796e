"""Traces: what is written is what is read, and what is not a trace is refused by its line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from radixrt.lang.observe.report import report
from radixrt.lang.observe.run_log import RunLog
from radixrt.lang.observe.trace import TraceError, read_trace, trace
from tests.lang.observe.runs import Made, large_run, small_run


def play(log: RunLog, *, ends: bool = True) -> None:
    """The events of a run, as the runtime emits them."""
    log.emit("program_start")
    for branch in log.branches.values():
        log.emit("branch_start", branch)
    for call in sorted(log.calls, key=lambda call: call.end or 0):
        log.emit("call_start", call)
        log.emit("call_end", call)
    if ends:
        for branch in log.branches.values():
            log.emit("branch_end", branch)
        log.emit("program_end")


def assert_same(read: RunLog, log: RunLog) -> None:
    shift = log.start - read.start
    assert (read.program, read.name, read.backend, read.error) == (log.program, log.name, log.backend, log.error)
    assert read.end is not None
    assert log.end is not None
    assert read.end + shift == pytest.approx(log.end)
    assert list(read.branches) == list(log.branches)
    assert len(read.calls) == len(log.calls)
    for got, call in zip(read.calls, log.calls, strict=True):
        for name in ("queued", "start", "first_token", "end"):
            moment, wanted = getattr(got, name), getattr(call, name)
            assert (None if moment is None else moment + shift) == pytest.approx(wanted, abs=1e-5)
            setattr(got, name, wanted)
        got.probabilities, got.choices = tuple(got.probabilities), tuple(got.choices)
        assert got == call


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    small, large = small_run(), large_run()
    large.program, large.unix_time = "r-2", small.unix_time + 1
    path = tmp_path / "trace.jsonl"
    with trace(path):
        play(small)
        play(large)
    play(small_run())  # nobody is listening any more
    read = read_trace(path)
    assert report(read[0]) == report(small)
    assert_same(read[0], small)
    assert_same(read[1], large)


def test_each_line_says_what_it_is_and_shared_prompts_are_written_once(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    log = large_run()
    with trace(path):
        play(log)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(line["v"], line["program"]) for line in lines} == {(1, log.program)}
    assert [line["kind"] for line in lines[:2]] == ["program", "call"]
    assert lines[-1]["kind"] == "end"
    assert path.stat().st_size < 300_000 < sum(len(call.prompt_text) for call in log.calls)


def test_appending(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    other = small_run()
    other.program, other.unix_time = "r-2", other.unix_time + 1
    with trace(path):
        play(small_run())
    with trace(path, append=True):
        play(other)
    assert [log.program for log in read_trace(path)] == ["r-1f2e", "r-2"]


def test_a_run_that_has_not_ended(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    made = Made("f")
    made.call(made.branch("0", "b", 0, 0.1), "a", (0, 0, 0, 1), "p", (1, 0, 1, 0), "x", probabilities=(math.nan,))
    with trace(path):
        play(made.log, ends=False)
    (log,) = read_trace(path)
    assert log.end is None
    assert list(log.branches) == ["0", "0/1"]
    assert math.isnan(log.calls[0].probabilities[0])


def test_the_last_line_may_be_unfinished(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with trace(path):
        play(small_run())
    path.write_bytes(path.read_bytes()[:-20])
    (log,) = read_trace(path)
    assert len(log.calls) == 5
    assert log.end is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "line 2: this is not a line of a trace"),
        ('{"v":1,"kind":"other","program":"p"}', "line 2: this is not a line of a trace.*other"),
        ('{"v":2,"kind":"end","program":"r-1f2e","seconds":1}', "version 2 of the format; this radixrt reads up to 1"),
        ('{"v":1,"kind":"end","program":"q","seconds":1}', "line 2: it refers to 'q', which no line before it has"),
        ('{"v":1,"kind":"call","program":"r-1f2e","id":"x"}', r"line 2: .*`\$.id`"),
    ],
)
def test_what_is_not_a_trace(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "trace.jsonl"
    with trace(path):
        small_run().emit("program_start")
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(TraceError, match=words):
        read_trace(path)


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        trace(tmp_path / "no" / "trace.jsonl").start()
