"""Replaying traces: the plan against expected values; then real programs recorded and replayed on the real server."""

from __future__ import annotations

import asyncio
import re
from array import array
from pathlib import Path
from typing import Any

import pytest

import radixrt as rt
from radixrt.cli import main
from radixrt.lang.observe.replay import Replayed, plan, replay, table
from radixrt.lang.observe.replay_target import Answered, Question, Target
from radixrt.lang.observe.run_log import RunLog
from radixrt.lang.observe.trace import read_trace, trace
from tests.lang.observe.runs import Made, large_run, small_run


class Recorder(Target):
    """A target that answers after a fixed time, and notes what was asked when."""

    def __init__(self, seconds: float = 0.02, *, ids: bool = True, fails: str = "") -> None:
        self.name, self.ids = "recorder", ids
        self._seconds, self._fails = seconds, fails
        self.asked: list[tuple[float, Question]] = []
        self.open = self.most = 0
        self.released: list[str] = []

    async def _ask(self, question: Question, answer: Answered, start: float) -> None:
        self.asked.append((asyncio.get_running_loop().time(), question))
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(self._seconds)
        self.open -= 1
        if question.call.name == self._fails:
            raise ValueError("no")
        answer.prompt_tokens, answer.cached_tokens = question.call.prompt_tokens, 0
        answer.output_tokens = question.call.completion_tokens
        answer.text, answer.ids = question.call.text.upper(), [9] * question.call.completion_tokens

    async def release(self, program: str) -> None:
        self.released.append(program)

    async def aclose(self) -> None:
        raise NotImplementedError


