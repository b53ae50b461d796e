"""A program's outputs are those of its calls made one by one without a cache, and its token ids are its text.

Random programs (forks, joins, selects, gens, several at once, roles or none, nested) are run on the real engine. Every
prompt that was sent is then checked against the text that the state stands for, every answer against the same prompt
given alone to an engine whose prefix cache is off.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import radixrt as rt
from radixrt.engine.engine import Engine
from radixrt.lang.backends.base import Call
from radixrt.lang.backends.token_backend import EngineBackend
from radixrt.lang.observe.run_log import CallRecord
from radixrt.messages.client import RequestOutput
from radixrt.tasks.prompts import Part
from radixrt.tokenizer.prompt_parts import PartsEncoder
from radixrt.tokenizer.tokenizer import Tokenizer
from tests.engine.helpers import one

MAX_STEPS = 5
TEXTS = ["a", " The quick", "fox.\n", "é東", " <|im_end|>", "0 1 2", ": "]
CHOICES = [["pass", "fail"], [" yes", " no", " maybe"], ["a", "ab", "abc"], ["東", "京"]]


class Recording(EngineBackend):
    """The engine's backend, which keeps what is sent to it."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.sent: list[tuple[Sequence[Part], Sequence[int] | None]] = []

    async def generate(self, call: Call) -> AsyncGenerator[RequestOutput, None]:
        async for delta in super().generate(call):
            if delta.prompt_ids is not None:
                self.sent.append((call.prompt.parts, delta.prompt_token_ids))
            yield delta


# --- random programs: what a state does, as data ---

GENS = st.fixed_dictionaries(
    {"do": st.just("gen"), "tokens": st.integers(1, 6), "stop": st.sampled_from([None, "e", "\n", " t", "東"]),
     "n": st.sampled_from([1, 1, 1, 2])}
)  # fmt: skip
TYPED = st.fixed_dictionaries({"do": st.just("typed"), "kind": st.sampled_from(["bool", "digits", "choices"])})
SELECTS = st.fixed_dictionaries({"do": st.just("select"), "choices": st.sampled_from(CHOICES)})
WRITES = st.fixed_dictionaries({"do": st.just("write"), "text": st.sampled_from(TEXTS)})


SIMPLE = st.one_of(WRITES, GENS, TYPED, SELECTS, st.just({"do": "read"}))


def steps(inner: Any, least: int) -> Any:
    """Plans whose forks' branches do what `inner` says."""
    forks = st.fixed_dictionaries(
        {"do": st.just("fork"), "branches": st.lists(inner, min_size=1, max_size=3), "join": st.booleans()}
    )
    return st.lists(st.one_of(SIMPLE, forks, forks), min_size=least, max_size=MAX_STEPS)


PROGRAMS = steps(steps(st.lists(SIMPLE, max_size=3), 0), 2)


def perform(s: rt.State, plan: list[dict[str, Any]], roles: bool, found: list[rt.State]) -> None:
    """Execute the plan on a state; with roles, each step is a message."""
    found.append(s)
    for i, step in enumerate(plan):
        name = f"v{i}"
        if step["do"] == "write":
            s += rt.user(step["text"]) if roles else step["text"]
        elif step["do"] == "read":
            for known in s.names():
                s[known]
        elif step["do"] == "fork":
            branches = s.fork(len(step["branches"]))
            for branch, inner in zip(branches, step["branches"]):
                perform(branch, inner, roles, found)
                word = rt.gen("end", temperature=0, max_tokens=2)
                branch += rt.assistant(word) if roles else word
            if step["join"]:
                joined = rt.join(branches, "end", sep="|")
                s += rt.user(joined) if roles else joined
        else:
            word = call_of(step, name)
            s += rt.assistant("So: " + word) if roles else word


def call_of(step: dict[str, Any], name: str) -> Any:
    if step["do"] == "gen":
        sampling = {"max_tokens": step["tokens"], "temperature": 0, "n": step["n"]}
        return rt.gen(name, **sampling, **({} if step["stop"] is None else {"stop": step["stop"]}))
    if step["do"] == "select":
        return rt.select(name, step["choices"])
    if step["kind"] == "digits":
        return rt.gen(name, regex="[0-9]{2}", temperature=0)
    return rt.gen(name, bool, temperature=0) if step["kind"] == "bool" else rt.gen(
        name, choices=["left", "right"], temperature=0
    )  # fmt: skip


@rt.function
def program(s: rt.State, plan: list[dict[str, Any]], roles: bool) -> list[rt.State]:
    found: list[rt.State] = []
    s += rt.system("S") if roles else "Begin "
    perform(s, plan, roles, found)
    return found


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Callable[[str], Path]) -> Tokenizer:
    return Tokenizer.from_folder(tiny_model("llama"))


