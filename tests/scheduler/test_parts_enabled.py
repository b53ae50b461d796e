"""`Parts.enable`: moments of each step that a part asks for at times only."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.messages.cache_events import WatchCacheReq
from radixrt.parts.constraint.scheduler import Constraints
from radixrt.parts.recovery.scheduler import Recovery
from radixrt.parts.watch.scheduler import Watch
from radixrt.scheduler.part import Part, Parts
from tests.scheduler.fake_runner import Harness
from tests.scheduler.scripted_grammar import ScriptedGrammar


class Counting(Part):
    def __init__(self) -> None:
        self.calls = 0

    def turn(self, now: float) -> list[Any]:
        self.calls += 1
        return []


def test_a_moment_is_switched_off_and_on_for_its_part_alone() -> None:
    first, second = Counting(), Counting()
    parts = Parts([first, second])
    parts.enable(first, ("turn",), on=False)
    parts.enable(first, ("turn",), on=False)
    for turn in parts.turn:
        turn(0.0)
    assert (first.calls, second.calls) == (0, 1)
    parts.enable(first, ("turn",), on=True)
    assert [turn.__self__ for turn in parts.turn] == [first, second], "the order of the parts"


def listening(harness: Harness, kind: type[Part], moment: str) -> bool:
    part = harness.scheduler.part(kind)
    return part in [method.__self__ for method in getattr(harness.scheduler.parts, moment)]


@pytest.mark.parametrize("moment", ["may_step", "settle"])
def test_steps_ask_the_constraints_while_a_constrained_request_lives(moment: str) -> None:
    h = Harness()
    h.add("plain", [1, 2], max_tokens=3, ignore_eos=True)
    h.drain()
    assert not listening(h, Constraints, moment)
    h.add("constrained", [1, 2], max_tokens=6, ignore_eos=True, grammar=ScriptedGrammar(1))
    assert listening(h, Constraints, moment)
    h.drain()
    assert not listening(h, Constraints, moment)


@pytest.mark.parametrize("moment", ["only", "committed"])
def test_steps_ask_the_recovery_until_the_last_trial_is_survived(moment: str) -> None:
    h = Harness(depth=2)
    h.add("a", [1, 2, 3], max_tokens=20, ignore_eos=True)
    for _ in range(3):
        h.turn()
    assert not listening(h, Recovery, moment)
    h.kill()
    assert listening(h, Recovery, moment)
    h.restart()
    h.drain()
    assert not listening(h, Recovery, moment)


def test_turns_call_the_watch_while_somebody_watches() -> None:
    h = Harness()
    handle = h.scheduler.part(Watch).handles()[WatchCacheReq]
    assert not listening(h, Watch, "turn")
    list(handle(WatchCacheReq(watch=True), 0.0))
    assert listening(h, Watch, "turn")
    list(handle(WatchCacheReq(watch=False), 0.0))
    assert not listening(h, Watch, "turn")
