"""Answers of /v1/responses: the same plan as a chat's, events that OpenAI's client parses, and the final response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from radixrt.chat.dialect import Dialect, make_dialect
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import ConstraintInfo, Finish, Usage
from radixrt.messages.request import Envelope
from radixrt.messages.wire import pack_i32
from tests.chat import templates
from tests.chat.templates import template
from tests.server.fake_engine import FakeEngine, Sent, error_delta, speak
from tests.server.helpers import Caller, check_error, named_events

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
GET = {"name": "get", "description": "d", "parameters": CITY, "strict": True}
STOP = {"name": "stop"}
TOOLS = [{"type": "function", **GET}, {"type": "function", **STOP}]
CHAT_TOOLS = [{"type": "function", "function": GET}, {"type": "function", "function": STOP}]
HERMES = make_dialect(template(templates.HERMES))
THINKING = make_dialect(template(templates.HERMES_THINKING), tokens={"<think>": 8, "</think>": 9})

CALLS = (
    '<tool_call>\n{"name": "get", "arguments": {"city":"Rome"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
)
EVERYTHING = [
    "<think>",
    "let me",
    " see",
    "</think>",
    "I",
    " look.\n",
    *[CALLS[i : i + 9] for i in range(0, len(CALLS), 9)],
]
"""An answer with reasoning, a text and two calls."""

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def think(request: Sent) -> Any:
    """Say `EVERYTHING`, with the ids that the markers have in the dialect."""
    ids = {"<think>": 8, "</think>": 9}
    for output in speak(request, EVERYTHING):
        assert isinstance(output, RequestOutput)
        words = [output.text] if request.stream else EVERYTHING
        yield msgspec.structs.replace(output, output_ids=pack_i32([ids.get(word, 5) for word in words]))


def shape(value: Any) -> Any:
    """The value with the same text for each id and time."""
    if isinstance(value, dict):
        return {k: "-" if k in ("id", "call_id", "created_at", "completed_at") else shape(v) for k, v in value.items()}
    return [shape(one) for one in value] if isinstance(value, list) else value


@pytest.fixture
def create(engine: FakeEngine) -> Callable[..., httpx.Response]:
    def send(dialect: Dialect = HERMES, **fields: Any) -> httpx.Response:
        return Caller(engine, dialect=dialect).post("/v1/responses", {"input": "hi", **fields})

    return send


# --- the plan is that of a chat ---


SAME_PLANS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"max_output_tokens": 7, "temperature": 0.3, "top_p": 0.5}, {"max_tokens": 7, "temperature": 0.3, "top_p": 0.5}),
    (
        {"top_k": 3, "min_p": 0.1, "seed": 4, "presence_penalty": 1, "chat_template_kwargs": {"a": 1}, "priority": 3},
        {"top_k": 3, "min_p": 0.1, "seed": 4, "presence_penalty": 1, "chat_template_kwargs": {"a": 1}, "priority": 3},
    ),
    ({"reasoning": {"effort": "none"}}, {"reasoning_effort": "none"}),
    ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
    ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
    ({"text": {"format": {"type": "text"}}}, {"response_format": {"type": "text"}}),
    ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
    (
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": CITY, "strict": True}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY, "strict": True}}},
    ),
    ({"tools": TOOLS}, {"tools": CHAT_TOOLS}),
    ({"tools": TOOLS, "parallel_tool_calls": False}, {"tools": CHAT_TOOLS, "parallel_tool_calls": False}),
    ({"tools": TOOLS, "tool_choice": "none"}, {"tools": CHAT_TOOLS, "tool_choice": "none"}),
    ({"tools": TOOLS, "tool_choice": "required"}, {"tools": CHAT_TOOLS, "tool_choice": "required"}),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "name": "stop"}},
        {"tools": CHAT_TOOLS, "tool_choice": {"type": "function", "function": {"name": "stop"}}},
    ),
    (
        {
            "tools": TOOLS,
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get"}]},
        },
        {
            "tools": CHAT_TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get"}}]},
            },
        },
    ),
]


@pytest.mark.parametrize(("fields", "chat_fields"), SAME_PLANS)
def test_the_engine_receives_the_same_as_from_a_chat(
    engine: FakeEngine, fields: dict[str, Any], chat_fields: dict[str, Any]
) -> None:
    caller = Caller(engine, dialect=THINKING)
    made = caller.post("/v1/responses", {"input": "hi", **fields})
    assert made.status_code == caller.chat(**chat_fields).status_code == 200, made.text
    mine, chats = (msgspec.structs.replace(each.request, envelope=Envelope("")) for each in engine.requests)
    pointers = json.loads(json.dumps(mine.sampling.structural_tag or "").replace("/parameters", "/function/parameters"))
    tag = pointers.replace("text.format", "response_format") or None
    assert msgspec.structs.replace(mine, sampling=msgspec.structs.replace(mine.sampling, structural_tag=tag)) == chats


# --- events ---


def test_events_of_a_stream_and_the_final_response(create: Callable, engine: FakeEngine) -> None:
    engine.script = think
    found = named_events(create(THINKING, stream=True, tools=TOOLS, metadata={"a": "b"}))
    part = ["content_part.added", "{}.delta", "{}.done", "content_part.done"]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    expected = [
        "created", "in_progress",
        "output_item.added", *[kind.format("reasoning_text") for kind in part], "output_item.done",
        "output_item.added", *[kind.format("output_text") for kind in part], "output_item.done",
        *call, *call, "completed",
    ]  # fmt: skip
    kinds = [event["type"].removeprefix("response.") for event in found]
    assert [kind for i, kind in enumerate(kinds) if kind != kinds[i - 1]] == expected
    assert kinds.count("reasoning_text.delta") == 2
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    for event in found:
        EVENTS.validate_python(event)
    final = found[-1]["response"]
    assert final["output"] == [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert accumulated(found) == final["output"]
    whole = create(THINKING, tools=TOOLS, metadata={"a": "b"}).json()
    assert shape(whole) == shape(final)
    Response.model_validate(whole)
    reasoning, message, first, second = whole["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "let me see"}]
    assert message["content"][0]["text"] == "I look."
    assert [(one["name"], json.loads(one["arguments"])) for one in (first, second)] == [
        ("get", {"city": "Rome"}), ("stop", {}),
    ]  # fmt: skip
    assert whole["usage"]["input_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 0}
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}


def accumulated(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output as a client has it that adds up the fragments, by the places that the events name."""
    output: list[dict[str, Any]] = []
    for event in found:
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert event["output_index"] == len(output)
                output.append(event["item"])
            case "content_part.added":
                assert event["item_id"] == output[event["output_index"]]["id"]
                output[event["output_index"]]["content"].append(event["part"])
            case "output_text.delta" | "reasoning_text.delta":
                output[event["output_index"]]["content"][event["content_index"]]["text"] += event["delta"]
            case "reasoning_summary_part.added":
                output[event["output_index"]]["summary"].append(event["part"])
            case "reasoning_summary_text.delta":
                output[event["output_index"]]["summary"][event["summary_index"]]["text"] += event["delta"]
            case "function_call_arguments.delta":
                output[event["output_index"]]["arguments"] += event["delta"]
            case "output_item.done":
                output[event["output_index"]]["status"] = event["item"]["status"]
    return output


