"""Equal greedy calls that a program makes at the same time are one request, and all of them get its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

import radixrt as rt
from radixrt.lang.backends.base import Call, Prompt
from radixrt.lang.backends.token_backend import EngineBackend
from radixrt.lang.core.shared_calls import JOIN_SHARE, SharedCalls
from radixrt.messages.client import RequestOutput
from radixrt.sampling_params import SamplingParams
from tests.engine.helpers import LONG

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6}


class Counting(EngineBackend):
    """The engine's backend, which counts calls: those that were sent and, of these, those that ended by themselves."""

    def __init__(self, engine: rt.Engine) -> None:
        super().__init__(engine)
        self.sent = self.ended = 0

    async def generate(self, call: Call) -> AsyncGenerator[RequestOutput, None]:
        self.sent += 1
        async for output in super().generate(call):
            yield output
        self.ended += 1


class Held(Counting):
    """Sends nothing until it is told: a call that fails ends too soon for the second branch to join it."""

    def __init__(self, engine: rt.Engine) -> None:
        super().__init__(engine)
        self.may_send = asyncio.Event()

    async def generate(self, call: Call) -> AsyncGenerator[RequestOutput, None]:
        await self.may_send.wait()
        async for output in super().generate(call):
            yield output


@rt.function
def votes(s: rt.State, texts: list[str], options: dict[str, Any]) -> list[str]:
    s += rt.user("Count to five.")
    branches = s.fork(len(texts))
    for branch, text in zip(branches, texts, strict=True):
        branch += rt.assistant(text + rt.gen("x", **options))
    return branches.values("x")


def test_branches_that_begin_with_the_same_call_share_it_and_go_on_by_themselves(engine: rt.Engine) -> None:
    @rt.function(**GREEDY)
    def program(s: rt.State) -> None:
        s += rt.user("Count to five.")
        for i, branch in enumerate(s.fork(3)):
            branch += rt.assistant(rt.gen("x")) + rt.user(f"And {i}?") + rt.assistant(rt.gen("y"))

    backend = Counting(engine)
    state = program.run(backend=backend)
    first, *others = [call for call in state.log.calls if call.name == "x"]
    assert backend.sent == 1 + 3
    assert first.same_as is None
    for call in others:
        assert call.same_as == first.id
        assert (call.text, call.output_ids, call.prompt_ids) == (first.text, first.output_ids, first.prompt_ids)
        assert (call.cached_tokens, call.completion_tokens) == (call.prompt_tokens - 1, first.completion_tokens)
    assert "(shared)" in state.report()
    for call in state.log.calls:
        assert call.prompt_ids is not None
        assert call.output_ids is not None
        alone = engine.generate(call.prompt_ids.tolist(), GREEDY)
        assert list(call.output_ids) == list(alone.token_ids)


@pytest.mark.parametrize(
    ("sampling", "texts", "sent"),
    [
        (GREEDY, ["", "", ""], 1),
        ({**GREEDY, "seed": 3}, ["", ""], 1),
        ({**GREEDY, "n": 3}, ["", ""], 1),
        (GREEDY, ["", "One"], 2),
        ({"max_tokens": 6}, ["", "", ""], 3),
        ({"max_tokens": 6, "seed": 3}, ["", ""], 2),
    ],
)
def test_only_greedy_calls_with_the_same_prompt_are_shared(
    engine: rt.Engine, sampling: dict[str, Any], texts: list[str], sent: int
) -> None:
    backend = Counting(engine)
    values = votes.run(texts, sampling, backend=backend).returned
    assert backend.sent == sent
    assert len(values) == len(texts)


def test_each_branch_streams_a_shared_answer(engine: rt.Engine) -> None:
    backend = Counting(engine)
    pieces: dict[str, str] = {}
    with votes.stream(["", ""], GREEDY, backend=backend) as stream:
        for event in stream:
            pieces[event.branch] = pieces.get(event.branch, "") + event.text
    assert backend.sent == 1
    assert len(pieces) == 2
    assert set(pieces.values()) == {stream.result().returned[0]}


def test_a_shared_call_ends_with_its_last_reader(engine: rt.Engine) -> None:
    @rt.function
    async def program(s: rt.State, cancelled: int) -> int:
        s += "Go"
        branches = s.fork(2)
        for branch in branches:
            branch += rt.gen("x", **{**LONG, "temperature": 0, "max_tokens": 200})
        while len([call for call in s.log.calls if call.start is not None]) < 2:
            await asyncio.sleep(0.001)
        for branch in list(branches)[:cancelled]:
            branch.cancel()
        return len(await branches[1].get("x")) if cancelled < 2 else 0

    backend = Counting(engine)
    assert program.run(1, backend=backend).returned > 0
    assert (backend.sent, backend.ended) == (1, 1)
    program.run(2, backend=backend)
    assert (backend.sent, backend.ended) == (2, 1)


def test_a_call_with_a_time_limit_joins_none_that_has_used_up_part_of_it(engine: rt.Engine) -> None:
    async def sent(pause_s: float) -> int:
        backend = Counting(engine)
        calls = SharedCalls(backend)
        call = Call(Prompt(["Go"]), SamplingParams(temperature=0.0, max_tokens=2), timeout_s=60.0)
        first, _ = calls.generate(call, 0)
        began = next(iter(calls._open.values()))
        began.began -= pause_s
        second, _ = calls.generate(call, 1)
        answers = await asyncio.gather(*(anext(outputs) for outputs in (first, second)))
        assert answers[0].text == answers[1].text
        await asyncio.gather(first.aclose(), second.aclose())
        return backend.sent

    assert asyncio.run(sent(0.0)) == 1
    assert asyncio.run(sent(60 * JOIN_SHARE + 1)) == 2


def test_an_error_of_a_shared_call_reaches_every_branch(engine: rt.Engine) -> None:
    backend = Held(engine)

    @rt.function(**GREEDY)
    async def program(s: rt.State) -> list[str]:
        branches = s.fork(2)
        for branch in branches:
            branch += "word " * 20_000 + rt.gen("x")
        while len([call for call in s.log.calls if call.start is not None]) < 2:
            await asyncio.sleep(0.001)
        backend.may_send.set()
        errors = []
        for branch in branches:
            with pytest.raises(rt.CallError) as caught:
                await branch.get("x")
            errors.append(str(caught.value.__cause__))
        return errors

    first, second = program.run(backend=backend).returned
    assert backend.sent == 1
    assert first == second
    assert "maximum" in first or "takes" in first
