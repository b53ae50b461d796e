"""Failures: errors are raised where the program reads, branches fail alone, and cancelling frees everything."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import radixrt as rt
from radixrt.errors import EngineError, RequestError
from tests.engine.helpers import CONTEXT, LONG, assert_at_rest, assert_eventually, one, start

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6}
TOO_LONG = "word " * CONTEXT


def running(engine: rt.Engine) -> bool:
    return engine.client.open_requests > 0


def test_an_error_in_one_branch_leaves_its_siblings_alone_and_names_the_branch(engine: rt.Engine) -> None:
    @rt.function(**GREEDY)
    def program(s: rt.State) -> Any:
        s += "Go"
        views = s.fork(["good", "bad", "fine"])
        views["bad"].append(TOO_LONG)
        for view in views:
            view += rt.gen("note") + " then" + rt.gen("later")
        with pytest.raises(rt.CallError, match=r'program, branch 0/2 \(bad\), gen "note": .*maximum context') as raised:
            views["bad"]["note"]
        assert (raised.value.branch, raised.value.key, raised.value.name) == ("0/2", "bad", 'gen "note"')
        assert isinstance(raised.value.__cause__, RequestError)
        with pytest.raises(rt.CallError, match='gen "note"'):
            views["bad"]["later"]
        with pytest.raises(rt.CallError, match='gen "note"'):
            views["bad"].text()
        assert str(rt.join(views, "note", skip_errors=True, sep="|")).count("|") == 1
        child = views["bad"].copy()
        child += rt.gen("x")
        with pytest.raises(rt.CallError, match=r"branch 0/2 \(bad\)"):
            child["x"]
        return views

    state = program.run(backend=engine)
    views = state.returned
    assert state.error is None
    assert isinstance(views["bad"].error, rt.CallError)
    assert views["good"]["note"] == views["fine"]["note"] == one(engine, "Go", GREEDY).text
    assert views["good"]["later"] == views["fine"]["later"]
    assert state.usage.errors == 1
    assert "maximum context" in (state.log.branches["0/2"].error or "")


def test_a_join_fails_with_the_branch_that_failed(engine: rt.Engine) -> None:
    @rt.function(**GREEDY)
    def program(s: rt.State) -> None:
        s += "Go"
        views = s.fork(2)
        views[1].append(TOO_LONG)
        for view in views:
            view += rt.gen("note")
        s += rt.join(views, "note")
        s += rt.gen("x")

    with pytest.raises(rt.CallError, match=r"branch 0/2 \(1\), gen \"note\""):
        program.run(backend=engine)


def test_a_program_that_never_reads_runs_to_its_end(engine: rt.Engine) -> None:
    @rt.function(**GREEDY)
    def program(s: rt.State) -> None:
        s += "Go" + rt.gen("a") + "on" + rt.gen("b")
        s.fork(3)[1].append(rt.gen("c"))

    state = program.run(backend=engine)
    assert len(state.log.calls) == 3
    assert all(call.end is not None for call in state.log.calls)
    assert state.done("b")

    @rt.function
    def failing(s: rt.State) -> None:
        s += TOO_LONG + rt.gen("a")

    with pytest.raises(rt.CallError, match='failing, branch 0, gen "a"'):
        failing.run(backend=engine)


def test_an_error_of_the_function_itself_surfaces_and_aborts_the_rest(engine: rt.Engine) -> None:
    @rt.function(**LONG)
    def program(s: rt.State) -> None:
        s += "Go"
        for branch in s.fork(4):
            branch += rt.gen("x")
        assert_eventually(lambda: running(engine))
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        program.run(backend=engine)
    assert_at_rest(engine)


class OwnError(Exception):
    """Has a use of its own for the name."""

    def __init__(self, state: str) -> None:
        super().__init__(state)
        self.state = state


@pytest.mark.parametrize("way", ["run", "async_run", "async def", "stream", "batch"])
async def test_what_ends_a_run_carries_its_state(engine: rt.Engine, way: str, tmp_path: Path) -> None:
    @rt.function(**GREEDY)
    def program(s: rt.State, wrong: str) -> None:
        s += "Go" + rt.gen("a")
        s["a"]
        if wrong == "own":
            raise ZeroDivisionError("mine")
        if wrong == "named":
            raise OwnError("taken")
        s += TOO_LONG + rt.gen("b")

    @rt.function(**GREEDY)
    async def waiting(s: rt.State, wrong: str) -> None:
        s += "Go" + rt.gen("a")
        await s.get("a")
        if wrong == "own":
            raise ZeroDivisionError("mine")
        if wrong == "named":
            raise OwnError("taken")
        s += TOO_LONG + rt.gen("b")

    async def error_of(wrong: str) -> Any:
        try:
            if way == "run":
                await asyncio.to_thread(program.run, wrong, backend=engine)
            elif way == "async_run":
                await program.async_run(wrong, backend=engine)
            elif way == "async def":
                await waiting.async_run(wrong, backend=engine)
            elif way == "stream":
                async with program.stream(wrong, backend=engine) as stream:
                    _ = [event async for event in stream]
            else:
                (item,) = await program.async_batch([wrong], backend=engine)
                assert item.state is getattr(item.exception, "state", None) or wrong == "named"
                if item.exception is not None:
                    raise item.exception
        except Exception as error:
            return error

    for wrong, kind in (("call", rt.CallError), ("own", ZeroDivisionError)):
        error = await error_of(wrong)
        assert type(error) is kind
        assert error.state["a"]
        assert error.state.usage.calls == (2 if wrong == "call" else 1)
        assert ("maximum context" if wrong == "call" else "mine") in error.state.report()
        error.state.save_report(str(tmp_path / "run.html"))
    assert (await error_of("named")).state == "taken"


def test_of_runs_within_a_run_the_outer_one_is_carried_out_of_it(engine: rt.Engine) -> None:
    @rt.function(**GREEDY)
    def inner(s: rt.State) -> None:
        s += TOO_LONG + rt.gen("x")

    @rt.function(**GREEDY)
    def outer(s: rt.State) -> None:
        s += "Go" + rt.gen("a")
        inner.run(backend=engine)

    with pytest.raises(rt.CallError, match="inner") as raised:
        outer.run(backend=engine)
    assert raised.value.state is not None
    assert raised.value.state.log.name == "outer"


def test_a_reader_may_come_late(engine: rt.Engine) -> None:
    @rt.function(**GREEDY)
    def program(s: rt.State) -> rt.State:
        s += "Go" + rt.gen("a")
        branch = s.copy()
        branch += rt.gen("b")
        return branch

    state = program.run(backend=engine)  # returns when all of its branches are done
    assert state.returned["b"]
    assert state.returned.text().endswith(state.returned["b"])
    with pytest.raises(rt.ProgramError, match="has ended"):
        state.returned.append("more")


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_cancelling_a_task_aborts_the_program(engine: rt.Engine, kind: str) -> None:
    seen: list[BaseException] = []

    @rt.function(**LONG)
    def plain(s: rt.State) -> None:
        try:
            s += "Go"
            branches = s.fork(3)
            for branch in branches:
                branch += rt.gen("x")
            branches.values("x")
        except BaseException as error:
            seen.append(error)
            raise

    @rt.function(**LONG)
    async def awaiting(s: rt.State) -> None:
        try:
            s += "Go" + rt.gen("x")
            await s.get("x")
        except BaseException as error:
            seen.append(error)
            raise

    task = asyncio.create_task((plain if kind == "def" else awaiting).async_run(backend=engine))
    while not running(engine):
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(assert_at_rest, engine)
    await asyncio.to_thread(assert_eventually, lambda: len(seen) == 1)
    assert isinstance(seen[0], asyncio.CancelledError)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As in a terminal: what is started in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_ctrl_c_aborts_the_program(engine: rt.Engine, kind: str) -> None:
    @rt.function(**LONG)
    def plain(s: rt.State) -> None:
        s += "Go" + rt.gen("x")
        s["x"]

    @rt.function(**LONG)
    async def awaiting(s: rt.State) -> None:
        s += "Go" + rt.gen("x")
        await s.get("x")

    program = plain if kind == "def" else awaiting

    def interrupt() -> None:
        assert_eventually(lambda: running(engine))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        program.run(backend=engine)
    thread.join()
    assert_at_rest(engine)


def test_a_branch_can_be_cancelled_alone(engine: rt.Engine) -> None:
    @rt.function(temperature=0, ignore_eos=True)
    def race(s: rt.State) -> str:
        s += "Go"
        with s.fork(["slow", "fast"]) as runners:
            runners["slow"].append(rt.gen("x", max_tokens=450))
            runners["fast"].append(rt.gen("x", max_tokens=3))
            won = runners["fast"]["x"]
            runners["slow"].cancel()
        with pytest.raises(rt.ProgramCancelled):
            runners["slow"]["x"]
        s += rt.join(runners, "x", skip_errors=True) + rt.gen("y", max_tokens=2)
        other = s.copy()
        other += rt.join(runners, "x") + rt.gen("z")
        with pytest.raises(rt.CallError, match=r"race, branch 0/3 \(0\), join: branch 0/1, .* was cancelled"):
            other["z"]
        return won

    state = race.run(backend=engine)
    assert state.returned == one(engine, "Go", {"temperature": 0, "max_tokens": 3, "ignore_eos": True}).text
    assert [call.finish for call in state.log.calls] == ["cancelled", "length", "length"]


def test_leaving_a_with_block_by_an_exception_cancels(engine: rt.Engine) -> None:
    states: list[rt.State] = []

    def leave() -> None:
        with rt.State(engine, sampling=LONG) as s:
            states.append(s)
            s += "Go" + rt.gen("x")
            assert_eventually(lambda: running(engine))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    assert_at_rest(engine)
    assert states[0].log.end is not None


def test_a_backend_that_dies_midway(tiny_model: Callable[[str], Path]) -> None:
    engine = start(tiny_model("llama"))
    errors: list[str] = []

    @rt.function(**LONG)
    def program(s: rt.State) -> None:
        s += "Go"
        branches = s.fork(5)
        for branch in branches:
            branch += rt.gen("x") + rt.gen("y")
        s += rt.join(branches, "x", skip_errors=True)
        assert_eventually(lambda: running(engine))
        engine.close()
        for branch in branches:
            with pytest.raises(rt.CallError) as raised:
                branch["y"]
            assert isinstance(raised.value.__cause__, EngineError)
            errors.append(str(raised.value))
        s += rt.gen("z")

    with pytest.raises(rt.CallError, match='program, branch 0, gen "z": the engine was shut down'):
        program.run(backend=engine)
    assert len(errors) == 5
    assert all("the engine was shut down" in error for error in errors)
    late = rt.State(engine)
    late += "Go" + rt.gen("x")
    with pytest.raises(rt.CallError, match="the engine was shut down"):
        late.close()


def test_a_process_of_the_engine_that_is_killed(tiny_model: Callable[[str], Path]) -> None:
    @rt.function(**LONG)
    def program(s: rt.State) -> None:
        s += "Go"
        branches = s.fork(3)
        for branch in branches:
            branch += rt.gen("x") + rt.gen("y")
        assert_eventually(lambda: running(engine))
        os.kill(engine.pids["scheduler"], signal.SIGKILL)
        branches.values("y")

    with start(tiny_model("llama"), executor="mp") as engine, pytest.raises(rt.CallError) as raised:
        program.run(backend=engine)
    assert isinstance(raised.value.__cause__, EngineError)
    assert "scheduler" in str(raised.value)


def test_a_call_has_a_deadline_of_its_own(engine: rt.Engine) -> None:
    @rt.function(**LONG)
    def program(s: rt.State) -> None:
        s += "Go" + rt.gen("x", timeout_s=0.001)

    # What was generated until the deadline is the answer; an error tells that there was nothing.
    try:
        ended = program.run(backend=engine).meta["x"].finish_reason
    except rt.CallError as error:
        ended = str(error)
    assert ended == "timeout" or 'gen "x"' in ended


def test_a_thousand_branches(engine: rt.Engine) -> None:
    threads = threading.active_count()

    @rt.function(temperature=0, max_tokens=2)
    def program(s: rt.State) -> list[str]:
        s += "The capital of"
        branches = s.fork(1000)
        for i, branch in enumerate(branches):
            branch += f" {i % 10}" + rt.gen("x")
        assert threading.active_count() <= threads + 1  # the event loop's, if this was the first program
        return branches.values("x")

    state = program.run(backend=engine)
    few = [one(engine, f"The capital of {i}", {"temperature": 0, "max_tokens": 2}).text for i in range(10)]
    assert state.returned == few * 100
    assert state.usage.calls == 1000
    assert state.usage.cached_tokens > 1000


def test_blocking_where_it_would_stop_everything_is_refused(engine: rt.Engine) -> None:
    @rt.function(**GREEDY)
    def plain(s: rt.State) -> None:
        s += "Go" + rt.gen("x")

    @rt.function
    async def wrong(s: rt.State) -> None:
        plain.run(backend=engine)

    with pytest.raises(rt.ProgramError, match=r"write await .*plain\.async_run"):
        wrong.run(backend=engine)

    @rt.function
    def calls_async(s: rt.State) -> None:
        wrong(s)

    with pytest.raises(rt.ProgramError, match="only an async def program can run it"):
        calls_async.run(backend=engine)


def test_observers_that_fail_disturb_nothing(engine: rt.Engine) -> None:
    from radixrt.lang.observe.run_log import observe

    seen: list[str] = []

    def observer(log: Any, event: str, record: Any) -> None:
        seen.append(event)
        if event == "call_end":
            raise ValueError("no")

    @rt.function(**GREEDY)
    def program(s: rt.State) -> None:
        s += "Go" + rt.gen("x")

    stop = observe(observer)
    with pytest.warns(UserWarning, match="an observer of programs failed at call_end"):
        program.run(backend=engine)
    stop()
    program.run(backend=engine)
    assert seen == ["program_start", "branch_start", "call_start", "call_end", "branch_end", "program_end"]


@pytest.mark.parametrize("put", [lambda part: f"It is {part}.", str, "{}".format], ids=["f-string", "str", "format"])
def test_a_primitive_in_a_text_is_refused_with_its_line(put: Callable[[Any], str]) -> None:
    for part, name in (
        (rt.gen("city"), r"rt\.gen"),
        (rt.select("x", ["a", "b"]), r"rt\.select"),
        (rt.user("a"), "a prim"),
    ):
        with pytest.raises(rt.ProgramError, match=rf"^test_failures\.py, line \d+: {name}.*append it instead: s \+= "):
            put(part)
        assert repr(part)


@rt.function(**GREEDY)
def helper(s: rt.State, word: str) -> None:
    s += word + rt.gen("said")


def test_reading_a_program_that_was_not_run_is_refused(engine: rt.Engine) -> None:
    for read in (
        lambda: helper("a")["said"],
        lambda: helper("a").text,
        lambda: helper("a").meta["said"],
        lambda: f"It is {helper('a')}",
    ):
        with pytest.raises(
            rt.ProgramError, match=r"test_failures\.py, line \d+: helper\(\.\.\.\).* helper\.run\(\.\.\.\) runs it"
        ):
            read()

    @rt.function
    def whole(s: rt.State) -> None:
        s += "Go" + helper("a")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert whole.run(backend=engine)["said"]


def test_a_program_that_is_called_and_not_run_warns() -> None:
    with pytest.warns(RuntimeWarning, match=r"helper\(\.{3}\) was never appended.*helper\.run"):
        helper("a")