def chain() -> RunLog:
    """Two calls, the second one on the first, a second after its answer; 2 of the 3 output tokens are in its prompt."""
    made = Made("chain")
    first = made.call("0", "a", (0.5, 0.5, 0.6, 1.0), "ask", (4, 0, 3, 0), "reply")
    second = made.call("0", "b", (2.0, 2.0, 2.1, 2.5), "askreply more", (9, 6, 2, 0), "end", depends=(0,))
    first.prompt_ids, first.output_ids = array("i", [1, 2, 3, 4]), array("i", [5, 6, 0])
    second.prompt_ids = array("i", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    return made.done(2.6)


def test_a_prompt_goes_on_from_what_was_answered_now() -> None:
    first, second = plan([chain()])
    assert (first.after, first.gap_s, first.base, first.continues) == ((), 0.5, None, True)
    assert (second.after, second.gap_s, second.continues) == (((0, 0),), 1.0, False)
    done = {(0, 0): Replayed("ASK", [1, 2, 3, 4], "other", [50, 60, 70])}
    assert second.ids(done) == [1, 2, 3, 4, 50, 60, 7, 8, 9]
    assert second.text(done) == "ASKother more"
    assert second.ids({}) == [1, 2, 3, 4, 5, 6, 7, 8, 9]  # the first call failed now
    assert second.text({}) == "askreply more"


def test_calls_that_failed_when_recorded_are_left_out() -> None:
    planned = plan([large_run()])
    assert len(planned) == 299
    assert len(planned[-6].after) == 254 or max(len(one.after) for one in planned) == 255


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop with a simulated clock, which stands still during work and advances instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        select = self._selector.select

        def advance(timeout: float | None = None) -> list[Any]:
            ready = select(0)
            if not ready and timeout:
                self.now += timeout
            return ready

        self._selector.select = advance

    def time(self) -> float:
        return self.now


def test_arrivals_and_dependencies() -> None:
    early, late = chain(), chain()
    late.unix_time += 3.0
    target = Recorder()
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        begin = runner.get_loop().time()
        result = runner.run(replay([early, late], target, speed=10))
    times = [at for at, _ in target.asked]
    assert [question.call.name for _, question in target.asked] == ["a", "b", "a", "b"]
    assert times[1] - times[0] == pytest.approx(0.02 + 0.1)  # the answer, and a tenth of the recorded second
    assert times[2] - begin == pytest.approx(0.35)
    assert len(result.answers) == 4
    assert len(set(target.released)) == 2
    assert [list(q.ids) for _, q in target.asked][1] == [1, 2, 3, 4, 9, 9, 7, 8, 9]
    assert all(q.hint is not None for _, q in target.asked)


async def test_concurrency_and_no_hints() -> None:
    target = Recorder(0.005, ids=False)
    result = await replay([large_run()], target, speed=float("inf"), concurrency=7, hints=False)
    assert target.most == 7
    assert len(result.answers) == 299
    assert not target.released
    assert all(q.hint is None and not q.ids and q.text for _, q in target.asked)


async def test_a_call_that_fails_now_does_not_stop_the_rest() -> None:
    runs = [small_run()]
    target = Recorder(0.0, fails="grade")
    result = await replay(runs, target, speed=float("inf"))
    assert [answer.error for answer in result.answers.values()].count(None) == 4
    text = table(runs, result, target)
    assert re.search(r"calls answered +5 +4\n", text)
    assert re.search(r"calls failed +0 +1\n", text)
    assert "error: the answer cannot be read: ValueError('no')" in text


def test_the_recorded_column() -> None:
    text = table([small_run()], asyncio.run(replay([small_run()], Recorder(0.0), speed=1e9)), Recorder())
    for row in (r"programs +1 +1", r"time, s +1\.19", r"prompt tokens +1,262 +1,262", r"  reused +890 +0",
                r"  hit rate +70\.5% +0\.0%", r"call p50, s +0\.485", r"call p99, s +0\.574"):  # fmt: skip
        assert re.search(row, text), row


# --- the real thing ---


@rt.function(temperature=0)
def recorded(s: rt.State, subject: str) -> None:
    s += rt.user(f"About {subject}.") + rt.assistant(rt.gen("first", max_tokens=6))
    for i, branch in enumerate(s.fork(2)):
        branch += rt.user(f"Part {i}.") + rt.assistant(rt.gen("part", max_tokens=3))
    s += rt.user("True?") + rt.assistant(rt.gen("true", bool))
    s += rt.user("Good?") + rt.assistant(rt.select("good", ["yes", "no"])) + rt.embed("vectors", [subject, "all"])


@pytest.fixture(scope="module")
def trace_path(server_url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    with trace(path):
        for subject in ("ships", "birds"):
            recorded.run(subject, backend=server_url)
    return path


def rows(text: str) -> dict[str, str]:
    """The replayed column."""
    found = re.findall(r"^ *(\w[\w ,]*?) {2,}(\S+(?: told)?) +(\S+(?: told)?)$", text, re.MULTILINE)
    return {name: right for name, _, right in found}


@pytest.mark.parametrize("options", [[], ["--send", "text"], ["--plain", "--send", "ids", "--concurrency", "2"]])
def test_on_the_server(
    trace_path: Path, server_url: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["replay", str(trace_path), "--base-url", server_url, "--speed", "inf", *options])
    text = capsys.readouterr().out
    assert code == 0, text
    assert text.startswith("12 calls of 2 programs, as fast as the calls allow\nreplayed on http://127.0.0.1:")
    found = rows(text)
    assert found["calls answered"] == "12"
    assert found["calls failed"] == "0"
    logs = read_trace(trace_path)
    free = [call for log in logs for call in log.calls if call.name in ("first", "part")]
    assert int(found["output tokens"].replace(",", "")) >= sum(call.completion_tokens for call in free)
    assert float(found["hit rate"].rstrip("%")) > 40
    assert ("(radixrt, smollm2" in text) == ("--plain" not in options)


def test_mistakes(trace_path: Path, server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in [
        ([str(tmp_path / "no.jsonl"), "--base-url", server_url], "no.jsonl cannot be read: No such file"),
        ([str(trace_path), "--base-url", "http://127.0.0.1:9"], "cannot connect to 127.0.0.1:9"),
        ([str(trace_path), "--base-url", "127.0.0.1:9"], "base_url must be like"),
        ([__file__, "--base-url", server_url], "line 1: this is not a line of a trace"),
    ]:
        assert main(["replay", *arguments]) == 2
        assert words in capsys.readouterr().err
    for arguments in (["--speed", "0"], ["--concurrency", "-1"], ["--speed", "x"]):
        with pytest.raises(SystemExit):
            main(["replay", str(trace_path), "--base-url", server_url, *arguments])


def test_a_trace_without_ids(server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = chain()
    for call in log.calls:
        call.prompt_ids = call.output_ids = None
    path = tmp_path / "trace.jsonl"
    with trace(path):
        log.emit("program_start")
        for call in log.calls:
            log.emit("call_end", call)
        log.emit("program_end")
    assert main(["replay", str(path), "--base-url", server_url, "--speed", "inf"]) == 0
    assert "calls answered" in capsys.readouterr().out
    assert main(["replay", str(path), "--base-url", server_url, "--send", "ids"]) == 2
    assert "use --send text" in capsys.readouterr().err
