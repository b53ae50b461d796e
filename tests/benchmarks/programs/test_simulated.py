"""Recorded programs on a simulated device: all of their calls are made, in order, and counts are always the same."""

from __future__ import annotations

import pytest

from benchmarks.programs.recorded import Recorded, RecordedCall, record
from benchmarks.programs.simulated import compare
from benchmarks.programs.simulation import CPU, Simulation
from benchmarks.programs.workloads import NAMES, workloads
from radixrt.lang.observe.shared_prefix import common_prefix

ROOM = 100_000


@pytest.fixture(scope="module")
def made() -> dict[str, list[list[RecordedCall]]]:
    return {name: each.language for name, each in recorded(["judge", "agent"]).items()}


def recorded(names: list[str]) -> dict[str, Recorded]:
    return {each.name: record(each) for each in workloads(names, runs=3, concurrency=3, seed=1)}


def test_calls_are_recorded_with_what_they_wait_for_and_their_hints(made: dict[str, list[list[RecordedCall]]]) -> None:
    for first, *notes, verdict in made["judge"]:
        assert (first.hint.branch, first.hint.will_continue, first.after) == ("0", True, ())
        assert [note.hint.branch for note in notes] == ["0/1", "0/2", "0/3", "0/4"]
        for note in notes:
            whole = first.prompt + first.output
            assert common_prefix(note.prompt, whole) == len(whole)
            assert (note.after, note.hint.will_continue) == ((0,), False)
            assert note.hint.fork_len >= len(whole)
        assert verdict.after == (0, 1, 2, 3, 4)
    assert [call.pause_s > 0 for call in made["agent"][0]] == [False, *[True] * 6]


def simulate(runs: list[list[RecordedCall]], slots: int, *, hints: bool = True, concurrency: int = 3) -> Simulation:
    simulation = Simulation(runs, slots=slots, times=CPU, hints=hints, concurrency=concurrency)
    simulation.run()
    return simulation


def test_with_room_each_token_is_computed_once(made: dict[str, list[list[RecordedCall]]]) -> None:
    result = simulate(made["agent"], ROOM, concurrency=1).result
    calls = [call for run in made["agent"] for call in run]
    assert len(result.trace) == len(calls)
    assert result.generated == sum(len(call.output) for call in calls)
    assert result.prompt == sum(len(call.prompt) for call in calls)
    known: list[object] = []
    distinct = 0
    for call in calls:
        whole = call.prompt + call.output
        distinct += len(whole) - max((common_prefix(whole, other) for other in known), default=0)  # type: ignore[arg-type]
        known.append(whole)
    # The last token of an answer has no keys and values until the next call, which computes it.
    assert result.computed == distinct + len(calls) - len(made["agent"])
    assert len(result.seconds) == 3
    assert sum(result.seconds) == pytest.approx(result.wall, rel=0.05)


def test_results_are_the_same_each_time_and_programs_end_in_a_small_pool(
    made: dict[str, list[list[RecordedCall]]],
) -> None:
    for name, runs in made.items():
        for hints in (False, True):
            first, second = (simulate(runs, 900, hints=hints).result for _ in range(2))
            assert first == second, name
            assert len(first.seconds) == 3
    again = {"judge": recorded(["judge"])["judge"].language}
    plain = [[(call.prompt, call.after, call.hint.branch) for call in run] for run in made["judge"]]
    assert [[(call.prompt, call.after, call.hint.branch) for call in run] for run in again["judge"]] == plain


def test_no_schedule_beats_the_bounds(made: dict[str, list[list[RecordedCall]]]) -> None:
    ratio, row = compare("judge", Recorded(made["judge"], made["judge"]), 900, CPU, 3)
    language, offline, roomy = float(row[4]), float(row[5]), float(row[7])
    assert language == pytest.approx(ratio, abs=0.01)
    assert language <= offline <= roomy
    assert len(set(NAMES)) == 7


def test_equal_calls_of_a_program_are_recorded_once_and_plain_ones_all() -> None:
    tree = recorded(["tree"])["tree"]
    assert {len(run) for run in tree.plain} == {1 + 3 + 6 + 12}
    assert {len(run) for run in tree.language} == {1 + 1 + 3 + 6}
    for run in tree.language:
        assert sorted(run[-1].after)[-1] < len(run)
