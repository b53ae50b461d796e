"""Tools and reasoning in chat requests: what the engine receives, and how the model's output is parsed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from radixrt.chat.dialect import Dialect, make_dialect
from radixrt.constrained.tags.structural_tag import read_structural_tag
from radixrt.constraint import StructuredOptions
from radixrt.errors import RequestError
from radixrt.messages.client import GenerateReq, RequestOutput
from radixrt.messages.parts import ConstraintInfo, Finish, Usage
from radixrt.messages.wire import pack_i32
from radixrt.sampling_params import NO_FREE_TEXT, StopScope
from tests.chat import templates
from tests.chat.templates import template
from tests.server.fake_engine import MODEL, FakeEngine, speak
from tests.server.helpers import Caller, check_error, events

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
GET = {"type": "function", "function": {"name": "get", "description": "d", "parameters": CITY}}
STOP = {"type": "function", "function": {"name": "stop"}}
TOOLS = [GET, STOP]
CALL_GET = '<tool_call>\n{"name": "get", "arguments": {"city":"Rome"}}\n</tool_call>'
CALL_STOP = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'

HERMES = make_dialect(template(templates.HERMES))
GENERIC = make_dialect(template(templates.PLAIN))
LLAMA3 = make_dialect(template(templates.LLAMA3))
THINKING = make_dialect(template(templates.HERMES_THINKING), tokens={"<think>": 8, "</think>": 9})


@pytest.fixture
def ask(engine: FakeEngine) -> Any:
    def send(dialect: Dialect = HERMES, *, says: Iterable[str] = ("hi",), **fields: Any) -> Any:
        engine.script = lambda request: speak(request, list(says))
        return Caller(engine, dialect=dialect).chat(**{"tools": TOOLS, **fields})

    return send


def tag_of(request: GenerateReq) -> dict[str, Any]:
    """The structural tag of a request, which also must be one."""
    source = request.sampling.structural_tag
    read_structural_tag(source, StructuredOptions())[0]
    found: dict[str, Any] = json.loads(source)["format"]
    return found


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
    assert (tag["type"], tag["stop_after_first"]) == ("triggered_tags", True)
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
    assert ('"star"' in text) == several
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
    assert ("closed" in first, second["closed"]) == (False, True)
    open_ = {"type": "function", "function": {"name": "o", "parameters": CITY, "strict": False}}
    for structured, expected in [
        ({}, [None, True, False]),
        ({"closed": False}, [False] * 3),
        ({"closed": True}, [True] * 3),
    ]:
        sent = {"tools": [GET, strict, open_], "tool_choice": "required", "parallel_tool_calls": False}
        assert ask(**sent, structured=structured).status_code == 200
        assert [one["elements"][1].get("closed") for one in tag_of(engine.requests[-1])["elements"]] == expected
    assert (first["origin"], second["origin"]) == ("tools/0/function/parameters", "tools/1/function/parameters")


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (None, {"type": "object", "properties": {}, "additionalProperties": False}),
        (True, {"type": "object"}),
        ({}, {"type": "object"}),
        ({"properties": {}}, {"type": "object", "properties": {}}),
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


FUNCTION = {"name": "f", "parameters": {}}


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
        ({"tools": [STOP] * 300}, "tools"),
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
    def script(request: GenerateReq) -> Iterable[RequestOutput]:
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


def thinks(request: GenerateReq) -> Iterable[RequestOutput]:
    """Token 9 is the end marker."""
    for i, (text, ids) in enumerate(
        [("<think>", [8]), ("\nhm", [1, 2]), ("</think>", [9]), ("\n\n{", [5]), ("}", [6])]
    ):
        last: dict[str, Any] = {} if i < 4 else {"finish": Finish("stop"), "usage": Usage(1, 6)}
        yield RequestOutput(request.rid, text, pack_i32(ids), **last)


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_apart_and_counted(engine: FakeEngine, stream: bool) -> None:
    def script(request: GenerateReq) -> Iterable[RequestOutput]:
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
