"""The benchmark of the host path: its parts do what the engine's do, and what it prints is what it measured."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.common.model_shapes import CONFIGS, shape_folder
from benchmarks.common.thread_times import Times
from benchmarks.host import __main__ as host
from benchmarks.host.__main__ import (
    STEP_PARTS,
    WORKLOAD_PARTS,
    collect,
    measure_busy,
    measure_steps,
    plain_workload,
    submit,
)
from benchmarks.host.chain import PARTS, SCHEMA, SPANS, measure_chain
from benchmarks.host.chunks import BODIES, measure_chunks
from benchmarks.host.device import RandomTokens
from benchmarks.host.first_steps import SCHEMAS, STEP_S, TimedDevice, measure_first_steps
from benchmarks.host.gaps import STREAMS, measure_gaps
from benchmarks.host.pipeline import Pipe
from benchmarks.offline.workloads import make_workload
from radixrt.config import ModelConfig
from radixrt.executor.mask_table import Mask
from radixrt.messages.runner import ForwardStep, StepOutput
from radixrt.messages.wire import pack_i32
from radixrt.models.loading.source import prepare_model
from radixrt.scheduler.schedule_batch import DECODE


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


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_a_device_of_its_own_process(folder: Path, schema: dict[str, Any] | None) -> None:
    busy, interval = measure_busy(2, 3.0, 30, 2, folder, CONFIGS["tiny"], schema)
    assert 0.1 < busy <= 1.001
    assert interval == pytest.approx(3.0 / busy, rel=0.01)


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_the_chain_from_an_answer(folder: Path, schema: dict[str, Any] | None) -> None:
    found = measure_chain(folder, CONFIGS["tiny"], 3, 20, schema)
    for name in (*PARTS, *SPANS):
        assert len(found[name]) == (0 if schema is None and name == "to mask" else 20), name
    for parts in zip(*(found[name] for name in PARTS), found["whole turn"], strict=True):
        assert sum(parts[:-1]) <= parts[-1]
    if schema is not None:
        assert all(mask < step for mask, step in zip(found["to mask"], found["to step"], strict=True))


def test_rounds_from_their_first_steps(folder: Path) -> None:
    rounds = measure_first_steps(folder, CONFIGS["tiny"], 3, 2, SCHEMAS)
    for each in rounds:
        assert each.admission > 0
        assert len(each.turns) == len(each.to_mask) > 5
        assert all((mask or 0.0) < turn for mask, turn in zip(each.to_mask, each.turns, strict=True))
        assert each.tokens > 30
        masks, turns, _, _ = each.sums()
        assert masks < turns == sum(each.turns[:5])


def test_a_step_takes_its_time(folder: Path, tmp_path: Path) -> None:
    device = TimedDevice(str(tmp_path / "masks"), 96, RandomTokens(96, eos_id=33))
    assert not device.poll()
    device.submit(ForwardStep(1, DECODE, pack_i32([1, 2]), b"", b""))
    started = device.marks["step"]
    while (answer := device.take()) is None:
        assert not device.poll() or time.thread_time() - started >= STEP_S
    assert time.thread_time() - started >= STEP_S
    assert isinstance(answer, StepOutput)
    assert answer.forward_s == STEP_S


def test_tokens_are_what_the_mask_allows() -> None:
    bits = np.array([[0, 1 << 5, 0], [1 << 31, 0, 0], [0, 0b110, 0]], np.uint32)
    tokens = RandomTokens(96, eos_id=33)
    step = ForwardStep(1, DECODE, pack_i32([1, 2, 3, 4]), b"", b"")
    for _ in range(20):
        found = tokens.of(step, Mask(np.array([3, 0, 1], np.int32), np.array([0, 1, 2], np.int32), bits)).tolist()
        assert (found[3], found[0], found[1]) == (37, 31, 34)


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
    assert times.seconds["a"] >= times.seconds["b"] > 0
    found: list[int] = []
    times.book("c", owner := SimpleNamespace(add=found.append), "add")
    owner.add(1)
    assert found == [1]
    assert times.seconds["c"] > 0
    times.clear()
    assert not times.seconds


@pytest.mark.parametrize("chat", [False, True])
def test_gaps_are_those_of_the_streams(chat: bool) -> None:
    model = prepare_model(ModelConfig(), device="cpu", show_progress=False).folder
    measured = measure_gaps(model, 2, 500, chat=chat, threaded=True)
    assert len(measured.gaps) >= STREAMS
    assert 0 <= min(measured.gaps) <= max(measured.gaps)
    assert measured.encoded_s > 0


@pytest.mark.parametrize("route", BODIES)
def test_chunks_of_a_route(route: str) -> None:
    costs = measure_chunks(route, streams=2, chunks=3)
    assert costs.loop > 0
    assert costs.dispatch > 0
