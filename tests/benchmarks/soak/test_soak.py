"""The soak: its samples, its verdicts, and a few seconds of it against a real server with a tiny model."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path

import pytest

from benchmarks.common.metrics import parse_metrics
from benchmarks.soak import __main__ as soak
from benchmarks.soak import report
from benchmarks.soak.load import Tally
from benchmarks.soak.samples import Sample, kv_slots, process_name, slope
from tests.tiny_models import make_tiny_model

IDLE = {"free": 90, "evictable": 10, "protected": 0, "private": 0}


def samples(*growing: float, leak: int = 0, fds: int = 0) -> list[Sample]:
    """An hour of samples of main, which is flat, and of the runner, which grows by these amounts each minute."""
    found = []
    for minute in range(61):
        rss = {"main": 70.0 + minute % 3, "runner": 600.0 + sum(minute * each for each in growing)}
        slots = {**IDLE, "free": 90 - leak, "private": leak}
        found.append(Sample(minute * 60.0, rss, {"main": 20, "runner": 10 + minute * fds}, slots))
    return found


def failures(found: list[Sample], tally: Tally | None = None, *, idle: bool = True) -> list[str]:
    return [line for holds, line in report.verdicts(found, tally or Tally(), idle=idle) if not holds]


def test_the_slope_ignores_outliers() -> None:
    rng = random.Random(1)
    times = [float(i) for i in range(100)]
    values = [5 + 2 * t + (1e6 if rng.random() < 0.2 else 0) for t in times]
    assert slope(times, values) == pytest.approx(2, rel=0.05)
    assert slope([1.0, 1.0], [1.0, 2.0]) == 0.0


def test_verdicts() -> None:
    assert failures(samples(0.0)) == []
    assert failures(samples(1.0)) == ["runner: 645 MiB, +60 MiB/h, +30.0 MiB in all"]
    assert failures(samples(0.0, leak=3)) == ["slots in use after the load: 3"]
    assert failures(samples(0.0, fds=1)) == ["runner: 10 descriptors before, 70 after"]
    assert failures(samples(0.0), idle=False) == ["slots in use after the load: 0"]
    tally = Tally()
    for status in (200, 400, 429, 499):
        tally.add("plain", status)
    assert failures(samples(0.0), tally) == []
    tally.add("plain", 500)
    assert failures(samples(0.0), tally) == ["wrong answers: 1"]


def test_what_is_sampled_has_names() -> None:
    worker = ["python", "-m", "radixrt.engine.process", "runner-1"]
    assert process_name(worker, is_main=False) == "runner-1"
    assert process_name(worker, is_main=True) == "main"
    assert process_name(["python", "-m", "radixrt.constrained.compile.worker"], is_main=False) == "grammar compilers"
    series = 'radixrt_kv_slots{{model_name="m",state="{}"}} {}'
    text = "\n".join(["# HELP x", series.format("free", 12.0), series.format("private", 3.0), "other 1.0"])
    assert kv_slots(parse_metrics(text)) == {"free": 12, "private": 3}


def test_the_plots_show_every_process(tmp_path: Path) -> None:
    found = samples(1.0)
    assert [line.split()[0] for line in report.text_plot(found).splitlines()] == ["main", "runner"]
    report.plot(tmp_path / "plot.svg", found)
    assert all(f">{name}</text>" in (tmp_path / "plot.svg").read_text() for name in ("main", "runner"))
    assert len(report.timeline(found).splitlines()) <= report.ROWS + 3


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "1e9"])
def test_a_soak_is_bounded(minutes: str) -> None:
    with pytest.raises(SystemExit):
        soak.arguments(["--minutes", minutes])


def test_a_soak_of_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_tiny_model(tmp_path / "model", "llama", max_position_embeddings=4096)
    limits = "--kv-cache-tokens 4096 --compile-timeout-s 1 --num-threads 1"
    server = f"{sys.executable} -m radixrt launch --port {{port}} --model {model} {limits}"
    plot = tmp_path / "plot.svg"
    given = ["--minutes", "0.05", "--clients", "4", "--programs", "1", "--server", server, "--svg", str(plot)]
    code = soak.main(given)
    out = capsys.readouterr().out
    assert code in (0, 1)  # memory still grows in the first seconds
    for name in ("main", "scheduler", "tokenizer", "runner", "grammar compilers"):
        assert re.search(rf"^ *{name} .* MiB$", out, re.MULTILINE), out
    assert "flat: slots in use after the load: 0" in out
    assert "flat: wrong answers: 0" in out
    assert ">scheduler</text>" in plot.read_text()
