"""Tools in chat requests: what the engine receives, and how a conversation with calls reaches the template."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from radixrt.chat.dialect import Dialect, make_dialect
from tests.chat import templates
from tests.chat.templates import template
from tests.server.fake_engine import FakeEngine
from tests.server.helpers import Caller, check_error
from tests.server.tool_chats import (
    CALL_GET,
    CITY,
    FUNCTION,
    GENERIC,
    GET,
    HERMES,
    LLAMA3,
    STOP,
    TOOLS,
    tag_of,
)

# --- in ---


def test_tools_go_to_the_template_and_into_the_constraint(ask: Any, engine: FakeEngine) -> None:
    assert ask().status_code == 200
    (request,) = engine.requests
    assert request.chat is not None
    assert request.chat.tools is not None
    first, second = json.loads(request.chat.tools)
    assert list(first["function"]) == ["name", "description", "parameters"]
    assert first["function"]["parameters"] == CITY
    assert second["function"]["parameters"]["properties"] == {}
    assert json.loads(request.chat.messages) == [{"role": "user", "content": "hi"}]
    tag = tag_of(request)
    assert (tag["type"], tag["stop_after_first"]) == ("triggered_tags", False)
    assert '"name": "stop"' in json.dumps(tag).replace("\\", "")


@pytest.mark.parametrize(
    ("choice", "parallel", "kind", "names", "several"),
    [
        (None, None, "triggered_tags", {"get", "stop"}, True),
        ("auto", True, "triggered_tags", {"get", "stop"}, True),
        ("auto", False, "triggered_tags", {"get", "stop"}, False),
        ("required", None, "sequence", {"get", "stop"}, True),
        ("required", False, "or", {"get", "stop"}, False),
        ({"type": "function", "function": {"name": "stop"}}, None, "sequence", {"stop"}, False),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
            {"type": "function", "function": {"name": "get"}}]}}, None, "sequence", {"get"}, True),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
            {"type": "function", "function": {"name": "get"}}]}}, None, "triggered_tags", {"get"}, True),
    ],
)  # fmt: skip
def test_choice(
    ask: Any, engine: FakeEngine, choice: Any, parallel: bool | None, kind: str, names: set[str], several: bool
) -> None:
    assert ask(tool_choice=choice, parallel_tool_calls=parallel).status_code == 200
    (request,) = engine.requests
    tag = tag_of(request)
    text = json.dumps(tag)
    assert tag["type"] == kind
    assert {name for name in ("get", "stop") if f'\\"name\\": \\"{name}\\"' in text} == names
    assert ('"star"' in text or tag.get("stop_after_first") is False) == several
    assert request.chat is not None
    assert len(json.loads(request.chat.tools or b"[]")) == 2  # the prompt stays the same, and so does its cache


def test_none_means_no_tools_at_all(ask: Any, engine: FakeEngine) -> None:
    answer = ask(tool_choice="none", says=[CALL_GET]).json()
    (request,) = engine.requests
    assert request.sampling.constraint is None
    assert request.chat is not None
    assert request.chat.tools is None
    assert answer["choices"][0]["message"]["content"] == CALL_GET
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("dialect", [HERMES, GENERIC, LLAMA3])
def test_with_a_response_format_the_answer_is_one_or_the_other(ask: Any, engine: FakeEngine, dialect: Dialect) -> None:
    formats: list[dict[str, Any]] = [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": CITY, "strict": True}}},
        {"regex": "[a-z{]+"},
        {"choice": ["a", "b"]},
        {"ebnf": 'root ::= "a" root?'},
        {"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}},
        {"structural_tag": {"structures": [{"begin": "<f>", "schema": {}, "end": ""}], "triggers": ["<f>"]}},
    ]
    for form in formats[:-1]:
        assert ask(dialect, **form).status_code == 200
        response = tag_of(engine.requests[-1])["elements"][0]
        assert response["type"] in ("json_schema", "regex", "or", "grammar", "const_string")
    assert tag_of(engine.requests[0])["elements"][0]["closed"] is None
    assert tag_of(engine.requests[1])["elements"][0]["closed"]
    assert engine.requests[1].sampling.structured.closed is None  # only that schema
    assert ask(dialect, tool_choice="required", **formats[0]).status_code == 200
    assert "response_format" not in json.dumps(tag_of(engine.requests[-1]))


def test_strict_and_origin_of_each_tool(ask: Any, engine: FakeEngine) -> None:
    strict = {"type": "function", "function": {"name": "s", "parameters": CITY, "strict": True}}
    assert ask(tools=[GET, strict], tool_choice="required", parallel_tool_calls=False).status_code == 200
    first, second = (option["elements"][1] for option in tag_of(engine.requests[0])["elements"])
    assert (first["closed"], second["closed"]) == ("preferred", True)
    open_ = {"type": "function", "function": {"name": "o", "parameters": CITY, "strict": False}}
    for structured, expected in [
        ({}, ["preferred", True, False]),
        ({"closed": False}, [False] * 3),
        ({"closed": True}, [True] * 3),
    ]:
        sent = {"tools": [GET, strict, open_], "tool_choice": "required", "parallel_tool_calls": False}
        assert ask(**sent, structured=structured).status_code == 200
        assert [one["elements"][1].get("closed") for one in tag_of(engine.requests[-1])["elements"]] == expected
    assert (first["origin"], second["origin"]) == ("tools/0/function/parameters", "tools/1/function/parameters")


def test_a_server_with_open_tools_closes_those_that_say_so(ask: Any, engine: FakeEngine) -> None:
    strict = {"type": "function", "function": {"name": "s", "parameters": CITY, "strict": True}}
    free = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    dialect = replace(HERMES, closed_tools=False)
    sent = {"tools": [GET, strict, free], "tool_choice": "required", "parallel_tool_calls": False}
    assert ask(dialect, **sent).status_code == 200
    formats = [option["elements"][1] for option in tag_of(engine.requests[0])["elements"]]
    assert [one.get("closed") for one in formats] == [None, True, None]
    assert formats[2]["json_schema"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (None, {"type": "object", "properties": {}, "additionalProperties": False}),
        (True, {"type": "object"}),
        ({}, {"type": "object"}),
        ({"properties": {}}, {"type": "object", "properties": {}, "additionalProperties": False}),
        ({"properties": {}, "minProperties": 1}, {"type": "object", "properties": {}, "minProperties": 1}),
        ({"type": "object", "required": ["a"]}, {"type": "object", "required": ["a"]}),
        ({"type": ["object", "null"], "required": ["a"]}, {"type": "object", "required": ["a"]}),
        ({"type": "object", "nullable": True}, {"type": "object"}),
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}}, {"type": "object", "$ref": "#/$defs/a", "$defs": {"a": {}}}),
    ],
)
def test_arguments_are_always_an_object(ask: Any, engine: FakeEngine, given: Any, made: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": given}}
    assert ask(tools=[tool], tool_choice="required", parallel_tool_calls=False).status_code == 200
    assert tag_of(engine.requests[0])["elements"][1]["json_schema"] == made


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [GET, {"type": "function"}]}, "tools[1].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "x" * 65}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": 'a"'}}]}, "tools[0].function.name"),
        ({"tools": [GET, GET]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]}, "tools[0].function.strict"),
        ({"tools": [STOP] * 513}, "tools"),
        ({"tools": "get"}, "tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": None, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice.function.name"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "x", "tools": []}}},
         "tool_choice.allowed_tools.mode"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
         "tool_choice.allowed_tools.tools"),
        ({"functions": [FUNCTION]}, "functions"),
        ({"tools": None, "functions": [FUNCTION, FUNCTION]}, "functions[1].name"),
        ({"tools": None, "functions": [FUNCTION], "function_call": {"name": "g"}}, "function_call.name"),
        ({"tools": None, "functions": [FUNCTION], "function_call": "required"}, "function_call"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"], "choice": ["axe"]}, "stop"),
        ({"stop": ["x"], "structural_tag": {"format": {"type": "any_text"}}}, "stop"),
        ({"json_schema": "{"}, "json_schema"),
        ({"structural_tag": "[]"}, "structural_tag"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_what_is_wrong_is_named(ask: Any, engine: FakeEngine, fields: dict, param: str) -> None:
    check_error(ask(**fields), 400, param)
    assert not engine.requests


def test_refused_schemas_are_told_as_the_tools(engine: FakeEngine) -> None:
    from tests.server.fake_engine import error_delta

    engine.script = lambda request: [error_delta(request, "structural_tag is too large", 400, "x", "structural_tag")]
    assert check_error(Caller(engine, dialect=HERMES).chat(tools=TOOLS), 400, "tools") == "tools is too large"


# --- the conversation ---

ASKED = {"role": "user", "content": "weather?"}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"city": "Rome"}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}


def test_earlier_calls_reach_the_template_with_their_arguments_as_values(ask: Any, engine: FakeEngine) -> None:
    assert ask(messages=[ASKED, CALLED, RESULT]).status_code == 200
    chat = engine.requests[0].chat
    assert chat is not None
    function = {"name": "get", "arguments": {"city": "Rome"}}
    assert json.loads(chat.messages)[1:] == [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
    ]


def test_a_template_without_tools_gets_all_of_it_as_text(ask: Any, engine: FakeEngine) -> None:
    second = {**RESULT, "tool_call_id": "c2", "content": "late"}
    messages = [{"role": "system", "content": "be kind"}, ASKED, CALLED, RESULT, second, ASKED]
    assert ask(GENERIC, messages=messages).status_code == 200
    chat = engine.requests[0].chat
    assert chat is not None
    assert chat.tools is None
    system, asked, called, results, last = json.loads(chat.messages)
    assert system["content"].startswith("be kind\n\nYou can call these functions:\n")
    assert '{"name": "get", "description": "d", "parameters": {"type": "object"' in system["content"]
    assert '[{"name": "<name>", "arguments": {<arguments>}}]' in system["content"]
    assert asked == last == ASKED
    assert called == {"role": "assistant", "content": '[{"name": "get", "arguments": {"city":"Rome"}}]'}
    assert results == {"role": "user", "content": "get returned: sunny\nthe function returned: late"}


def test_instructions_find_a_place_in_any_template(ask: Any, engine: FakeEngine) -> None:
    assert ask(GENERIC, messages=[ASKED]).status_code == 200
    assert ask(make_dialect(template(templates.NO_SYSTEM)), messages=[ASKED]).status_code == 200
    first, second = (json.loads(request.chat.messages) for request in engine.requests if request.chat is not None)
    assert [message["role"] for message in first] == ["system", "user"]
    assert [message["role"] for message in second] == ["user"]
    assert second[0]["content"].startswith("You can call")
    assert second[0]["content"].endswith("weather?")


def test_a_configured_format_is_explained_too(ask: Any, engine: FakeEngine) -> None:
    assert ask(make_dialect(template(templates.PLAIN), tool_format="hermes")).status_code == 200
    chat = engine.requests[0].chat
    assert chat is not None
    assert (
        '<tool_call>\n{"name": "<name>", "arguments": {<arguments>}}\n</tool_call>'
        in (json.loads(chat.messages)[0]["content"])
    )


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({**CALLED, "tool_calls": "x"}, "messages[0].tool_calls"),
        ({**CALLED, "tool_calls": [{"id": "c"}]}, "messages[0].tool_calls[0].function"),
        ({**CALLED, "tool_calls": [{"function": {"arguments": "{}"}}]}, "messages[0].tool_calls[0].function.name"),
        (
            {**CALLED, "tool_calls": [{"function": {"name": "f", "arguments": "{a"}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "x"}},
            "messages[0].function_call.arguments",
        ),
        ({"role": "tool", "tool_call_id": "c1"}, "messages[0].content"),
    ],
)
def test_malformed_history_is_named(ask: Any, message: dict, param: str) -> None:
    check_error(ask(messages=[message]), 400, param)


def test_empty_arguments_and_values_are_taken(ask: Any, engine: FakeEngine) -> None:
    calls = [{"function": {"name": "f", "arguments": given}} for given in ("", {"a": 1}, None, "[1]")]
    old = {"role": "assistant", "content": "x", "function_call": {"name": "f", "arguments": "{}"}}
    answered = {"role": "function", "name": "f", "content": "1"}
    assert ask(messages=[{**CALLED, "tool_calls": calls}, old, answered]).status_code == 200
    chat = engine.requests[0].chat
    assert chat is not None
    first, second, third = json.loads(chat.messages)
    assert [call["function"]["arguments"] for call in first["tool_calls"]] == [{}, {"a": 1}, {}, [1]]
    assert second["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}
    assert third == {"role": "tool", "name": "f", "content": "1"}
