"""Reasoning between the markers of each family, in chats, messages and responses, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.chat.dialect import Dialect, make_dialect
from radixrt.sampling_params import StopScope
from tests.chat.reasoning_templates import TEMPLATES
from tests.chat.templates import template
from tests.server.fake_engine import MODEL, FakeEngine, speak
from tests.server.helpers import Caller, events, named_events

USER = [{"role": "user", "content": "hi"}]
FAMILIES = ("qwen_3", "minimax_m3", "minimax_m3, adaptive", "cohere", "seed", "magistral", "kimi_vl")


def dialect_of(family: str) -> Dialect:
    """The family's, whose markers are special tokens of the vocabulary."""
    source = template(TEMPLATES[family][0])
    markers = make_dialect(source).reasoning.texts
    return make_dialect(
        source, tokens={text: 100 + i for i, text in enumerate(markers)}, special_tokens=frozenset(markers)
    )


def words(dialect: Dialect) -> list[str]:
    """An answer, cut inside of its markers."""
    markers = dialect.reasoning
    before, after = markers.frame
    text = f"{markers.start}let me see{markers.end}\n\n{before}It <rains>.{after}"
    return [text[at : at + 5] for at in range(0, len(text), 5)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_chats(engine: FakeEngine, family: str, stream: bool) -> None:
    dialect = dialect_of(family)
    engine.script = lambda request: speak(request, words(dialect))
    answer = Caller(engine, dialect=dialect).chat(stream=stream)
    if stream:
        deltas = [chunk["choices"][0]["delta"] for chunk in events(answer)]
        message: dict[str, Any] = {
            name: "".join(delta.get(name) or "" for delta in deltas) for name in ("reasoning_content", "content")
        }
    else:
        message = answer.json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("let me see", "It <rains>.")
    assert not engine.requests[0].sampling.skip_special_tokens


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_messages(engine: FakeEngine, family: str, stream: bool) -> None:
    dialect = dialect_of(family)
    engine.script = lambda request: speak(request, words(dialect))
    body = {"model": MODEL, "max_tokens": 99, "messages": USER, "stream": stream}
    answer = Caller(engine, dialect=dialect).post("/v1/messages", body)
    if stream:
        deltas = [event["delta"] for event in named_events(answer) if event["type"] == "content_block_delta"]
        said = ["".join(delta.get(name, "") for delta in deltas) for name in ("thinking", "text")]
    else:
        thinking, text = answer.json()["content"]
        said = [thinking["thinking"], text["text"]]
    assert said == ["let me see", "It <rains>."]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_responses(engine: FakeEngine, family: str, stream: bool) -> None:
    dialect = dialect_of(family)
    engine.script = lambda request: speak(request, words(dialect))
    answer = Caller(engine, dialect=dialect).post("/v1/responses", {"input": "hi", "stream": stream})
    whole = named_events(answer)[-1]["response"] if stream else answer.json()
    reasoning, message = whole["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "let me see"}]
    assert message["content"][0]["text"] == "It <rains>."


@pytest.mark.parametrize("family", FAMILIES)
def test_constraints_and_stop_strings_are_for_the_answer(engine: FakeEngine, family: str) -> None:
    dialect = dialect_of(family)
    markers = dialect.reasoning
    caller = Caller(engine, dialect=dialect)
    assert caller.chat(json_schema={}).status_code == 200
    assert caller.chat(stop=["x"]).status_code == 200
    constrained, stopped = (request.sampling for request in engine.requests)
    assert constrained.structured.reasoning_end == markers.end
    start = "" if family == "minimax_m3" else markers.start  # there the prompt ends with the start marker
    assert stopped.stop_scope == StopScope(reasoning_end=markers.end, reasoning_start=start)


@pytest.mark.parametrize("system", ["Be short.", "Draft first: [THINK]thoughts[/THINK]"])
def test_a_constraint_waits_for_reasoning_only_if_the_system_message_asks_for_it(
    engine: FakeEngine, system: str
) -> None:
    engine.script = lambda request: speak(request, ["{}"])
    messages = [{"role": "system", "content": system}, *USER]
    caller = Caller(engine, dialect=dialect_of("magistral"))
    caller.chat(messages=messages, response_format={"type": "json_object"})
    structured = engine.requests[0].sampling.structured
    assert (structured.reasoning_end if structured else None) == ("[/THINK]" if "[THINK]" in system else None)


@pytest.mark.parametrize("stream", [False, True])
def test_the_frame_around_an_answer_is_removed_without_reasoning_too(engine: FakeEngine, stream: bool) -> None:
    """The tokenizer does not flag the frame's tokens as special."""
    dialect = make_dialect(template(TEMPLATES["cohere"][0]))
    before, after = dialect.reasoning.frame
    engine.script = lambda request: speak(request, [before[:5], before[5:] + "It <", "rains>." + after[:3], after[3:]])
    answer = Caller(engine, dialect=dialect).chat(stream=stream, chat_template_kwargs={"enable_thinking": False})
    if stream:
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in events(answer))
    else:
        text = answer.json()["choices"][0]["message"]["content"]
    assert text == "It <rains>."
