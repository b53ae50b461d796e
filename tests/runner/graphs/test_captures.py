"""Graphs are captured when steps request them, then in order; a failure stops capturing, or fails a multi-rank step."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest

from radixrt.runner.graphs.captures import CAPTURE_AT_STEP, Captures

BESIDE_AT_STEP = 9


class Numbers:
    """Numbers that are captured, of which one cannot be; `tried` says which have been, in order."""

    def __init__(self, failing: int | None = None, *, alone: bool = True) -> None:
        self.tried: list[int] = []
        self.captures: Captures[int, str] = Captures(
            "steps", lambda key: f"{key} rows", beside_at_step=BESIDE_AT_STEP, alone=alone
        )
        self._failing = failing

    def capture(self, key: int) -> str:
        self.tried.append(key)
        if key == self._failing:
            raise RuntimeError("out of memory")
        return f"graph {key}"

    def make(self, key: int) -> str | None:
        return self.captures.make(key, self.capture)

    def get_or_make(self, key: int, *larger: int) -> str | None:
        return self.captures.get_or_make(key, larger, self.capture)

    def make_next(self, keys: list[int]) -> bool:
        return self.captures.make_next(keys, self.capture)


def test_those_that_steps_asked_for_come_first() -> None:
    numbers = Numbers()
    assert numbers.captures.get(1) is None
    assert [numbers.get_or_make(key) for key in (64, 8, 64)] == [None] * 3
    while numbers.make_next([1, 2, 8]):
        pass
    assert numbers.tried == [64, 8, 1, 2]
    assert numbers.captures.get(8) == "graph 8"
    assert numbers.captures.get(3) is None


def test_a_larger_graph_stands_in_until_many_steps_have_asked() -> None:
    numbers = Numbers()
    numbers.make(8)
    assert [numbers.get_or_make(16) for _ in range(CAPTURE_AT_STEP)] == [None] * (CAPTURE_AT_STEP - 1) + ["graph 16"]
    found = [numbers.get_or_make(2, 4, 8, 16) for _ in range(BESIDE_AT_STEP + 1)]
    assert found == ["graph 8"] * (BESIDE_AT_STEP - 1) + ["graph 2"] * 2
    assert numbers.captures.find(3, [4]) is None
    assert numbers.tried == [8, 16, 2]


def test_a_failure_is_the_last_attempt(caplog: pytest.LogCaptureFixture) -> None:
    numbers = Numbers(failing=2)
    assert numbers.make(1) == "graph 1"
    with caplog.at_level(logging.WARNING):
        assert numbers.make(2) is None
    assert "steps run without CUDA graphs: capturing 2 rows failed: out of memory" in caplog.text
    assert numbers.captures.failed
    assert numbers.captures.get(1) is None
    assert numbers.make(3) is None
    assert not numbers.make_next([3, 4])
    assert numbers.tried == [1, 2]


def test_other_ranks_cannot_go_on_without() -> None:
    numbers = Numbers(failing=2, alone=False)
    with pytest.raises(RuntimeError, match="capturing 2 rows failed: out of memory; cuda_graph=off does without"):
        numbers.make(2)


def test_what_captures_is_not_kept() -> None:
    """Graphs must go when their owner does: NCCL does not end a group whose collectives a graph still holds."""
    numbers = Numbers()
    numbers.make(1)
    gone = weakref.ref(numbers)
    gc.disable()
    try:
        del numbers
        assert gone() is None
    finally:
        gc.enable()
