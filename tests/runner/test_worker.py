"""`Worker` and its main process: progress within a step, another scheduler, a device that hangs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import transformers

from radixrt.channel import LocalChannel
from radixrt.config import make_config
from radixrt.engine import assembly
from radixrt.engine.settings import resolve_settings
from radixrt.errors import EngineError
from radixrt.heartbeat import Heartbeat
from radixrt.messages.runner import GrammarMask, RunnerReady, StepOutput, ToRunner
from radixrt.messages.wire import pack_i32
from radixrt.runner.profile_run import largest_step
from radixrt.runner.step_allowance import StepAllowance
from radixrt.runner.step_result import SampledStep
from radixrt.runner.worker import Worker, serve_steps
from tests.tiny_models import COMMON, save_random_model

STEP = largest_step(2, 8, 64)


def make_worker(folder: Path, answers: LocalChannel, *, start: bool = True, **given: Any) -> Worker:
    options = {"dtype": "float32", "num_threads": 1, "kv_cache_tokens": 64, "executor": "uni"}
    config, settings = resolve_settings(make_config(model=str(folder), **options), show_progress=False)
    worker = assembly.make_runner_worker(config, settings, answers, **given)
    if start:
        worker.start()
        assert isinstance(answers.recv(), RunnerReady)
    return worker


def layers_seen(folder: Path) -> int:
    beats: list[None] = []
    worker = make_worker(folder, LocalChannel(), progress=lambda: beats.append(None))
    beats.clear()
    worker.handle(STEP)
    return len(beats)


def test_each_layer_reports_progress(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    layers = COMMON["num_hidden_layers"]
    assert layers_seen(tiny_model("llama")) == layers - 1, "the last one is followed by the end of the step"
    other = save_random_model(tmp_path, transformers.PhiConfig(**COMMON))
    assert layers_seen(other) == layers


def test_a_cpu_runner_knows_the_pause_of_a_small_step_before_its_first(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    allowance = StepAllowance(0.0, 120.0)
    heartbeat = Heartbeat()
    answers: LocalChannel = LocalChannel()
    worker = make_worker(tiny_model("llama"), answers, start=False, progress=heartbeat.beat)
    monkeypatch.setattr(time, "perf_counter", itertools.count().__next__)  # each beat is one second after the last
    worker.start(heartbeat, allowance)
    assert isinstance(answers.recv(), RunnerReady)
    assert 0.0 < allowance.of(1) < 120.0
    assert allowance.of(1024) == 1024 * allowance.of(1)


def test_another_scheduler_gets_no_answers_to_the_steps_of_the_first(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first: LocalChannel = LocalChannel()
    worker = make_worker(tiny_model("llama"), first)
    with monkeypatch.context() as patch:
        patch.setattr(SampledStep, "is_ready", False)
        worker.handle(STEP)
    assert worker.is_waiting
    second: LocalChannel = LocalChannel()
    worker.reconnect(second)
    assert isinstance(second.recv(), RunnerReady)
    assert not worker.is_waiting
    worker.handle(STEP)
    assert isinstance(second.recv(), StepOutput)
    assert first.recv() is second.recv() is None


def test_nothing_is_captured_while_a_step_awaits_its_mask(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture runs the model, whose logits would replace those that the step is sampled from."""
    answers: LocalChannel = LocalChannel()
    worker = make_worker(tiny_model("llama"), answers)
    captured: list[None] = []
    monkeypatch.setattr(worker._runner, "idle_work", lambda: captured.append(None))
    worker.handle(msgspec.structs.replace(STEP, has_mask=True))
    assert worker.idle_work(), "some is left"
    assert not captured
    worker.handle(GrammarMask(STEP.step_id, pack_i32([]), pack_i32([])))
    assert isinstance(answers.recv(), StepOutput)
    worker.idle_work()
    assert captured


class Messages:
    """An inbox with messages that have arrived, and no more to come."""

    def __init__(self, *messages: ToRunner) -> None:
        self._messages = list(messages)

    def recv(self, timeout_s: float) -> ToRunner | None:
        return self._messages.pop(0) if self._messages else None


def test_the_last_messages_of_a_dead_scheduler_are_executed_and_counted(tiny_model: Callable[[str], Path]) -> None:
    first: LocalChannel = LocalChannel()
    worker = make_worker(tiny_model("llama"), first)
    mask = GrammarMask(STEP.step_id, pack_i32([]), pack_i32([]))
    inbox: Any = Messages(STEP, STEP, mask)
    serve_steps(worker, inbox, until=lambda: True)
    assert [type(first.recv()) for _ in range(2)] == [StepOutput, StepOutput]
    second: LocalChannel = LocalChannel()
    worker.reconnect(second)
    ready = second.recv()
    assert isinstance(ready, RunnerReady)
    assert ready.executed == 3


def test_a_device_that_does_not_complete_a_step_ends_the_worker(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker(tiny_model("llama"), LocalChannel())
    monkeypatch.setattr(SampledStep, "is_ready", False)
    worker.handle(STEP)
    worker.answer_ready()
    monkeypatch.setattr(worker, "_step_timeout_s", 0.0)
    with pytest.raises(EngineError, match="has not completed step 0"):
        worker.answer_ready()


def test_after_a_step_there_may_be_idle_work_again(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step may have asked for a graph that nothing else would capture."""
    worker = make_worker(tiny_model("llama"), LocalChannel())
    asked: list[bool] = []
    monkeypatch.setattr(worker, "idle_work", lambda: bool(asked.append(worker.is_waiting)))
    arrivals: list[ToRunner | None] = [None, None, STEP, *[None] * 1000]

    class Arrivals:
        def recv(self, timeout_s: float) -> ToRunner | None:
            return arrivals.pop(0)

    serve_steps(worker, Arrivals(), until=lambda: len(arrivals) < 3)  # type: ignore[arg-type]
    assert asked == [False, False]