@pytest.mark.parametrize("summary", ["auto", "detailed"])
def test_reasoning_as_a_summary_of_itself(create: Callable, engine: FakeEngine, summary: str) -> None:
    engine.script = think
    fields = {"tools": TOOLS, "reasoning": {"summary": summary, "effort": "high"}}
    found = named_events(create(THINKING, stream=True, **fields))
    for event in found:
        EVENTS.validate_python(event)
    final = found[-1]["response"]
    assert final["output"][0]["summary"] == [{"type": "summary_text", "text": "let me see"}]
    assert "content" not in final["output"][0]
    assert accumulated(found) == final["output"]
    assert not any("reasoning_text" in event["type"] for event in found)
    assert final["reasoning"] == {"effort": "high", "summary": summary}


def test_openai_accumulates_the_same_response(engine: FakeEngine) -> None:
    """`responses.stream` of OpenAI's client asserts the order of events while it adds them up."""
    engine.script = think
    app = Caller(engine, dialect=THINKING).app

    async def go() -> tuple[Any, Any]:
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app=app))
        async with openai.AsyncOpenAI(base_url="http://test/v1", api_key="-", http_client=http) as client:
            async with client.responses.stream(model="fake", input="hi", tools=TOOLS) as stream:
                kinds = [event.type async for event in stream]
                final = await stream.get_final_response()
            assert kinds[-1] == "response.completed"
            return final, await client.responses.retrieve(final.id)

    final, stored = asyncio.run(go())
    assert final.output_text == "I look."
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
    dumped = final.to_dict()
    for item in dumped["output"]:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or []:
            part.pop("parsed", None)
    assert dumped == stored.to_dict()


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_stand_beside_their_text(create: Callable, engine: FakeEngine, stream: bool) -> None:
    engine.script = lambda request: speak(request, ["Hello", "impossible"])
    made = create(top_logprobs=2, stream=stream)
    found = named_events(made) if stream else []
    for event in found:
        EVENTS.validate_python(event)
    (message,) = (found[-1]["response"] if stream else made.json())["output"]
    rows = message["content"][0]["logprobs"]
    assert [row["token"] for row in rows] == ["Hello", "impossible"]
    assert rows[1]["logprob"] == -9999.0
    assert [top["token"] for top in rows[0]["top_logprobs"]] == ["alt0", "alt1"]
    if stream:
        deltas = [event["logprobs"] for event in found if event["type"] == "response.output_text.delta"]
        (done,) = (event["logprobs"] for event in found if event["type"] == "response.output_text.done")
        assert [row for delta in deltas for row in delta] == done == rows


