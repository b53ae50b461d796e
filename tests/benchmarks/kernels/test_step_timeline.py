"""A step trace is read as `StepTrace` writes it, and what is said of it follows from its times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.kernels.step_timeline import (
    Step,
    busy_share,
    decode_pairs,
    decode_rows,
    gaps_us,
    main,
    read_trace,
    stretch_row,
    stretches,
    turnarounds_us,
    waits_us,
)


def make_step(
    number: int, begin: float, took: float = 2.0, mode: str = "decode", rows: int = 4, wait: float = 0.0
) -> Step:
    forwarded, end = begin + took - 0.5, begin + took + wait
    times = (begin - 1.5, begin - 1.0, begin, begin, forwarded, forwarded + wait, end)
    return Step(number, mode, rows, rows, *times, end + 0.1)


def lines_of(step: Step) -> list[str]:
    what = {"step": step.step, "rows": step.rows, "tokens": step.tokens}
    spans = {
        "launch": (step.launch_begin, step.launch_end),
        "launch-sampling": (step.mask_at, step.mask_at),
        "device": (step.begin, step.forwarded),
        "device-sampling": (step.sampling, step.end),
        "answer": (step.answered, step.answered),
    }
    return [
        json.dumps(
            {
                "name": f"{lane} {step.mode}", "ph": "X", "pid": 0, "tid": i, "ts": begin * 1000,
                "dur": (end - begin) * 1000, "args": what,
            }
        )
        for i, (lane, (begin, end)) in enumerate(spans.items(), 1)
    ]  # fmt: skip


def write_trace(path: Path, steps: list[Step], tail: str = "") -> Path:
    lines = [line + ",\n" for step in steps for line in lines_of(step)]
    path.write_text("[\n" + "".join(lines) + tail, encoding="utf-8")
    return path


def two_stretches() -> list[Step]:
    """An extend step and three decode steps, 0.1 and twice 0.5 ms apart, and 50 ms later two more."""
    return [
        make_step(0, 10.0, 5.0, "extend", 1),
        make_step(1, 15.1),
        make_step(2, 17.6),
        make_step(3, 20.1),
        make_step(4, 72.1, rows=5),
        make_step(5, 75.1, rows=6),
    ]


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    steps = two_stretches()
    found = read_trace(write_trace(tmp_path / "t.json", steps, tail='{"name": "launch dec'))
    assert [(s.step, s.mode, s.rows) for s in found] == [(s.step, s.mode, s.rows) for s in steps]
    assert [t for s in found for t in (s.launch_begin, s.launch_end, s.begin, s.end, s.answered)] == pytest.approx(
        [t for s in steps for t in (s.launch_begin, s.launch_end, s.begin, s.end, s.answered)]
    )


def test_a_step_that_was_not_answered_is_left_out(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", two_stretches(), tail=lines_of(make_step(6, 90.0))[0] + ",\n")
    assert [s.step for s in read_trace(path)] == [0, 1, 2, 3, 4, 5]


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("[\nhello,\n{}\n")
    with pytest.raises(ValueError, match="line 2: not a line of a step trace"):
        read_trace(path)
    launch, _, _, _, answer = lines_of(make_step(0, 1.0))
    path.write_text(f"[\n{launch},\n{answer},\n")
    with pytest.raises(ValueError, match="records them on CUDA"):
        read_trace(path)


def test_stretches_gaps_and_shares() -> None:
    first, second = stretches(two_stretches(), 30.0)
    assert [s.step for s in first] == [0, 1, 2, 3]
    assert len(stretches(two_stretches(), 60.0)) == 1
    pairs = decode_pairs(first)
    assert gaps_us(pairs) == pytest.approx([500.0, 500.0])
    assert busy_share(pairs) == pytest.approx(4.0 / 5.0)
    assert busy_share([]) is None
    assert stretch_row(first) == [
        "0.01", "4", "1", "3", "1 to 4", "2.00 / 4.10", "500 / 500", "0.50 / 0.50", "0 / 0", "400 / 400", "90.9%",
        "80.0%",
    ]  # fmt: skip
    assert stretch_row(second)[4:] == [
        "5 to 6", "2.00 / 2.00", "1000 / 1000", "0.50 / 0.50", "0 / 0", "900 / 900", "80.0%", "66.7%",
    ]  # fmt: skip
    assert stretch_row(second[:1])[6] == "-"


def test_waits_for_masks_are_no_work_of_the_device() -> None:
    steps = [make_step(0, 10.0, wait=0.25), make_step(1, 12.75, wait=0.75)]
    assert waits_us(steps) == pytest.approx([250.0, 750.0])
    assert [step.took for step in steps] == pytest.approx([2.0, 2.0])
    assert turnarounds_us(decode_pairs(steps)) == pytest.approx([400.0])
    assert busy_share(decode_pairs(steps)) == pytest.approx(2.0 / 2.75)


def test_decode_steps_by_rows_leave_pauses_out() -> None:
    found = decode_rows(two_stretches(), 30.0, least=2)
    assert found == [["4", "2", "2.00 / 2.00", "500 / 500", "0.50 / 0.50", "0 / 0", "400 / 400", "80.0%"]]
    assert decode_rows(two_stretches(), 30.0, least=3) == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_trace(tmp_path / "t.json", [make_step(i, 10.0 + 2.01 * i) for i in range(60)])
    monkeypatch.setattr("sys.argv", ["step_timeline", str(path)])
    assert main() == 0
    assert "| 4    | 59    | 2.00 / 2.00" in capsys.readouterr().out
