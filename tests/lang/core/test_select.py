"""select: the choice, its probabilities, and the text that the state gets."""

from __future__ import annotations

from typing import Any

import pytest

import radixrt as rt
from radixrt.lang.core.primitives import SELECT_METHODS
from tests.engine.helpers import one

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 4}
CHOICES = ["Paris", "London", "a small town"]


@pytest.mark.parametrize("method", SELECT_METHODS)
def test_the_choice_and_its_probabilities(engine: rt.Engine, method: Any) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "The capital of France is " + rt.select("city", CHOICES, method=method)

    state = program.run(backend=engine)
    scored = engine.score("The capital of France is ", CHOICES, method)
    assert state["city"] == scored.text
    meta = state.meta["city"]
    assert meta.probabilities == pytest.approx(scored.probabilities, abs=1e-5)
    assert meta.choice_logprobs == pytest.approx(scored.logprobs, abs=1e-4)
    assert sum(meta.probabilities) == pytest.approx(1)
    assert (meta.choices, meta.finish_reason, meta.text) == (tuple(CHOICES), "choice", scored.text)
    record = state.log.calls[0]
    assert (record.kind, record.method, record.text) == ("select", method, scored.text)
    assert state.text() == "The capital of France is " + scored.text


def test_the_state_goes_on_with_the_healed_tokens_of_the_choice(engine: rt.Engine) -> None:
    @rt.function(**GREEDY)
    def program(s: rt.State) -> None:
        s += "What is the " + rt.select("word", ["capital", "dog"]) + rt.gen("on")

    state = program.run(backend=engine)
    whole = one(engine, f"What is the {state['word']}", GREEDY)
    after = state.log.calls[1]
    assert after.prompt_ids is not None
    assert list(after.prompt_ids) == whole.prompt_token_ids  # as if the text had been written at once
    assert state["on"] == whole.text


def test_in_a_message(engine: rt.Engine) -> None:
    @rt.function(**GREEDY)
    def program(s: rt.State) -> None:
        s += rt.user("Well?") + rt.assistant("I say " + rt.select("word", ["yes", "no"]) + ".")
        s += rt.user("Sure?") + rt.assistant(rt.select("sure", ["yes", "no"]))

    state = program.run(backend=engine)
    assert state.messages()[1] == {"role": "assistant", "content": f"I say {state['word']}."}
    assert state.messages()[3] == {"role": "assistant", "content": state["sure"]}


def test_branches_select_on_their_own(engine: rt.Engine) -> None:
    @rt.function
    def program(s: rt.State) -> Any:
        s += "Pick: "
        branches = s.fork(["a", "b", "c"])
        for branch, key in branches.items():
            branch += f"{key} or " + rt.select("x", ["the first", "the last"])
        s += rt.join(branches, "x", format="{key}={value}", sep=" ")
        return branches

    state = program.run(backend=engine)
    assert state.text().endswith("".join(f" {v.key}={v['x']}" for v in state.returned)[1:])


def test_a_select_needs_something_to_go_on_from(engine: rt.Engine) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += rt.select("x", ["a", "b"])

    with pytest.raises(rt.CallError, match=r'program, branch 0, select "x": there is no text yet'):
        program.run(backend=engine)
