"""Hints that programs send to the engine: their structure, and the end of each branch and program."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

import radixrt as rt
from radixrt.lang.backends.base import Call, Prompt
from radixrt.lang.backends.token_backend import EngineBackend
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import ProgramHint, SelectMethod
from radixrt.tasks.score import Decision
from tests.engine.helpers import LONG

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 3}


class Told(EngineBackend):
    """The engine's backend, which keeps what it is told."""

    def __init__(self, engine: rt.Engine) -> None:
        super().__init__(engine)
        self.hints: list[ProgramHint] = []
        self.released: list[str | None] = []
        self.order: list[str] = []

    async def generate(self, call: Call) -> AsyncGenerator[RequestOutput, None]:
        assert call.hint is not None
        self.hints.append(call.hint)
        self.order.append(f"call {call.hint.branch}")
        async for delta in super().generate(call):
            yield delta

    async def select(
        self, prompt: Prompt, choices: Sequence[str], method: SelectMethod, hint: ProgramHint | None
    ) -> Decision:
        assert hint is not None
        self.hints.append(hint)
        return await super().select(prompt, choices, method, hint)

    async def release(self, program: str, branch: str | None = None) -> None:
        self.released.append(branch)
        self.order.append(f"release {branch}")
        await super().release(program, branch)


def test_forks_prefixes_siblings_and_what_goes_on(engine: rt.Engine) -> None:
    backend = Told(engine)

    @rt.function(**GREEDY)
    def program(s: rt.State) -> None:
        s += rt.user("Hello there") + rt.assistant(rt.gen("a"))
        s["a"]
        branches = s.fork(3)
        for i, branch in enumerate(branches):
            branch += rt.user(f"More {i}") + rt.assistant(rt.gen("b") + " and " + rt.select("c", ["x", "y"]))
            branch.end()
        branches.values("c")
        s += rt.user("End") + rt.assistant(rt.gen("d")) + rt.user("Now") + rt.assistant(rt.gen("e"))

    state = program.run(backend=backend)
    by_branch: dict[str, list[ProgramHint]] = {}
    for hint in backend.hints:
        assert hint.program == state.log.program
        by_branch.setdefault(hint.branch, []).append(hint)
    assert set(by_branch) == {"0", "0/1", "0/2", "0/3"}
    first = state.log.calls[0]
    assert first.prompt_ids is not None
    assert first.output_ids is not None
    shared = len(first.prompt_ids + first.output_ids)  # of what follows, the number of tokens is not known
    for number in (1, 2, 3):
        generated, selected = by_branch[f"0/{number}"]
        assert generated.fork_len == selected.fork_len == shared
        assert generated.siblings == 3
        assert generated.will_continue
        assert not selected.will_continue  # the branch was ended before
    assert [hint.will_continue for hint in by_branch["0"]] == [True, True, False]  # the function returns during "d"
    assert [hint.siblings for hint in by_branch["0"]] == [1, 1, 1]
    assert backend.released == [None]  # the last call of each branch has said that it is the last


def test_branches_that_nobody_holds_any_more_are_done(engine: rt.Engine) -> None:
    backend = Told(engine)

    @rt.function(**GREEDY)
    def program(s: rt.State) -> list[str]:
        s += "Go"
        values = []
        for i in range(3):
            branch = s.copy()
            branch += str(i) + rt.gen("x")
            values.append(branch["x"])
        return values

    program.run(backend=backend)
    assert [branch for branch in backend.released if branch][:2] == ["0/1", "0/2"]
    assert backend.released[-1] is None


def test_a_program_that_fails_is_released_too(engine: rt.Engine) -> None:
    backend = Told(engine)

    @rt.function(**LONG)
    def program(s: rt.State) -> None:
        s += "Go" + rt.gen("x")
        while not s.log.calls:
            pass
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program.run(backend=backend)
    assert backend.released[-1] is None


def test_a_join_says_that_its_branches_are_done(engine: rt.Engine) -> None:
    backend = Told(engine)

    @rt.function(**GREEDY)
    def program(s: rt.State) -> Any:
        s += "Go"
        branches = s.fork(2)
        for i, branch in enumerate(branches):
            branch += str(i) + rt.gen("x")
        s += rt.join(branches, "x") + rt.gen("y")
        s["y"]
        branches[0].append("again" + rt.gen("z"))
        return branches

    state = program.run(backend=backend)
    assert state.returned[0]["z"]
    for hint in backend.hints[:2]:  # the first may have been sent before the join
        assert not hint.will_continue or hint.branch in backend.released


def test_what_is_forked_goes_on_until_the_last_branch_has_ended(engine: rt.Engine) -> None:
    backend = Told(engine)

    @rt.function(**GREEDY)
    def program(s: rt.State) -> None:
        (branch,) = s.fork(["only"])
        branch += "Go" + rt.gen("x")
        for i, leaf in enumerate(branch.fork(2)):
            leaf += f"then {i}" + rt.gen("y")
            leaf.end()
        branch.end()
        s += "Wait" + rt.gen("z")

    program.run(backend=backend)
    continues = {hint.branch: hint.will_continue for hint in backend.hints if hint.branch != "0"}
    assert continues == {"0/1": True, "0/1/1": False, "0/1/2": False}
    released = backend.order.index("release 0/1")
    assert {"call 0/1/1", "call 0/1/2"} <= set(backend.order[:released])
    assert backend.released == ["0/1", None]
