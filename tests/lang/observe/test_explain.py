"""`explain`: the calls and shared prefixes of programs before they run, compared with real runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest

import radixrt as rt
from radixrt.errors import RequestError
from radixrt.lang.backends.openai import OpenAI
from radixrt.lang.errors import ProgramError
from radixrt.lang.observe.dry_run import MAX_CALLS_OF_A_BRANCH, placeholder
from radixrt.lang.observe.explain import Explanation
from radixrt.lang.observe.trace import read_trace, trace
from radixrt.python_types import parse
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.admission import KIN_DEFER_TOKENS
from tests.engine.helpers import start


@pytest.fixture(scope="module")
def engine(tiny_model: Callable[[str], Path]) -> Iterator[rt.Engine]:
    with start(tiny_model("llama")) as made:
        yield made


@dataclass
class Point:
    title: str
    weight: int
    certain: bool


class Node(pydantic.BaseModel):
    score: Annotated[int, pydantic.Field(ge=1, le=10)]
    kind: Literal["leaf", "inner"]
    children: list[Node] = []


@rt.function(temperature=0)
def judge(s: rt.State, essay: str) -> None:
    s += rt.system("You grade essays.") + rt.user(essay)
    views = s.fork(["clarity", "style"])
    for view, topic in views.items():
        view += rt.user(f"Comment on its {topic}.") + rt.assistant(rt.gen("note", max_tokens=6))
    s += rt.user("Notes: " + rt.join(views, "note")) + rt.assistant(rt.select("grade", ["pass", "fail"]))
    s += rt.user("Now.") + rt.assistant(rt.gen("sure", bool))


def named(made: Explanation) -> dict[str, Any]:
    return {f"{call.branch_key}{'/' if call.branch_key else ''}{call.name}": call for call in made.calls}


def test_the_graph(engine: rt.Engine) -> None:
    made = judge.explain("The sea is wide.", backend=engine)
    calls = named(made)
    assert sorted(calls) == ["clarity/note", "grade", "style/note", "sure"]
    assert made.notes == []
    assert calls["clarity/note"].max_tokens == 6
    assert calls["grade"].max_tokens is None
    assert len(calls["grade"].depends) == 2
    assert calls["sure"].depends == (calls["grade"].id,)
    assert len(calls["sure"].outputs) == 3


def test_it_tells_what_a_run_then_does(engine: rt.Engine) -> None:
    engine.flush_cache()
    made = judge.explain("The sea is wide.", backend=engine)
    state = judge.run("The sea is wide.", backend=engine)
    calls = named(made)
    real = {f"{state.log.branches[c.branch].key}{'/' if c.branch != '0' else ''}{c.name}": c for c in state.log.calls}
    assert sorted(real) == sorted(calls)
    for name in ("clarity/note", "style/note"):  # nothing generated is in these prompts, so that they are known exactly
        assert calls[name].length == real[name].prompt_tokens
    assert sum(calls[f"{key}/note"].shared for key in ("clarity", "style")) == sum(
        real[f"{key}/note"].cached_tokens for key in ("clarity", "style")
    )
    before, chosen, after = real["grade"].prompt_ids, real["grade"].output_ids, real["sure"].prompt_ids
    assert before is not None
    assert chosen is not None
    assert after is not None
    assert len(after) - len(before) - len(chosen) == calls["sure"].length - calls["grade"].length


@rt.function(temperature=0, max_tokens=4)
def short_forks(s: rt.State) -> None:
    """Branches part after less than DEFER_TOKENS tokens, and again after a call."""
    s += rt.system("Brief.")
    for town in s.fork(["Rome", "Oslo", "Oruro"]):
        town += rt.user(f"Where is {town.key}?") + rt.assistant(rt.gen("place", n=2, seed=1))
        for why in town.fork(["Why is it there?", "Why is it so?", "How?"]):
            why += rt.user(why.key) + rt.assistant(rt.gen("reason", stop="never"))


def test_it_tells_the_cached_tokens_of_each_call(engine: rt.Engine) -> None:
    """The cache is fresh. A call that comes a step later than planned finds a few tokens more, and never less."""
    for _ in range(3):
        engine.flush_cache()
        made = short_forks.explain(backend=engine)
        state = short_forks.run(backend=engine)
        real = {(call.branch, call.name, call.index): call for call in state.log.calls}
        for planned, call in zip(made.calls, made.log.calls, strict=True):
            run = real[planned.branch, planned.name, call.index]
            # The last token of an answer has no keys and values yet, unless it ended by itself.
            first = real[planned.branch.rpartition("/")[0], "place", 0] if planned.outputs else None
            generated = 0 if first is None else first.completion_tokens - 1
            least = planned.shared + generated
            assert least <= run.cached_tokens <= least + KIN_DEFER_TOKENS, (planned, run.cached_tokens)
            if first is None:
                assert planned.length == run.prompt_tokens
        places = [call.cached_tokens for call in state.log.calls if call.name == "place"]
        assert sum(call.shared for call in made.calls if call.name == "place") == sum(places)
        assert sorted(places)[0] == 0
        assert sorted(places)[1] >= KIN_DEFER_TOKENS


def test_sampling_parameters_as_for_a_run(engine: rt.Engine) -> None:
    @rt.function(max_tokens=9)
    def program(s: rt.State) -> None:
        s += "Go" + rt.gen("a") + " on" + rt.gen("b", max_tokens=3)

    def longest(**options: Any) -> list[int | None]:
        return [call.max_tokens for call in program.explain(backend=engine, **options).calls]

    assert longest() == [9, 3]
    assert longest(sampling={"max_tokens": 5}) == [5, 3]
    assert "temperature" in str(program.explain(backend=engine, sampling={"temperature": -1}))


def test_prefixes(engine: rt.Engine) -> None:
    made = judge.explain("The sea is wide.", backend=engine)
    of_all = max((prefix for prefix in made.prefixes if len(prefix.calls) == 4), key=lambda prefix: prefix.length)
    assert of_all.end.endswith("<|im_end|>\n<|im_start|>user\n")
    assert of_all.saved >= of_all.length
    assert of_all.length < named(made)["clarity/note"].length


def test_the_text(engine: rt.Engine) -> None:
    text = str(judge.explain("The sea is wide.", backend=engine))
    lines = text.splitlines()
    assert re.fullmatch(r"judge on engine \S+: 4 calls", lines[0])
    assert re.fullmatch(
        r"prompts of [\d,]+ tokens, of which [\d,]+ are shared \(\d+%\) and [\d,]+ computed; and what calls generate",
        lines[1],
    )
    assert lines[3] == "fork into 2:"
    assert re.fullmatch(r"    note  \d+ tokens, all new -> at most 6 tokens", lines[5])
    assert re.search(r"^grade  \d+ tokens \+ 2 x note, \d+ shared$", text, re.MULTILINE)
    assert re.search(r"^sure: bool  \d+ tokens \+ 2 x note, grade, \d+ shared -> at most 8 tokens$", text, re.MULTILINE)
    assert "shared prefixes" in text


def test_large_forks_are_short(engine: rt.Engine) -> None:
    @rt.function
    def wide(s: rt.State) -> None:
        s += rt.user("x")
        for i, branch in enumerate(s.fork(200)):
            branch += f"{i}"  # refused: a text outside of a message

    with pytest.raises(ProgramError, match="outside of a message"):
        wide.explain(backend=engine)

    @rt.function
    def right(s: rt.State) -> None:
        s += rt.user("x")
        for i, branch in enumerate(s.fork(200)):
            branch += rt.user(f"{i}") + rt.assistant(rt.gen("a"))

    made = right.explain(backend=engine)
    assert len(made.calls) == 200
    assert "  and 199 more" in str(made)
    assert len(str(made).splitlines()) < 30


# --- what depends on the answers ---


def test_a_branch_on_a_value(engine: rt.Engine) -> None:
    @rt.function
    def choosing(s: rt.State) -> None:
        s += rt.user("?") + rt.assistant(rt.select("way", ["left", "right"]))
        if s["way"] == "right":
            s += rt.user("And then?") + rt.assistant(rt.gen("then"))

    made = choosing.explain(backend=engine)
    assert len(made.calls) == 2
    assert made.notes == [
        "the calls depend on what the model answers: with two different answers there were 1 or 2 of them; those that "
        "came with only one of the answers are named then"
    ]
    assert "2 calls with these placeholders" in str(made)
    assert "\nnot certain: the calls depend" in str(made)


def test_a_list_that_is_gone_through(engine: rt.Engine) -> None:
    @rt.function
    def expanding(s: rt.State) -> None:
        s += rt.user("Points?") + rt.assistant(rt.gen("points", list[Point]))
        for point in s["points"]:
            branch = s.copy()
            branch += rt.user(f"Expand {point.title}") + rt.assistant(rt.gen("body"))

    made = expanding.explain(backend=engine)
    assert [call.name for call in made.calls] == ["points", "body"]
    assert "with two different answers there were 1 or 2" in made.notes[0]


def test_a_loop_that_a_value_ends(engine: rt.Engine) -> None:
    @rt.function
    def looping(s: rt.State) -> None:
        done = False
        while not done:
            s += rt.user("On?") + rt.assistant(rt.gen("done", bool))
            done = s["done"]

    made = looping.explain(backend=engine)
    assert len(made.calls) == 1
    assert any(f"still went on after {MAX_CALLS_OF_A_BRANCH + 1} calls" in note for note in made.notes)


def test_a_program_that_cannot_use_a_placeholder(engine: rt.Engine) -> None:
    @rt.function
    def reading(s: rt.State) -> None:
        s += rt.user("A number?") + rt.assistant(rt.gen("number"))
        number = int(s["number"])
        s += rt.user(str(number)) + rt.assistant(rt.gen("more"))

    made = reading.explain(backend=engine)
    assert [call.name for call in made.calls] == ["number"]
    assert re.match(r"with a placeholder it stops after 1 call, on ValueError: invalid literal", made.notes[-1])


def test_async_programs_and_no_calls(engine: rt.Engine) -> None:
    @rt.function
    async def program(s: rt.State, subject: str) -> None:
        s += rt.user(subject) + rt.assistant(rt.gen("a"))
        await s.get("a")
        s += rt.user("More.") + rt.assistant(rt.gen("b"))

    assert [call.name for call in program.explain("ships", backend=engine).calls] == ["a", "b"]

    @rt.function
    def nothing(s: rt.State) -> None:
        s += rt.user("x")

    made = nothing.explain(backend=engine)
    assert (made.calls, made.prefixes, made.length) == ([], [], 0)
    assert "0 calls" in str(made)
    with pytest.raises(TypeError, match="essay"):
        judge.explain(backend=engine)


def test_it_runs_nothing_and_is_not_traced(engine: rt.Engine, tmp_path: Path) -> None:
    before = engine.client.open_requests
    with trace(tmp_path / "trace.jsonl"):
        judge.explain("The sea is wide.", backend=engine)
    assert read_trace(tmp_path / "trace.jsonl") == []
    assert engine.client.open_requests == before


def test_a_backend_without_tokens() -> None:
    made = judge.explain("The sea is wide.", backend=OpenAI("http://127.0.0.1:9/v1", "m"))
    assert made.unit == "characters"
    assert named(made)["clarity/note"].length > named(made)["clarity/note"].shared
    assert str(made).startswith("judge on OpenAI m: 4 calls\nprompts of ")


# --- placeholders ---


@pytest.mark.parametrize("kind", [int, float, bool, list[str], list[Point], Point, Node, dict[str, int], int | None])
def test_placeholders_are_of_the_type(kind: Any) -> None:
    texts = [placeholder(SamplingParams(json_schema=kind), variant) for variant in (0, 1)]
    for text in texts:
        parse(kind, text)
    assert texts[0] != texts[1] or kind in (dict[str, int], int | None)
    assert len(texts[1]) < 3_000


def test_placeholders_of_other_constraints() -> None:
    def both(**sampling: Any) -> list[str]:
        return [placeholder(SamplingParams(**sampling), variant) for variant in (0, 1)]

    assert both(choices=("a", "b")) == ["a", "b"]
    assert re.fullmatch("[ab]{2}c", both(regex="[ab]{2}c")[1])
    assert both(ebnf='root ::= "a" | "b" "c"')[0] == "a"
    assert json.loads(both(json_schema=list[str])[0]) == []
    assert "\n" in both()[1]
    assert both(stop="\n")[1] == "another text"
    with pytest.raises(RequestError, match="regex"):
        both(regex="(")