def test_logprobs_of_a_token_without_text_are_not_lost(create: Callable, engine: FakeEngine) -> None:
    engine.script = lambda request: speak(request, ["Hello", ""])
    final = named_events(create(top_logprobs=1, stream=True))[-1]["response"]
    assert [row["token"] for row in final["output"][0]["content"][0]["logprobs"]] == ["Hello", ""]


# --- how a response ends ---


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_that_runs_out_of_tokens_is_incomplete(create: Callable, engine: FakeEngine, stream: bool) -> None:
    made = create(max_output_tokens=2, stream=stream)
    final = named_events(made)[-1]["response"] if stream else made.json()
    assert final["status"] == final["output"][0]["status"] == "incomplete"
    assert final["incomplete_details"] == {"reason": "max_output_tokens"}
    assert final["completed_at"] is None
    if stream:
        assert named_events(made)[-1]["type"] == "response.incomplete"


def test_a_call_that_is_cut_off_is_never_done(create: Callable, engine: FakeEngine) -> None:
    words = [CALLS[i : i + 9] for i in range(0, len(CALLS), 9)]
    engine.script = lambda request: speak(request, words)
    cut = next(i for i in range(len(words)) if "".join(words[:i]).count("arguments") == 2)
    found = named_events(create(stream=True, tools=TOOLS, max_output_tokens=cut + 1))
    for event in found:
        EVENTS.validate_python(event)
    statuses = [item["status"] for item in found[-1]["response"]["output"]]
    assert statuses == ["completed", "incomplete"]
    assert [event["name"] for event in found if event["type"] == "response.function_call_arguments.done"] == ["get"]


def test_a_call_that_was_closed_when_tokens_ran_out_is_complete(create: Callable, engine: FakeEngine) -> None:
    engine.script = lambda request: speak(request, [CALLS, ""])
    final = create(tools=TOOLS, max_output_tokens=1).json()
    assert final["status"] == "incomplete"
    assert [item["status"] for item in final["output"]] == ["completed", "completed"]


def test_an_empty_answer_is_a_message(create: Callable, engine: FakeEngine) -> None:
    engine.script = lambda request: speak(request, [])
    found = named_events(create(stream=True))
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == ""
    assert accumulated(found) == found[-1]["response"]["output"]


def test_a_constraint_reports_how_it_was_enforced(create: Callable, engine: FakeEngine) -> None:
    def script(request: Sent) -> Any:
        info = ConstraintInfo(backend="llguidance", forced_tokens=3)
        yield RequestOutput(request.rid, "{}", finish=Finish("length", forced_close=True), constraint=info)

    engine.script = script
    found = named_events(create(stream=True, text={"format": {"type": "json_object"}}))
    EVENTS.validate_python(found[-1])
    assert found[-1]["response"]["radixrt"]["forced_close"] is True
    assert found[-1]["response"]["usage"]["total_tokens"] == 0


@pytest.mark.parametrize(
    ("status", "code"), [(500, "server_error"), (429, "rate_limit_exceeded"), (400, "invalid_prompt")]
)
def test_an_error_in_mid_stream(create: Callable, engine: FakeEngine, status: int, code: str) -> None:
    def script(request: Sent) -> Any:
        yield RequestOutput(request.rid, "Hel")
        yield error_delta(request, "it broke", status, "broken")

    engine.script = script
    *_, error, failed = named_events(create(stream=True))
    for event in (error, failed):
        EVENTS.validate_python(event)
    assert (error["type"], error["message"], error["code"]) == ("error", "it broke", "broken")
    assert error["error"]["message"] == "it broke"  # OpenAI's client raises for this member
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": code, "message": "it broke"}
    assert failed["response"]["output"][0]["content"][0]["text"] == "Hel"
    assert failed["response"]["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_before_the_first_output_is_an_http_error(create: Callable, engine: FakeEngine, stream: bool) -> None:
    engine.script = lambda request: [error_delta(request, "max_tokens is too large", 400, "big", "max_tokens")]
    message = check_error(create(stream=stream), 400, "max_output_tokens", "big")
    assert message == "max_output_tokens is too large"


@pytest.mark.parametrize("stream", [False, True])
def test_an_aborted_response_is_cancelled(create: Callable, engine: FakeEngine, stream: bool) -> None:
    engine.script = lambda request: [RequestOutput(request.rid, "Hel", finish=Finish("abort"), usage=Usage(3, 1, 0))]
    made = create(stream=stream)
    final = named_events(made)[-1]["response"] if stream else made.json()
    Response.model_validate(final)
    assert (final["status"], final["incomplete_details"]) == ("cancelled", None)
    if stream:
        assert named_events(made)[-1]["type"] == "response.incomplete"
