"""A program over many items."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

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
    with pytest.raises(rt.ProgramError, match=r"out\.jsonl, line 1, is no result"):
        ask.batch(items, backend=engine, output=output, resume=True)


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
