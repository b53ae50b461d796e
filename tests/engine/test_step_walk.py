"""A decode step of plain rows enters the files that docs/architecture.md lists, and no part for any of its rows."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import radixrt
from radixrt.channel import LocalChannel
from radixrt.config import make_config
from radixrt.engine.assembly import make_runner_worker, make_scheduler_loop
from radixrt.engine.settings import resolve_settings
from radixrt.executor.uniproc_executor import UniProcExecutor
from radixrt.messages.request import Request
from radixrt.messages.runner import ForwardStep, FromRunner
from radixrt.messages.scheduler import TokenBatch
from radixrt.messages.wire import pack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler import loop as scheduler_loop
from radixrt.scheduler import scheduler as scheduler_core
from radixrt.scheduler.loop import SchedulerLoop

PACKAGE = Path(radixrt.__file__).parent
DEFINITIONS = (
    "attention/base.py",
    "distributed/",
    "executor/base.py",
    "forward_batch/forward_batch.py",
    "layers/formats/base.py",
    "messages/",
    "models/registry.py",
)
"""Interfaces, messages, tensors, and the group of one rank: nothing is decided there, so they are no stations."""
PART = ("parts/", "constrained/")


def listed(heading: str) -> list[str]:
    """The files of a numbered list in docs/architecture.md, in order."""
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    section = re.split(r"\n###? ", text.partition(f"### {heading}\n")[2])[0]
    return re.findall(r"^\d+\. `([a-z_0-9/]+\.py)`", section, re.MULTILINE)


def types_listed() -> set[str]:
    """The types that docs/architecture.md lists for a decode step."""
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    section = re.split(r"\n###? ", text.partition("### The types of a decode step\n")[2])[0]
    return set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))


class SteppedExecutor(UniProcExecutor):
    """Executor that keeps the last step."""

    last: ForwardStep

    def submit(self, step: ForwardStep) -> None:
        self.last = step
        super().submit(step)


class Engine:
    """The scheduler's loop and a ModelRunner, in this thread."""

    def __init__(self, model: Path) -> None:
        # float32 weights have the same path on every processor.
        options: dict[str, Any] = {"executor": "uni", "device": "cpu", "dtype": "float32", "kv_cache_tokens": 1024}
        options["cuda_graph"] = "off"  # a recorded step enters few files
        config, settings = resolve_settings(make_config(model=str(model), **options), show_progress=False)
        answers: LocalChannel[FromRunner] = LocalChannel()
        self.inbox: LocalChannel[Any] = LocalChannel()
        self.tokenizer: LocalChannel[Any] = LocalChannel()
        self.executor = SteppedExecutor(make_runner_worker(config, settings, answers), answers)
        self.loop: SchedulerLoop = make_scheduler_loop(config, settings, self.executor, self.inbox, self.tokenizer)

    def begin(self, rows: int) -> None:
        """Start rows that share no prefix and decode for long."""
        for row in range(rows):
            sampling = SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True)
            self.inbox.send(Request.generate(f"{rows}.{row}", pack_i32([3 + row, 4, 5, 6]), sampling))
        for _ in range(20):
            self.turn()

    def turn(self) -> list[Any]:
        """Run one turn of the loop; return the messages to the tokenizer."""
        self.loop.run_once(wait=False)
        sent = []
        while (message := self.tokenizer.recv()) is not None:
            sent.append(message)
        return sent

    def close(self) -> None:
        self.loop.close()
        self.executor.close()


@pytest.fixture
def engine(tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    # Deadlines and statistics are looked after a few times a second, and belong to no step.
    monkeypatch.setattr(scheduler_core, "EXPIRY_CHECK_S", 3600.0)
    monkeypatch.setattr(scheduler_loop, "STATS_INTERVAL_S", 3600.0)
    engine = Engine(tiny_model("llama"))
    yield engine
    engine.close()


@contextmanager
def traced() -> Iterator[Counter[str]]:
    """Count the calls of functions by their file in radixrt, in the order of first entry."""
    calls: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            calls[path.relative_to(PACKAGE).as_posix()] += 1

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def step_of(engine: Engine, rows: int) -> Counter[str]:
    """Trace one turn of the loop, in which a step of plain rows is decided, computed and answered."""
    engine.begin(rows)
    with traced() as calls:
        sent = engine.turn()
    assert engine.executor.last.sections == {}
    assert len(engine.executor.last.seq_lens) // 4 == rows
    (batch,) = sent
    assert isinstance(batch, TokenBatch)
    assert not batch.deltas
    assert len(batch.rids) == rows
    return calls


def test_a_plain_step_enters_the_files_that_are_documented(engine: Engine) -> None:
    calls = step_of(engine, rows=2)
    core = [name for name in calls if not name.startswith((*DEFINITIONS, *PART))]
    assert len(core) <= 30
    assert core == listed("A decode step")


def test_parts_are_asked_for_a_step_and_never_for_a_plain_row(
    tiny_model: Callable[[str], Path], engine: Engine
) -> None:
    few = step_of(engine, rows=2)
    asked = [name for name in few if name.startswith(PART)]
    assert asked == listed("Parts that a plain step asks")
    other = Engine(tiny_model("llama"))
    try:
        many = step_of(other, rows=8)
    finally:
        other.close()
    assert {name: many[name] for name in asked} == {name: few[name] for name in asked}


INSIDE = ("attention/", "distributed/", "layers/", "messages/", "models/", "scheduler/step_time.py")
"""The forward pass, the definitions of messages, and the model of step times, to which a step's work is reported."""


@contextmanager
def watched() -> Iterator[dict[int, tuple[Any, set[str]]]]:
    """Collect the objects of radixrt's types among the variables and results of functions, with the files that have
    them. The objects live on, so that no later object has the same id."""
    seen: dict[int, tuple[Any, set[str]]] = {}

    def profile(frame: FrameType, event: str, result: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "return" and path.is_relative_to(PACKAGE):
            name = path.relative_to(PACKAGE).as_posix()
            for value in [*frame.f_locals.values(), result]:
                if type(value).__module__.startswith("radixrt."):
                    seen.setdefault(id(value), (value, set()))[1].add(name)

    sys.setprofile(profile)
    try:
        yield seen
    finally:
        sys.setprofile(None)


def test_a_plain_step_has_the_types_that_are_documented(engine: Engine) -> None:
    engine.begin(2)
    with watched() as before:
        engine.turn()
    with watched() as during:
        engine.turn()
        engine.turn()  # commits the step that was decided in the turn before
    found = {
        type(value).__name__
        for key, (value, files) in during.items()
        if key not in before and len([name for name in files if not name.startswith(INSIDE)]) > 1
    }
    assert found == types_listed()
    assert len(found) <= 9
