"""The comparison's programs go through their calls in order, with hints; every arm gets the same ones."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.fleet.compare import results_table
from benchmarks.fleet.compare_load import PROGRAMS, Measured, Player, _open_loop, arrivals
from radixrt.bench.result import Outcome

A = PROGRAMS["A"]
LOAD = replace(A, shape=replace(A.shape, branches=(4,), weights=(1.0,)), rate=1000.0)


class Server:
    """Answers each call with its number; the call of number `failing` with an error."""

    def __init__(self, failing: int = -1) -> None:
        self.bodies: list[Any] = []
        self.failing = failing

    async def ask(self, path: str, body: Mapping[str, Any]) -> Outcome:
        assert path == "/generate"
        self.bodies.append(body)
        number = len(self.bodies)
        if number == self.failing:
            return Outcome(1.0, error="HTTP 503: no replica")
        return Outcome(1.0, [2.0], prompt_tokens=100, cached_tokens=60, output_tokens=1, text=f"<{number}>")


def played(server: Server, count: int = 1) -> Measured:
    player = Player(server.ask)
    asyncio.run(_open_loop(player, LOAD, 3, count / LOAD.count))
    return player.measured


def test_a_program_is_a_call_a_fork_and_a_join() -> None:
    server = Server()
    measured = played(server)
    first, *branches, join = server.bodies
    assert first["program"] == {"id": "3-0", "will_continue": True}
    assert [b["program"]["branch"] for b in branches] == ["0", "1", "2", "3"]
    assert {b["program"]["siblings"] for b in branches} == {4}
    assert all(b["text"].startswith(first["text"] + "<1> ") for b in branches)
    assert join["text"] == first["text"] + "<1> <2> <3> <4> <5>"
    assert [len(measured.ttft), len(measured.program_s), measured.errors] == [6, 1, []]
    assert (measured.prompt_tokens, measured.cached_tokens) == (600, 360)


def test_a_failed_call_ends_its_program_with_an_error() -> None:
    measured = played(Server(failing=3), count=2)
    assert len(measured.errors) == 1
    assert "HTTP 503: no replica" in measured.errors[0]
    assert len(measured.program_s) == 1


def test_the_same_seed_gives_the_same_programs() -> None:
    one, other = ([(at, name, app, rng.random()) for at, name, rng, app in arrivals(LOAD, 1, 20)] for _ in range(2))
    assert one == other
    assert one != [(at, name, app, rng.random()) for at, name, rng, app in arrivals(LOAD, 2, 20)]


def test_the_table_has_means_and_spreads_of_rounds() -> None:
    rounds = [Measured([1.0], [value], 100, 50) for value in (2.0, 4.0)]
    table = results_table([("A", "radixrt", each) for each in rounds])
    assert "| A        | radixrt | 1 ±0" in table
    assert "3 ±1" in table
