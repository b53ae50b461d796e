"""Programs whose texts are read while they are generated."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pydantic
import pytest

import radixrt as rt
from tests.engine.helpers import LONG, assert_at_rest, assert_eventually

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


class Note(pydantic.BaseModel):
    text: Annotated[str, pydantic.Field(min_length=10, max_length=30)]
    marks: Annotated[list[bool], pydantic.Field(min_length=2, max_length=3)]


@rt.function
def program(s: rt.State) -> str:
    s += "Go" + rt.gen("a", **GREEDY)
    for branch in s.fork(["p", "q"]):
        branch += f"{s['a']}!" + rt.gen("b", **GREEDY)
    s += rt.gen("note", Note) + rt.gen("several", n=2, **GREEDY)
    return s["a"]


def test_events_add_up_to_the_texts_and_values(engine: rt.Engine) -> None:
    stream = program.stream(backend=engine)
    events = list(stream)
    state = stream.state
    texts: dict[tuple[str, str, int], str] = {}
    for event in events:
        key = event.branch, event.name, event.index
        texts[key] = texts.get(key, "") + event.text
        assert event.done or event.so_far == texts[key]
    assert texts["0", "a", 0] == state["a"]
    assert [texts["0", "several", i] for i in (0, 1)] == state["several"]
    assert {event.key for event in events} == {"", "p", "q"}
    done = {(event.branch, event.name): event.value for event in events if event.done}
    assert done["0", "note"] == state["note"]
    assert done["0", "several"] == state["several"]
    notes = [event for event in events if event.name == "note"]
    assert len(notes) > 3
    assert all(event.partial is None or isinstance(event.partial, dict) for event in notes[:-1])
    assert any(event.partial and event.partial.keys() == {"text"} for event in notes)
    assert notes[-1].partial == state["note"]
    assert sum(event.done for event in events) == 5
    assert all(call.first_token is not None for call in state.log.calls)
    assert stream.result() is state


def test_one_name_alone(engine: rt.Engine) -> None:
    stream = program.stream(backend=engine)
    assert "".join(stream.text("a")) == stream.state["a"]


def test_a_late_reader_misses_nothing(engine: rt.Engine) -> None:
    stream = program.stream(backend=engine)
    state = stream.result()
    assert "".join(event.text for event in stream if event.name == "a") == state["a"]


async def test_in_an_event_loop(engine: rt.Engine) -> None:
    @rt.function
    async def awaiting(s: rt.State) -> None:
        s += "Go" + rt.gen("a", **GREEDY)
        s += (await s.get("a"))[:1] + rt.gen("b", **GREEDY)

    for one in (program, awaiting):
        stream = one.stream(backend=engine)
        text = "".join([event.text async for event in stream if event.name == "a"])
        assert text == stream.state["a"]
    async with program.stream(backend=engine) as stream:
        async for _ in stream:
            break
    await asyncio.to_thread(assert_at_rest, engine)


def test_leaving_early_cancels(engine: rt.Engine) -> None:
    @rt.function
    def long(s: rt.State) -> None:
        s += "Go" + rt.gen("a", **LONG)
        s["a"]

    with long.stream(backend=engine) as stream:
        for event in stream:
            assert event.text
            break
    assert_eventually(lambda: stream.state.log.end is not None)
    assert_at_rest(engine)
    with pytest.raises(rt.ProgramError, match="the stream was closed"):
        list(stream)
    with pytest.raises(rt.ProgramError, match="was cancelled"):
        stream.state["a"]


def test_the_programs_error_comes_at_the_end(engine: rt.Engine) -> None:
    @rt.function
    def failing(s: rt.State) -> None:
        s += "Go" + rt.gen("a", **GREEDY)
        s["a"]
        raise ZeroDivisionError("mine")

    events: list[rt.StreamEvent] = []
    with pytest.raises(ZeroDivisionError, match="mine"):
        events.extend(failing.stream(backend=engine))
    assert events[-1].done
