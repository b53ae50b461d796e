"""A program over many items."""

from __future__ import annotations

import asyncio
import datetime
import json
import threading
import warnings
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import pydantic
import pytest

import radixrt as rt
from tests.engine.helpers import CONTEXT, LONG, assert_at_rest, assert_eventually

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 3}
TOO_LONG = "word " * CONTEXT


@rt.function(**GREEDY)
def ask(s: rt.State, question: str) -> None:
    s += rt.user(question) + rt.assistant(rt.gen("answer"))


@rt.function(**GREEDY)
async def ask_async(s: rt.State, question: str) -> None:
    s += rt.user(question) + rt.assistant(rt.gen("answer"))
    await s.get("answer")


@pytest.mark.parametrize("program", [ask, ask_async])
def test_items_in_their_order_with_their_errors(engine: rt.Engine, program: rt.Function) -> None:
    items = [{"question": "a"}, ("b",), "c", {"question": TOO_LONG}, {"wrong": 1}, "a"]
    results = program.batch(items, backend=engine, concurrency=3, progress=False)
    assert [result.index for result in results] == list(range(6))
    assert [result.error is None for result in results] == [True, True, True, False, False, True]
    assert results[0]["answer"] == results[5].values["answer"] == ask.run("a", backend=engine)["answer"]
    assert isinstance(results[3].exception, rt.CallError)
    assert "missing a required argument: 'question'" in str(results[4].error)
    with pytest.raises(rt.CallError):
        results[3]["answer"]