def check_prompts(backend: Recording, tokenizer: Tokenizer, calls: Sequence[CallRecord]) -> None:
    """Ids are taken from earlier answers and the rest is tokenized; all of it is the text."""
    encoder = PartsEncoder(tokenizer)
    before = [list(call.prompt_ids + call.output_ids) for call in calls if call.prompt_ids and call.output_ids]
    for parts, prompt_ids in backend.sent:
        packed = [part.tolist() if isinstance(part, array) else part for part in parts]
        assert prompt_ids is not None
        assert encoder.encode(packed, "parts") == list(prompt_ids)
        assert not any(isinstance(part, (array, list)) for part in parts[1:])
        if isinstance(packed[0], list):
            assert any(ids[: len(packed[0])] == packed[0] for ids in before)
    for call in calls:
        assert call.prompt_ids is not None
        assert tokenizer.decode(call.prompt_ids, skip_special_tokens=False) == call.prompt_text
        assert not call.rerendered


def check_alone(uncached: Engine, calls: Sequence[CallRecord]) -> None:
    for call in calls:
        if call.kind == "gen":
            assert call.prompt_ids is not None
            assert call.output_ids is not None
            alone = one(uncached, list(call.prompt_ids), call.sampling)
            assert alone.token_ids == list(call.output_ids)
            assert alone.text == call.text


# The first answer ends with a token that its text leaves out.
HIDES_A_TOKEN = [
    {"do": "read"},
    {"do": "fork", "join": False, "branches": [[
        {"do": "gen", "tokens": 5, "stop": None, "n": 1}, {"do": "typed", "kind": "choices"},
        {"do": "gen", "tokens": 3, "stop": None, "n": 1},
    ]]},
]  # fmt: skip

# A stop string begins inside a token, behind one that is no whole character.
STOPS_BEHIND_HALF_A_CHARACTER = [
    {"do": "select", "choices": ["a", "ab", "abc"]}, {"do": "typed", "kind": "bool"},
    {"do": "select", "choices": ["pass", "fail"]},
    {"do": "fork", "join": False, "branches": [[
        {"do": "typed", "kind": "digits"}, {"do": "gen", "tokens": 3, "stop": "e", "n": 1},
    ]]},
]  # fmt: skip

# An answer ends with half a character, and the next one begins with the other half.
HALVES_OF_A_CHARACTER = [
    {"do": "fork", "branches": [[], [], []], "join": True},
    {"do": "fork", "join": False, "branches": [[
        {"do": "fork", "branches": [[], [], []], "join": True},
        {"do": "gen", "tokens": 3, "stop": None, "n": 1}, {"do": "gen", "tokens": 1, "stop": None, "n": 1},
    ]]},
]  # fmt: skip


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(plan=PROGRAMS, roles=st.booleans())
@example(plan=HIDES_A_TOKEN, roles=False)
@example(plan=STOPS_BEHIND_HALF_A_CHARACTER, roles=False)
@example(plan=HALVES_OF_A_CHARACTER, roles=False)
def test_random_programs(
    engine: Engine, uncached: Engine, tokenizer: Tokenizer, plan: list[dict[str, Any]], roles: bool
) -> None:
    backend = Recording(engine)
    state = program.run(plan, roles, backend=backend)
    calls = state.log.calls
    check_prompts(backend, tokenizer, calls)
    check_alone(uncached, calls)
    for found in state.returned:
        own = [call for call in calls if call.branch == found.branch and call.index == 0]
        text = found.text()
        for call in own:
            assert text.startswith(call.prompt_text + call.text)
    assert state.usage.rerendered == 0


def test_a_stop_string_inside_a_token_is_cut_out_of_the_ids(engine: Engine, tokenizer: Tokenizer) -> None:
    free = one(engine, "Begin ", {"temperature": 0, "max_tokens": 20})
    cut = next(i for i, token in enumerate(free.token_ids) if i and len(tokenizer.token_text(token)) > 1)
    stop = tokenizer.token_text(free.token_ids[cut])[1:]

    @rt.function(temperature=0, max_tokens=20)
    def stopped(s: rt.State) -> None:
        s += "Begin " + rt.gen("a", stop=stop) + "," + rt.gen("b", max_tokens=2)

    calls = stopped.run(backend=engine).log.calls
    assert calls[0].prompt_ids is not None
    assert calls[1].prompt_ids is not None
    text = calls[0].prompt_text + calls[0].text + ","
    assert calls[1].prompt_text == text
    assert tokenizer.decode(calls[1].prompt_ids) == text
    kept = (
        calls[0].prompt_ids + array("i", free.token_ids[:cut]) if stop not in free.text[: len(calls[0].text)] else None
    )
    assert kept is None or calls[1].prompt_ids[: len(kept)] == kept
