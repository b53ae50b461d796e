"""Answers of chats with tools and reasoning: calls, text beside them, and stop strings."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from radixrt.chat.dialect import make_dialect
from radixrt.constraint import StructuredOptions
from radixrt.errors import RequestError
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import ConstraintInfo, Finish, Usage
from radixrt.messages.wire import pack_i32
from radixrt.sampling_params import NO_FREE_TEXT, StopScope
from tests.chat import templates
from tests.chat.templates import template
from tests.server.fake_engine import MODEL, FakeEngine, Sent, speak
from tests.server.helpers import Caller, events
from tests.server.tool_chats import (
    CALL_GET,
    CALL_STOP,
    FUNCTION,
    GENERIC,
    HERMES,
    LLAMA3,
    THINKING,
    TOOLS,
    tag_of,
)

# --- stop strings ---


def test_stop_strings_are_for_the_text_beside_calls(ask: Any, engine: FakeEngine) -> None:
    for dialect, scope in [
        (HERMES, StopScope(until=("<tool_call>",))),
        (THINKING, StopScope(until=("<tool_call>",))),
        (GENERIC, StopScope(until=('[{"name"',), at_start=True)),
        (LLAMA3, StopScope(until=('{"name"', "<|python_tag|>"), at_start=True)),
    ]:
        assert ask(dialect, stop=["x"]).status_code == 200
        sampling = engine.requests[-1].sampling
        assert (sampling.stop, sampling.stop_scope) == (("x",), scope)
        assert sampling.constraint is not None
        assert sampling.constraint.stop == ()  # the same grammar, whatever the stop strings are


def test_stop_strings_are_not_for_the_reasoning(engine: FakeEngine) -> None:
    """Chats, responses and messages are alike; text that is not read as reasoning is searched."""
    prompt = "{{ messages[-1].content }}{% if add_generation_prompt %}<think>{% endif %}"
    begun = make_dialect(template(prompt), tokens={"<think>": 8, "</think>": 9})
    switch = make_dialect(template("{{ messages[-1].content }}"), reasoning_parser="think")
    plain = make_dialect(template(prompt), reasoning_parser="none")
    for dialect, scope in (
        (begun, StopScope(reasoning_end="</think>")),
        (switch, StopScope(reasoning_end="</think>", reasoning_start="<think>")),
        (plain, None),
    ):
        caller, message = Caller(engine, dialect=dialect), [{"role": "user", "content": "hi"}]
        assert caller.chat(stop=["x"]).status_code == 200
        assert (engine.requests[-1].sampling.stop, engine.requests[-1].sampling.stop_scope) == (("x",), scope)
        asked = {"model": MODEL, "max_tokens": 5, "messages": message, "stop_sequences": ["x"]}
        assert caller.post("/v1/messages", asked).status_code == 200
        assert engine.requests[-1].sampling.stop_scope == scope
        assert caller.chat().status_code == 200
        assert engine.requests[-1].sampling.stop_scope is None
        assert caller.post("/v1/completions", {"prompt": "x", "stop": "x"}).status_code == 200
        assert engine.requests[-1].sampling.stop_scope is None


@pytest.mark.parametrize(
    ("form", "without"),
    [
        ({"response_format": {"type": "json_object"}}, None),
        ({"choice": ["a", "b"]}, None),
        ({"regex": "[a-z]+"}, ["\n"]),
        ({"ebnf": 'root ::= "a"'}, ["\n"]),
    ],
)
def test_stop_strings_beside_tools_and_a_format_change_neither(
    ask: Any, engine: FakeEngine, form: dict[str, Any], without: Any
) -> None:
    assert ask(stop="\n", **form).status_code == 200
    assert engine.requests[-1].sampling.stop_scope == NO_FREE_TEXT
    assert tag_of(engine.requests[-1])["elements"][0].get("without") == without


def test_a_format_beside_tools_that_can_produce_a_stop_string_is_refused(ask: Any, engine: FakeEngine) -> None:
    assert ask(stop="ab", regex="[a-z]+").status_code == 200
    with pytest.raises(RequestError, match="can hold 'ab'") as refused:
        tag_of(engine.requests[-1])
    assert refused.value.param == "stop"


# --- out ---


def test_calls_of_a_whole_answer(ask: Any) -> None:
    (choice,) = ask(says=[CALL_GET + "\n" + CALL_STOP]).json()["choices"]
    message = choice["message"]
    assert (message["role"], message["content"], message["refusal"]) == ("assistant", None, None)
    first, second = message["tool_calls"]
    assert first["id"].startswith("call_")
    assert first["id"] != second["id"]
    assert (first["type"], first["function"]) == ("function", {"name": "get", "arguments": '{"city":"Rome"}'})
    assert second["function"] == {"name": "stop", "arguments": "{}"}
    assert choice["finish_reason"] == "tool_calls"


def test_text_before_calls_is_content(ask: Any) -> None:
    (choice,) = ask(says=["Let me see.\n", CALL_GET]).json()["choices"]
    assert choice["message"]["content"] == "Let me see."
    assert len(choice["message"]["tool_calls"]) == 1


def test_no_calls_no_field(ask: Any) -> None:
    (choice,) = ask(says=["Sunny."]).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Sunny.", "refusal": None}
    assert choice["finish_reason"] == "stop"


def test_streamed_calls(ask: Any) -> None:
    whole = "Well.\n" + CALL_GET + "\n" + CALL_STOP
    chunks = events(ask(says=[whole[i : i + 3] for i in range(0, len(whole), 3)], stream=True))
    choices = [chunk["choices"][0] for chunk in chunks]
    deltas = [choice["delta"] for choice in choices]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "Well."
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    firsts = [call for call in calls if "id" in call]
    assert [(call["index"], call["type"], call["function"]) for call in firsts] == [
        (0, "function", {"name": "get", "arguments": ""}),
        (1, "function", {"name": "stop", "arguments": ""}),
    ]
    rest = [call for call in calls if "id" not in call]
    assert all(set(call) == {"index", "function"} and set(call["function"]) == {"arguments"} for call in rest)
    for index, arguments in ((0, '{"city":"Rome"}'), (1, "{}")):
        assert "".join(call["function"]["arguments"] for call in rest if call["index"] == index) == arguments
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]
    assert deltas[-1] == {}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("reason", "told"), [("stop", "tool_calls"), ("length", "length"), ("abort", "length")])
def test_finish_reason_of_calls(engine: FakeEngine, stream: bool, reason: Any, told: str) -> None:
    def script(request: Sent) -> Iterable[RequestOutput]:
        yield RequestOutput(
            request.rid, CALL_GET, b"", Finish(reason, forced_close=True), constraint=ConstraintInfo("llguidance")
        )

    engine.script = script
    response = Caller(engine, dialect=HERMES).chat(tools=TOOLS, stream=stream)
    last = events(response)[-1] if stream else response.json()
    assert last["choices"][0]["finish_reason"] == told
    assert last["choices"][0]["radixrt"]["forced_close"]


def test_a_cut_call_does_not_pass_for_a_whole_one(ask: Any) -> None:
    (choice,) = ask(says=[CALL_GET[:-20]]).json()["choices"]
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_older_functions(ask: Any, engine: FakeEngine, stream: bool) -> None:
    fields = {"tools": None, "functions": [FUNCTION], "function_call": {"name": "f"}}
    says = ['<tool_call>\n{"name": "f", "argum', 'ents": {"a"', ":1}}\n</tool_call>"]
    response = ask(says=says, stream=stream, **fields)
    assert engine.requests[0].sampling.structured == StructuredOptions()
    assert json.loads(engine.requests[0].sampling.structural_tag)["format"]["elements"][1]["origin"] == (
        "functions/0/parameters"
    )
    if stream:
        choices = [chunk["choices"][0] for chunk in events(response)]
        parts = [choice["delta"]["function_call"] for choice in choices if "function_call" in choice["delta"]]
        assert parts[0] == {"name": "f", "arguments": ""}
        assert "".join(part["arguments"] for part in parts) == '{"a":1}'
        assert choices[-1]["finish_reason"] == "function_call"
    else:
        (choice,) = response.json()["choices"]
        assert choice["message"]["function_call"] == {"name": "f", "arguments": '{"a":1}'}
        assert choice["finish_reason"] == "function_call"


def test_logprobs_are_all_there(ask: Any) -> None:
    says = ["We", "ll", "\n", *CALL_STOP.partition("\n")[::1]]
    chunks = events(ask(says=says, stream=True, logprobs=True))
    rows = [row for c in chunks if c["choices"][0]["logprobs"] for row in c["choices"][0]["logprobs"]["content"]]
    assert [row["token"] for row in rows] == says


def test_marker_tokens_are_kept_in_the_text(ask: Any, engine: FakeEngine) -> None:
    markers = {"<tool_call>": 3, "</tool_call>": 4}
    dialect = make_dialect(template(templates.HERMES), tokens=markers, special_tokens=frozenset(markers))
    assert ask(dialect).status_code == 200
    assert ask(HERMES).status_code == 200
    first, second = engine.requests
    assert not first.sampling.skip_special_tokens
    assert second.sampling.skip_special_tokens
    assert tag_of(first)["type"] == "token_triggered_tags"


# --- reasoning ---


def thinks(request: Sent) -> Iterable[RequestOutput]:
    """Token 9 is the end marker."""
    for i, (text, ids) in enumerate(
        [("<think>", [8]), ("\nhm", [1, 2]), ("</think>", [9]), ("\n\n{", [5]), ("}", [6])]
    ):
        last: dict[str, Any] = {} if i < 4 else {"finish": Finish("stop"), "usage": Usage(1, 6)}
        yield RequestOutput(request.rid, text, pack_i32(ids), **last)


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_apart_and_counted(engine: FakeEngine, stream: bool) -> None:
    def script(request: Sent) -> Iterable[RequestOutput]:
        deltas = list(thinks(request))
        if request.stream:
            yield from deltas
        else:
            ids = b"".join(delta.output_ids for delta in deltas)
            yield msgspec.structs.replace(deltas[-1], text="".join(d.text for d in deltas), output_ids=ids)

    engine.script = script
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    response = Caller(engine, dialect=THINKING).chat(**options)
    if stream:
        *chunks, last = events(response)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
        assert "".join(delta.get("content", "") for delta in deltas) == "{}"
        usage = last["usage"]
    else:
        message = response.json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("hm", "{}")
        usage = response.json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 4}


def test_a_constraint_waits_for_the_end_of_the_reasoning(engine: FakeEngine) -> None:
    caller = Caller(engine, dialect=THINKING)
    assert caller.chat(json_schema={}).status_code == 200
    assert caller.chat(json_schema={}, chat_template_kwargs={"enable_thinking": False}).status_code == 200
    assert caller.chat(json_schema={}, reasoning_effort="none").status_code == 200
    assert caller.chat(json_schema={}, structured={"reasoning_end": "</x>", "reasoning_budget": 7}).status_code == 200
    assert caller.chat(tools=TOOLS).status_code == 200
    assert caller.chat().status_code == 200
    assert caller.complete(json_schema={}).status_code == 200
    ends = [request.sampling.structured.reasoning_end for request in engine.requests]
    assert ends == ["</think>", None, None, "</x>", "</think>", None, None]
    assert engine.requests[3].sampling.structured.reasoning_budget == 7
    assert engine.requests[6].sampling.json_schema == "{}"


def test_a_marker_of_the_clients_own_separates_too(engine: FakeEngine) -> None:
    engine.script = lambda request: speak(request, ["some thought</x>{}"])
    answer = Caller(engine).chat(json_schema={}, structured={"reasoning_end": "</x>"}).json()
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("some thought", "{}")


def test_reasoning_and_then_calls(engine: FakeEngine) -> None:
    engine.script = lambda request: speak(request, ["<think>I call <tool_call> now</think>\n\n" + CALL_STOP])
    (choice,) = Caller(engine, dialect=THINKING).chat(tools=TOOLS).json()["choices"]
    assert choice["message"]["reasoning_content"] == "I call <tool_call> now"
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["stop"]
    assert choice["finish_reason"] == "tool_calls"


def test_a_model_without_reasoning_has_no_such_field(engine: FakeEngine) -> None:
    message = Caller(engine, dialect=HERMES).chat().json()["choices"][0]["message"]
    assert set(message) == {"role", "content", "refusal"}