def test_no_more_at_once_than_wanted(engine: rt.Engine) -> None:
    running = 0
    most = 0
    lock = threading.Lock()

    @rt.function(**GREEDY)
    def program(s: rt.State, i: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        s += f"{i}" + rt.gen("x")
        s["x"]
        with lock:
            running -= 1

    results = program.batch((i for i in range(20)), backend=engine, concurrency=4)
    assert len(results) == 20
    assert 1 < most <= 4


def test_results_go_to_a_file_and_are_taken_up_again(engine: rt.Engine, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    items = [{"question": "a"}, {"question": TOO_LONG}, {"question": "c"}]
    first = ask.batch(items, backend=engine, output=output)
    assert [one.state for one in first] == [None] * 3
    assert isinstance(first[1].exception, rt.CallError)
    assert first[1].exception.state is None
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert sorted(line["index"] for line in lines) == [0, 1, 2]
    by_index = {line["index"]: line for line in lines}
    assert by_index[0]["values"] == {"answer": first[0]["answer"]}
    assert by_index[0]["input"] == {"question": "a"}
    assert by_index[0]["usage"]["calls"] == 1
    assert "maximum context" in by_index[1]["error"]
    with pytest.raises(rt.ProgramError, match="resume=True"):
        ask.batch(items, backend=engine, output=output)

    with output.open("a") as file:
        file.write('{"index": 2, "input": {"que')  # as an interrupted write leaves it
    items[1] = {"question": "b"}
    again = ask.batch(items, backend=engine, output=output, resume=True)
    assert [result.resumed for result in again] == [True, False, True]
    assert again[0]["answer"] == first[0]["answer"]
    assert again[1].error is None
    assert len(output.read_text().splitlines()) == 4
    third = ask.batch([{"question": "z"}], backend=engine, output=output, resume=True)
    assert not third[0].resumed  # another question now stands in that place

    output.write_text('{"no": "result"}\n')
    with pytest.raises(rt.ProgramError, match=r"out\.jsonl, line 1, is no result of this program"):
        ask.batch(items, backend=engine, output=output, resume=True)


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


@dataclass
class Note:
    day: datetime.date
    moods: tuple[Mood, ...]


class Pair(NamedTuple):
    first: int
    second: bool


Item = TypeVar("Item")


class Box(pydantic.BaseModel, Generic[Item]):
    item: Item


def typed(limit: int) -> rt.Function:
    class Grade(pydantic.BaseModel):
        score: int = pydantic.Field(ge=0, le=limit)

    @rt.function(temperature=1.0, seed=5, max_tokens=60)
    def grade(s: rt.State, text: str) -> None:
        s += text + rt.gen("grade", Grade) + rt.gen("mood", Mood) + rt.gen("note", Note)
        s += rt.gen("pairs", Annotated[list[Pair], pydantic.Field(min_length=1, max_length=2)])
        s += rt.gen("days", datetime.date, n=2) + rt.gen("box", Box[Mood]) + rt.gen("either", Pair | Literal["no"])
        s += rt.gen("schema", json_schema=Grade) + rt.gen("number", int) + rt.select("chosen", ["a", "b"])

    return grade


def test_resumed_values_have_the_types_of_the_program(engine: rt.Engine, tmp_path: Path) -> None:
    output = tmp_path / "typed.jsonl"
    (first,) = typed(9).batch(["a"], backend=engine, output=output)
    assert first.error is None
    # The class of the grade is another object in each program, as it is in each process.
    program = typed(9)
    (again,) = program.batch(["a"], backend=engine, output=output, resume=True)
    assert again.resumed
    grade = first.values.pop("grade")
    assert again["grade"].score == grade.score
    assert again.values.pop("schema").score == first.values.pop("schema").score
    assert type(again.values.pop("grade")).__qualname__ == "typed.<locals>.Grade"
    assert again.values == first.values
    assert [type(value) for value in again.values.values()] == [type(value) for value in first.values.values()]
    assert isinstance(again["note"].moods, tuple)
    assert isinstance(again["pairs"][0], Pair)
    assert isinstance(again["box"].item, Mood)

    # A class that has changed refuses its values, and the error says what to do.
    line = json.loads(output.read_text())
    line["values"]["grade"]["score"] = 10
    output.write_text(json.dumps(line) + "\n")
    with pytest.raises(
        rt.ProgramError, match=r"(?s)typed\.jsonl, line 1, .*'grade'.*less than or equal to 9.*; remove the line"
    ):
        program.batch(["a"], backend=engine, output=output, resume=True)
    line["types"] = {"mood": "shop:Vanished"}
    output.write_text(json.dumps(line) + "\n")
    with pytest.raises(rt.ProgramError, match="the class Vanished of the module shop is not defined"):
        program.batch(["a"], backend=engine, output=output, resume=True)


def test_a_value_that_json_does_not_give_back_is_plain_with_a_warning(engine: rt.Engine, tmp_path: Path) -> None:
    class Shouted(pydantic.BaseModel):
        word: str = pydantic.Field(max_length=4)

        @pydantic.field_serializer("word")
        def louder(self, word: str) -> str:
            return word + "!"

    @rt.function(temperature=0, max_tokens=30)
    def shout(s: rt.State, text: str) -> None:
        s += text + rt.gen("said", Shouted)

    output = tmp_path / "plain.jsonl"
    with pytest.warns(UserWarning, match="plain JSON for 'said'"):
        shout.batch(["a"], backend=engine, output=output)
    (again,) = shout.batch(["a"], backend=engine, output=output, resume=True)
    assert again["said"]["word"].endswith("!")


async def test_blocking_calls_in_an_event_loop_warn(engine: rt.Engine) -> None:
    with pytest.warns(RuntimeWarning, match=r"ask\.run\(\.\.\.\) stops .*; write await ask\.async_run") as caught:
        ask.run("a", backend=engine)
    with pytest.warns(RuntimeWarning, match=r"write await ask\.async_batch"):
        ask.batch(["a"], backend=engine)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await ask.async_run("a", backend=engine)
        await asyncio.to_thread(ask.run, "a", backend=engine)


async def test_cancelling_a_batch_cancels_its_programs(engine: rt.Engine, tmp_path: Path) -> None:
    @rt.function(**LONG)
    def long(s: rt.State, i: int) -> None:
        s += f"{i}" + rt.gen("x")

    output = tmp_path / "out.jsonl"
    task = asyncio.create_task(long.async_batch(range(100), backend=engine, concurrency=3, output=output))
    await asyncio.to_thread(assert_eventually, lambda: engine.client.open_requests == 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(assert_at_rest, engine)
    assert output.read_text() == ""


def test_wrong_arguments(engine: rt.Engine) -> None:
    with pytest.raises(rt.ProgramError, match="concurrency"):
        ask.batch([], backend=engine, concurrency=0)
    assert ask.batch([], backend=engine) == []
