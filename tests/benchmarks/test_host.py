"""The benchmark of the host path: its parts do what the engine's do, and what it prints is what it measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import host
from benchmarks.host import STEP_PARTS, WORKLOAD_PARTS, collect, measure_busy, measure_steps, plain_workload, submit
from benchmarks.host_pipe import Pipe, Times
from benchmarks.offline_workloads import make_workload
from benchmarks.shapes import shape_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shape_folder("tiny", tmp_path_factory.mktemp("shapes"))


def test_plain_prompts_share_nothing() -> None:
    prompts = plain_workload(512, 3).prompts()
    assert {len(prompt) for prompt in prompts} == {64}
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 512


@pytest.mark.parametrize("detokenize", [False, True])
def test_every_request_gets_its_tokens(folder: Path, detokenize: bool) -> None:
    pipe = Pipe(folder)
    workload = make_workload("tree", seed=0, scale=0.1)
    streams = submit(pipe, workload, detokenize=detokenize)
    while pipe.client.open_requests:
        assert pipe.turn()
    assert collect(pipe, streams) == workload.output_tokens == pipe.device.tokens
    pipe.close()
    assert set(WORKLOAD_PARTS) - {"scheduler"} <= set(pipe.times.seconds)


def test_parts_of_a_step(folder: Path) -> None:
    parts = measure_steps(folder, 2, 20, detokenize=True, profile=False)
    assert set(parts) == set(STEP_PARTS)
    assert all(microseconds > 0 for part, microseconds in parts.items() if part != "main out")
    assert parts["next_batch"] + parts["commit"] + parts["deltas"] < parts["scheduler"]


def test_a_device_of_its_own_process() -> None:
    busy, interval = measure_busy(2, 3.0, 30, depth=2)
    assert 0.1 < busy <= 1.001
    assert interval == pytest.approx(3.0 / busy, rel=0.01)


def test_as_a_command(capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "shape_folder", lambda name: folder)
    assert host.main(["steps", "workloads", "--rows", "1", "--steps", "5", "--workloads", "single"]) == 0
    said = capsys.readouterr().out
    assert "| rows | next_batch" in said
    assert "| single " in said


def test_times() -> None:
    times = Times()
    with times.of("a"), times.of("b"):
        pass
    assert times.calls == {"a": 1, "b": 1}
    assert times.seconds["a"] >= times.seconds["b"] > 0
    times.clear()
    assert not times.seconds
