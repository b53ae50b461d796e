"""The step trace is a file of Chrome trace events that viewers can open, complete or cut off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from radixrt.distributed.rank_info import RankInfo
from radixrt.messages.runner import ForwardStep
from radixrt.messages.wire import pack_i32
from radixrt.runner.step_trace import LANES, StepTrace


def decode_step(step_id: int) -> ForwardStep:
    return ForwardStep(
        step_id=step_id, mode=2, req_pool_idx=pack_i32([1, 2]), seq_lens=pack_i32([5, 6]),
        out_cache_loc=pack_i32([3, 4]),
    )  # fmt: skip


def write(trace: StepTrace, steps: int, *, answers: bool = True) -> None:
    for step_id in range(steps):
        times = trace.begin(decode_step(step_id))
        trace.forward(times)
        trace.received(times)
        trace.forwarded(times)
        trace.sampling(times)
        trace.sampled(times)
        (trace.answered if answers else trace.unanswered)(times)


def check(events: list[dict[str, Any]], steps: int) -> None:
    """The fields that the trace event format requires of metadata and of complete events."""
    for event in events:
        assert isinstance(event["name"], str)
        assert event["ph"] in ("M", "X")
        assert isinstance(event["ts"], int | float)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
    named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert named == dict(enumerate(LANES, 1))
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["tid"] for event in spans} == {1, 3}, "a CPU has no device lane"
    assert [event["args"]["step"] for event in spans if event["tid"] == 3] == list(range(steps))
    shape = {"rows": 2, "tokens": 2, "decode_rows": 2, "context": 11, "prompt_tokens": 0, "pairs": 0.0}
    assert all(event["args"] == {"step": event["args"]["step"], **shape} for event in spans)


def test_a_closed_trace_is_a_json_array_of_trace_events(tmp_path: Path) -> None:
    trace = StepTrace(str(tmp_path / "t.json"), torch.device("cpu"))
    write(trace, 3)
    trace.close()
    check(json.loads((tmp_path / "t.json").read_text()), 3)


def test_a_trace_that_was_cut_off_lacks_only_the_end_of_its_array(tmp_path: Path) -> None:
    trace = StepTrace(str(tmp_path / "t.json"), torch.device("cpu"))
    write(trace, 2)
    check(json.loads((tmp_path / "t.json").read_text() + "]"), 2)
    trace.close()


def test_each_rank_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Rank 1 of three stages waits for the one before and answers nothing."""
    trace = StepTrace(str(tmp_path / "t.json"), torch.device("cpu"), RankInfo(rank=1, size=3, stages=3))
    write(trace, 2, answers=False)
    trace.close()
    assert [path.name for path in tmp_path.iterdir()] == ["t.rank1.json"]
    events = json.loads((tmp_path / "t.rank1.json").read_text())
    assert events[0]["args"]["name"] == "ModelRunner 1, stage 1"
    assert {event["pid"] for event in events} == {1}
    names = [event["name"] for event in events if event["ph"] == "X"]
    assert names == ["launch decode", "receive decode", "launch-sampling decode"] * 2
