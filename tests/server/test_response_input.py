"""Input of /v1/responses: items as chat messages, and bad input of every field, which names the field and the fix."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixrt.chat.dialect import make_dialect
from radixrt.config import ServerConfig
from tests.chat import templates
from tests.chat.templates import template
from tests.server.fake_engine import MAX_INPUT, FakeEngine, error_delta, speak
from tests.server.helpers import Caller, check_error

PATH = "/v1/responses"
GET = {"type": "function", "name": "get", "parameters": {"type": "object"}}
CALL = {"type": "function_call", "call_id": "c1", "name": "get", "arguments": '{"x": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
REASONING = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
USER = {"role": "user", "content": "hi"}


@pytest.fixture
def own(engine: FakeEngine) -> Caller:
    return Caller(engine, dialect=make_dialect(template(templates.HERMES)))


def sent(caller: Caller) -> list[dict[str, Any]]:
    """The messages of the last request that the engine received."""
    chat = caller.engine.requests[-1].chat
    assert chat is not None
    return json.loads(chat.messages)


# --- items and messages ---


def test_items_become_the_messages_of_a_chat(own: Caller) -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be brief"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {**REASONING, "id": "rs_1", "encrypted_content": None},
        {"role": "assistant", "content": [{"type": "output_text", "text": "ok", "annotations": []}], "phase": "x"},
        CALL,
        {**CALL, "call_id": "c2", "arguments": ""},
        OUTPUT,
        {**OUTPUT, "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": "yes"},
        USER,
    ]
    made = own.post(PATH, {"input": items, "instructions": "be kind"})
    assert made.status_code == 200, made.text
    call = {"type": "function", "function": {"name": "get", "arguments": {"x": 1}}}
    assert sent(own) == [
        {"role": "system", "content": "be kind"},
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "ab"},
        {
            "role": "assistant",
            "content": "ok",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", **call},
                {"id": "c2", "type": "function", "function": {"name": "get", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
        {"role": "tool", "content": "rain", "tool_call_id": "c2"},
        {"role": "assistant", "content": "no", "reasoning_content": "so"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "hi"},
    ]


def test_a_response_is_continued(own: Caller) -> None:
    first = own.post(PATH, {"input": "one", "instructions": "not carried over"}).json()
    second = own.post(PATH, {"input": [USER], "previous_response_id": first["id"]}).json()
    assert second["previous_response_id"] == first["id"]
    third = own.post(PATH, {"input": "three", "previous_response_id": second["id"], "instructions": "new"})
    assert third.status_code == 200
    said = {"role": "assistant", "content": "Hello, world!"}
    assert sent(own) == [
        {"role": "system", "content": "new"},
        {"role": "user", "content": "one"}, said, USER, said,
        {"role": "user", "content": "three"},
    ]  # fmt: skip


def test_a_continued_response_keeps_its_conversation_when_the_earlier_one_is_deleted(own: Caller) -> None:
    first = own.post(PATH, {"input": "one"}).json()
    second = own.post(PATH, {"input": "two", "previous_response_id": first["id"]}).json()
    assert own.request("DELETE", f"{PATH}/{first['id']}").json()["deleted"] is True
    assert own.post(PATH, {"input": "x", "previous_response_id": second["id"]}).status_code == 200
    assert [message["content"] for message in sent(own)][0::2] == ["one", "two", "x"]
    code = "previous_response_not_found"
    check_error(
        own.post(PATH, {"input": "x", "previous_response_id": first["id"]}), 404, "previous_response_id", code
    )  # fmt: skip


def test_a_call_that_was_cut_off_is_no_part_of_the_conversation(own: Caller) -> None:
    own.engine.script = lambda request: speak(request, ['<tool_call>\n{"name": "get", "arguments": {"x', "never"])
    first = own.post(PATH, {"input": "one", "tools": [GET], "max_output_tokens": 1}).json()
    (call,) = first["output"]
    assert call["status"] == "incomplete"
    assert own.post(PATH, {"input": "two", "previous_response_id": first["id"]}).status_code == 200
    assert [message["content"] for message in sent(own)] == ["one", "two"]
    output = {**OUTPUT, "call_id": call["call_id"]}
    refused = own.post(PATH, {"input": [output], "previous_response_id": first["id"]})
    check_error(refused, 400, "input[0].call_id")


def test_reasoning_without_an_answer_is_a_message_without_text(own: Caller) -> None:
    assert own.post(PATH, {"input": [REASONING, USER]}).status_code == 200
    assert sent(own) == [{"role": "assistant", "content": "", "reasoning_content": "hm"}, USER]


def test_an_item_is_referred_to_by_its_id(own: Caller) -> None:
    (message,) = own.post(PATH, {"input": "one"}).json()["output"]
    items = [USER, {"type": "item_reference", "id": message["id"]}, USER]
    assert own.post(PATH, {"input": items}).status_code == 200
    assert sent(own) == [USER, {"role": "assistant", "content": "Hello, world!"}, USER]
    unknown = {"input": [{"type": "item_reference", "id": "msg_x"}]}
    check_error(own.post(PATH, unknown), 404, "input[0].id", "item_not_found")


def test_an_item_is_referred_to_once(own: Caller) -> None:
    (message,) = own.post(PATH, {"input": "one"}).json()["output"]
    reference = {"type": "item_reference", "id": message["id"]}
    refused = own.post(PATH, {"input": [reference, USER, reference]})
    assert "refer to each item once" in check_error(refused, 400, "input[2].id", "repeated_reference")


def test_referred_items_take_at_most_the_bytes_of_a_body(engine: FakeEngine) -> None:
    caller = Caller(engine, ServerConfig(max_body_bytes=1024))
    engine.script = lambda request: speak(request, ["x" * 500])
    made = [caller.post(PATH, {"input": "one"}).json()["output"][0]["id"] for _ in range(3)]
    references = [{"type": "item_reference", "id": item_id} for item_id in made]
    assert caller.post(PATH, {"input": references[:1]}).status_code == 200
    refused = caller.post(PATH, {"input": references})
    assert "refer to fewer items" in check_error(refused, 400, "input[1].id", "references_too_large")


def test_a_referred_item_has_no_logprobs(own: Caller) -> None:
    made = own.post(PATH, {"input": "one", "top_logprobs": 2}).json()
    assert made["output"][0]["content"][0]["logprobs"]
    reference = {"type": "item_reference", "id": made["output"][0]["id"]}
    again = own.post(PATH, {"input": [reference]}).json()
    (item,) = own.get(f"{PATH}/{again['id']}/input_items").json()["data"]
    assert item["content"] == [{"type": "output_text", "text": "Hello, world!", "annotations": [], "logprobs": []}]


def test_null_means_not_given(own: Caller) -> None:
    names = (
        "instructions store tools tool_choice text reasoning metadata include max_output_tokens previous_response_id "
        "conversation prompt truncation stream_options background temperature"
    )
    fields = dict.fromkeys(names.split())
    assert own.post(PATH, {"input": "hi", **fields}).status_code == 200


def test_fields_of_openais_service_are_taken(own: Caller) -> None:
    fields = {
        "user": "u",
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "max_tool_calls": 3,
    }
    made = own.post(PATH, {"input": "hi", **fields, "include": ["reasoning.encrypted_content"]})
    assert made.status_code == 200
    assert made.json()["max_tool_calls"] == 3


# --- long conversations ---

LONG = "x" * 32 * (MAX_INPUT + 8)
SHOWS_REASONING = """{% for m in messages %}{{ m.role }}: {{ m.reasoning_content or "" }}{{ m.content }}
{% endfor %}"""


def reasoning(text: str) -> dict[str, Any]:
    return {**REASONING, "content": [{"type": "reasoning_text", "text": text}]}


def test_a_long_conversation_loses_reasoning_that_no_prompt_shows(own: Caller) -> None:
    said = {"role": "assistant", "content": "Hello, world!"}
    call = {"type": "function", "function": {"name": "get", "arguments": {"x": 1}}, "id": "c1"}
    first = own.post(PATH, {"input": [reasoning(LONG), reasoning("a"), CALL, OUTPUT, USER]}).json()
    second = own.post(PATH, {"input": [USER], "previous_response_id": first["id"]}).json()
    assert sent(own) == [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"}, USER, said, USER,
    ]  # fmt: skip
    own.post(PATH, {"input": [reasoning("so"), USER], "previous_response_id": second["id"]})
    assert sent(own)[3:] == [said, USER, said, {"role": "assistant", "content": "", "reasoning_content": "so"}, USER]
    assert own.app.state.service.responses.bytes < 2 * len(LONG)


def test_a_conversation_that_no_prompt_can_hold_is_not_continued(engine: FakeEngine) -> None:
    for source, items in ((SHOWS_REASONING, [reasoning(LONG), USER]), (templates.PLAIN, [USER, reasoning(LONG)])):
        caller = Caller(engine, dialect=make_dialect(template(source)))
        made = caller.post(PATH, {"input": items}).json()
        refused = caller.post(PATH, {"input": "hi", "previous_response_id": made["id"]})
        message = check_error(refused, 400, "previous_response_id", "conversation_too_long")
        assert "send its items in input" in message
        listed = caller.get(f"{PATH}/{made['id']}/input_items").json()["data"]
        assert [item["type"] for item in listed] == [item.get("type", "message") for item in reversed(items)]


def test_a_turn_goes_on_in_the_next_request(own: Caller) -> None:
    """Reasoning, a text and calls of one turn are one message, whichever request or response they come from."""
    first = own.post(PATH, {"input": [USER, reasoning("a")]}).json()
    own.post(PATH, {"input": [CALL, OUTPUT], "previous_response_id": first["id"]})
    call = {"type": "function", "function": {"name": "get", "arguments": {"x": 1}}, "id": "c1"}
    said = {"role": "assistant", "content": "Hello, world!", "reasoning_content": "a", "tool_calls": [call]}
    assert sent(own) == [USER, said, {"role": "tool", "content": "sunny", "tool_call_id": "c1"}]


# --- bad input ---

BAD: list[tuple[dict[str, Any], str | None, str]] = [
    ({"input": None}, "input", "Expected str | array"),
    ({"input": 5}, "input", "Expected str | array"),
    ({"input": []}, "input", "at least one"),
    ({"input": [5]}, "input[0]", "object"),
    ({"input": [{}]}, "input[0].type", "required"),
    ({"input": [USER] * 5000}, "input", "4096"),
    ({"input": [USER, {"role": "robot", "content": "x"}]}, "input[1].role", "user, assistant"),
    ({"input": [{"role": "user"}]}, "input[0].content", "required"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text", "required"),
    ({"input": [{"role": "user", "content": [{"text": "x"}]}]}, "input[0].content[0].type", "required"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
        "input[0].content[0]",
        "must have the form data:",
    ),
    ({"input": [{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}]}, "input[0].content[0].type", ""),
    ({"input": [{"role": "assistant", "content": [{"type": "refusal"}]}]}, "input[0].content[0].refusal", "required"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type", "function_call"),
    ({"input": [{"type": "item_reference"}]}, "input[0].id", "required"),
    ({"input": [{**CALL, "arguments": "{"}]}, "input[0].arguments", "not JSON"),
    ({"input": [{**CALL, "arguments": "[]"}]}, "input[0].arguments", "object"),
    ({"input": [{**CALL, "arguments": None}]}, "input[0].arguments", "required"),
    ({"input": [{**CALL, "name": None}]}, "input[0].name", "required"),
    ({"input": [{**CALL, "call_id": None}]}, "input[0].call_id", "required"),
    ({"input": [OUTPUT]}, "input[0].call_id", "previous_response_id"),
    ({"input": [CALL, {**OUTPUT, "call_id": "c2"}]}, "input[1].call_id", "function_call"),
    ({"input": [CALL, {**OUTPUT, "output": None}]}, "input[1].output", "required"),
    ({"input": [CALL, {**OUTPUT, "output": [{"type": "input_file"}]}]}, "input[1].output[0].type", "text"),
    ({"input": [{**REASONING, "content": [{"type": "text", "text": ""}]}]}, "input[0].content[0].type", ""),
    ({"input": [{**REASONING, "content": None, "encrypted_content": "x"}]}, "input[0].encrypted_content", "leave"),
    ({"input": [{**REASONING, "summary": [{"type": "summary_text"}]}]}, "input[0].summary[0].text", "required"),
    ({"instructions": 5}, "instructions", "str"),
    ({"instructions": [USER]}, "instructions", "str"),
    ({"previous_response_id": 5}, "previous_response_id", "str"),
    ({"store": "yes"}, "store", "bool"),
    ({"background": 1}, "background", "bool"),
    ({"background": True, "stream": True}, "stream", "GET"),
    ({"background": True, "store": False}, "store", "leave store out"),
    ({"stream": "yes"}, "stream", "bool"),
    ({"stream_options": {}}, "stream_options", "stream"),
    ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage", "leave it out"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation", "leave"),
    ({"text": "x"}, "text", "object"),
    ({"text": {"verbosity": "low"}}, "text.verbosity", "instructions"),
    ({"text": {"style": "x"}}, "text.style", "leave it out"),
    ({"text": {"format": {}}}, "text.format.type", "required"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "json_schema"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name", "required"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "required"),
    ({"text": {"format": {"type": "json_schema", "name": "x" * 65, "schema": {}}}}, "text.format.name", "64"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "json_schema": {}}}}, "text.format.json_schema", "leave"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "huge"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary", "long"),
    ({"reasoning": {"summary": "concise"}}, "reasoning.summary", "detailed"),
    ({"reasoning": {"generate_summary": "auto"}}, "reasoning.generate_summary", "leave it out"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode", "leave it out"),
    ({"reasoning": {"tokens": 5}}, "reasoning.tokens", "leave it out"),
    ({"tools": {}}, "tools", "array"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "define a function"),
    ({"tools": [GET, {"type": "mcp", "server_label": "x"}]}, "tools[1].type", "define a function"),
    ({"tools": [{"name": "get"}]}, "tools[0].type", "required"),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "required"),
    ({"tools": [{"type": "function", "function": {"name": "get"}}]}, "tools[0].name", "required"),
    ({"tools": [{**GET, "name": "a b"}]}, "tools[0].name", "letters"),
    ({"tools": [GET, GET]}, "tools[1].name", "two tools"),
    ({"tools": [{**GET, "parameters": 5}]}, "tools", "/0/parameters"),
    ({"tools": [{**GET, "name": f"t{i}"} for i in range(600)]}, "tools", "512"),
    ({"tool_choice": "required"}, "tool_choice", "tools"),
    ({"tools": [GET], "tool_choice": "any"}, "tool_choice", "required"),
    ({"tools": [GET], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name", "no tool"),
    ({"tools": [GET], "tool_choice": {"type": "function"}}, "tool_choice.name", "required"),
    ({"tools": [GET], "tool_choice": {"type": "web_search"}}, "tool_choice.type", "allowed_tools"),
    ({"tools": [GET], "tool_choice": {"type": "allowed_tools", "mode": "x"}}, "tool_choice.mode", "auto"),
    ({"tools": [GET], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools", "at least"),
    (
        {"tools": [GET], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
        "tool_choice.tools[0].type",
        "function",
    ),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "bool"),
    ({"max_tool_calls": 0}, "max_tool_calls", "at least 1"),
    ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens"),
    ({"max_output_tokens": 1.5}, "max_output_tokens", "int"),
    ({"temperature": -1}, "temperature", "temperature"),
    ({"top_p": 0}, "top_p", "top_p"),
    ({"top_k": -2}, "top_k", "top_k"),
    ({"min_p": 2}, "min_p", "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty", ""),
    ({"frequency_penalty": 3}, "frequency_penalty", ""),
    ({"presence_penalty": -3}, "presence_penalty", ""),
    ({"seed": 2**63}, "seed", ""),
    ({"top_logprobs": 21}, "top_logprobs", "20"),
    ({"include": ["file_search_call.results"]}, "include[0]", "message.output_text.logprobs"),
    ({"include": "x"}, "include", "array"),
    ({"truncation": "auto"}, "truncation", "send a shorter input"),
    ({"metadata": {"a": 1}}, "metadata[...]", "str"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "16"),
    ({"metadata": {"k" * 65: ""}}, "metadata", "64"),
    ({"metadata": {"k": "v" * 513}}, "metadata", "512"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs", "object"),
    ({"allow_control_tokens": 1}, "allow_control_tokens", "bool"),
    ({"model": 5}, "model", "str"),
    ({"rid": ""}, "rid", "rid"),
    ({"priority": 2**31}, "priority", "priority"),
    ({"timeout": 0}, "timeout", "timeout"),
    ({"cache_salt": "x" * 257}, "cache_salt", "256"),
    ({"program": {}}, "program.id", "required"),
    ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
    ({"prompt": {"id": "x"}}, "prompt", "instructions"),
    ({"context_management": []}, "context_management", "shorter"),
    ({"moderation": {}}, "moderation", "leave it out"),
    ({"messages": [USER]}, "messages", "input"),
    ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
    ({"response_format": {"type": "text"}}, "response_format", "text.format"),
    ({"n": 2}, "n", "n times"),
    ({"stop": "x"}, "stop", "/v1/chat/completions"),
    ({"no_such_field": 1}, "no_such_field", "leave it out"),
]


@pytest.mark.parametrize(("fields", "param", "says"), BAD)
def test_bad_input_names_the_field_and_the_fix(own: Caller, fields: dict[str, Any], param: str, says: str) -> None:
    message = check_error(own.post(PATH, {"input": "hi", **fields}), 400, param)
    assert says in message
    assert "messages[" not in message
    assert not own.engine.requests


def test_input_is_required(own: Caller) -> None:
    check_error(own.post(PATH, {}), 400, "input", "missing_field")


def test_another_model_is_not_found(own: Caller) -> None:
    check_error(own.post(PATH, {"input": "hi", "model": "gpt-9"}), 404, "model")


@pytest.mark.parametrize(
    ("engine_param", "fields", "param"),
    [
        ("prompt", {}, "input"),
        ("json_schema", {"text": {"format": {"type": "json_schema", "name": "x", "schema": 5}}}, "text.format"),
        ("structural_tag", {"tools": [GET]}, "tools"),
    ],
)
def test_errors_of_the_engine_have_the_names_of_this_route(
    own: Caller, engine_param: str, fields: dict[str, Any], param: str
) -> None:
    own.engine.script = lambda request: [error_delta(request, f"{engine_param} is bad", 400, "bad", engine_param)]
    assert check_error(own.post(PATH, {"input": "hi", **fields}), 400, param) == f"{param} is bad"


def test_a_server_that_stores_nothing_says_so(engine: FakeEngine) -> None:
    caller = Caller(engine, ServerConfig(max_stored_responses=0))
    made = caller.post(PATH, {"input": "hi"}).json()
    assert made["store"] is False
    check_error(caller.get(f"{PATH}/{made['id']}"), 404, "response_id", "response_not_found")
    for name in ("store", "background"):
        assert "--max-stored-responses" in check_error(caller.post(PATH, {"input": "hi", name: True}), 400, name)
