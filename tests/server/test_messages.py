"""/v1/messages and /v1/messages/count_tokens: what the engine receives, the answers, the events and the errors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import httpx
import pytest

from radixrt.chat.dialect import Dialect, make_dialect
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import ChatPrompt, Finish, Usage
from tests.chat import templates
from tests.chat.templates import template
from tests.server.fake_engine import MODEL, FakeEngine, Sent, error_delta, speak
from tests.server.helpers import Caller, named_events

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
GET = {"name": "get", "description": "d", "input_schema": CITY}
STOP = {"name": "stop", "input_schema": {"type": "object"}}
CALL_GET = '<tool_call>\n{"name": "get", "arguments": {"city":"Rome"}}\n</tool_call>'
CALL_STOP = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
USE = {"type": "tool_use", "id": "toolu_1", "name": "get", "input": {"city": "Rome"}}
ASKED = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [USE]}]

PLAIN = make_dialect(template(templates.PLAIN))
HERMES = make_dialect(template(templates.HERMES))
THINKING = make_dialect(template(templates.HERMES_THINKING), tokens={"<think>": 8, "</think>": 9})


def send(
    engine: FakeEngine, dialect: Dialect = PLAIN, *, says: Iterable[str] = ("hi",), **fields: Any
) -> httpx.Response:
    engine.script = lambda request: speak(request, list(says))
    body = {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}], **fields}
    return Caller(engine, dialect=dialect).post("/v1/messages", body)


def prompt_of(engine: FakeEngine) -> ChatPrompt:
    chat = engine.requests[-1].chat
    assert chat is not None
    return chat


def accumulated(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of a stream's events; checks their order."""
    assert [event["type"] for event in found[:2]] == ["message_start", "ping"]
    assert found[-1]["type"] == "message_stop"
    message = found[0]["message"]
    assert message["content"] == []
    begun: dict[str, Any] | None = None
    for event in found[2:-1]:
        if event["type"] == "content_block_start":
            assert begun is None
            assert event["index"] == len(message["content"])
            begun = event["content_block"]
            message["content"].append(begun)
        elif event["type"] == "content_block_stop":
            assert event["index"] == len(message["content"]) - 1
            begun = None
        elif event["type"] == "content_block_delta":
            assert begun is not None
            kind, text = event["delta"].values()
            name = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature",
                    "input_json_delta": "input"}[kind]  # fmt: skip
            begun[name] = (begun[name] or "") + text
        else:
            assert begun is None
            message = {**message, **event["delta"], "usage": event["usage"]}
    for block in message["content"]:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["input"])
    return message


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    content = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {**message, "id": None, "content": content}


# --- in ---


def test_roles_blocks_and_results_in_the_words_of_the_chat_route(engine: FakeEngine) -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]}
    failed = {**result, "content": "no network", "is_error": True}
    said = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "Let me see."}, USE]
    answer = send(
        engine,
        HERMES,
        system=[{"type": "text", "text": "Be "}, {"type": "text", "text": "brief.", "cache_control": {}}],
        messages=[
            {"role": "user", "content": "one"},
            {"role": "user", "content": [{"type": "text", "text": "two"}]},
            {"role": "assistant", "content": said},
            {"role": "user", "content": [result, failed, {"type": "text", "text": "so?"}]},
            {"role": "system", "content": "Be quick."},
        ],
        cache_control={"type": "ephemeral"},
        metadata={"user_id": "u"},
        service_tier="auto",
    )
    assert answer.status_code == 200, answer.text
    assert "x-radixrt-ignored-fields" not in answer.headers
    call = {"id": "toolu_1", "type": "function", "function": {"name": "get", "arguments": {"city": "Rome"}}}
    assert json.loads(prompt_of(engine).messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one\n\ntwo"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "sunny", "tool_call_id": "toolu_1"},
        {"role": "tool", "content": "Error: no network", "tool_call_id": "toolu_1"},
        {"role": "user", "content": "so?"},
        {"role": "system", "content": "Be quick."},
    ]
    assert prompt_of(engine).add_generation_prompt


def test_sampling(engine: FakeEngine) -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "seed": 7, "stop_sequences": ["a", "b"]}
    assert send(engine, **fields, priority=3, cache_salt="s").status_code == 200
    (request,) = engine.requests
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (100, 0.5, 0.9, 40)
    assert (sampling.seed, sampling.stop, request.priority, request.cache_salt) == (7, ("a", "b"), 3, "s")


def test_claude_codes_billing_header_is_no_part_of_the_prompt(engine: FakeEngine) -> None:
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=eb6c6;"}
    assert send(engine, system=[billing, {"type": "text", "text": "Be brief."}]).status_code == 200
    assert json.loads(prompt_of(engine).messages)[0] == {"role": "system", "content": "Be brief."}
    assert send(engine, system=[billing]).status_code == 200
    assert json.loads(prompt_of(engine).messages)[0]["role"] == "user"


def test_last_message_of_the_assistant_is_continued(engine: FakeEngine) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The answer is ("}]
    assert send(engine, THINKING, messages=turns).status_code == 200
    prompt = prompt_of(engine)
    assert (prompt.continue_final_message, prompt.add_generation_prompt) == (True, False)
    assert json.loads(prompt.messages)[-1]["content"] == "The answer is ("


@pytest.mark.parametrize(
    ("choice", "kind", "names", "several"),
    [
        (None, "triggered_tags", {"get", "stop"}, True),
        ({"type": "auto"}, "triggered_tags", {"get", "stop"}, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "triggered_tags", {"get", "stop"}, False),
        ({"type": "any", "disable_parallel_tool_use": False}, "sequence", {"get", "stop"}, True),
        ({"type": "any", "disable_parallel_tool_use": True}, "or", {"get", "stop"}, False),
        ({"type": "tool", "name": "stop"}, "sequence", {"stop"}, False),
    ],
)
def test_tool_choice(engine: FakeEngine, choice: Any, kind: str, names: set[str], several: bool) -> None:
    assert send(engine, HERMES, tools=[{**GET, "type": "custom"}, STOP], tool_choice=choice).status_code == 200
    text = engine.requests[0].sampling.structural_tag
    assert json.loads(text)["format"]["type"] == kind
    assert {name for name in ("get", "stop") if f'\\"name\\": \\"{name}\\"' in text} == names
    assert ('"star"' in text or json.loads(text)["format"].get("stop_after_first") is False) == several
    first = json.loads(prompt_of(engine).tools or b"[]")[0]
    assert first == {"type": "function", "function": {"name": "get", "description": "d", "parameters": CITY}}


def test_no_tools_and_strict_tools(engine: FakeEngine) -> None:
    assert send(engine, HERMES, tools=[GET], tool_choice={"type": "none"}).status_code == 200
    assert prompt_of(engine).tools is None
    assert send(engine, HERMES, tools=[{**GET, "strict": True}]).status_code == 200
    text = engine.requests[-1].sampling.structural_tag
    assert '"closed":true' in text
    assert '"origin":"tools/0/input_schema"' in text


@pytest.mark.parametrize(
    ("thinking", "variables", "budget"),
    [
        (None, {}, None),
        ({"type": "enabled", "budget_tokens": 2000}, {"enable_thinking": True, "thinking": True}, 2000),
        ({"type": "adaptive"}, {"enable_thinking": True, "thinking": True}, None),
        ({"type": "disabled"}, {"enable_thinking": False, "thinking": False}, None),
    ],
)
def test_thinking(engine: FakeEngine, thinking: Any, variables: dict[str, Any], budget: int | None) -> None:
    assert send(engine, THINKING, thinking=thinking).status_code == 200
    assert json.loads(prompt_of(engine).template_kwargs) == variables
    assert engine.requests[0].sampling.structured.reasoning_budget == budget


def test_output_config(engine: FakeEngine) -> None:
    config = {"effort": "low", "format": {"type": "json_schema", "schema": CITY}}
    assert send(engine, output_config=config).status_code == 200
    sampling = engine.requests[0].sampling
    assert json.loads(sampling.json_schema) == CITY
    assert sampling.structured.closed
    assert json.loads(prompt_of(engine).template_kwargs) == {"reasoning_effort": "low"}


# --- out ---


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "blocks", "reason"),
    [
        ("<think></think>hello there", [{"type": "text", "text": "hello there"}], "end_turn"),
        ("", [], "end_turn"),
        ("<think>hm, so</think>\n\nyes",
         [{"type": "thinking", "thinking": "hm, so", "signature": "radixrt"}, {"type": "text", "text": "yes"}],
         "end_turn"),
        ("<think>\n</think>" + CALL_GET + "\n" + CALL_STOP,
         [{"type": "tool_use", "name": "get", "input": {"city": "Rome"}},
          {"type": "tool_use", "name": "stop", "input": {}}], "tool_use"),
        ("<think>\n\n</think>\n\nLet me see.\n" + CALL_GET,
         [{"type": "text", "text": "Let me see."}, {"type": "tool_use", "name": "get", "input": {"city": "Rome"}}],
         "tool_use"),
    ],
)  # fmt: skip
def test_stream_is_the_whole_message(
    engine: FakeEngine, text: str, blocks: list[dict[str, Any]], reason: str, size: int
) -> None:
    says = [text[i : i + size] for i in range(0, len(text), size)]
    whole = send(engine, THINKING, says=says, tools=[GET, STOP], max_tokens=1000).json()
    assert without_ids(whole)["content"] == blocks
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, None)
    assert all(block["id"].startswith("toolu_") for block in whole["content"] if block["type"] == "tool_use")
    streamed = accumulated(
        named_events(send(engine, THINKING, says=says, tools=[GET, STOP], max_tokens=1000, stream=True))
    )
    assert without_ids(streamed) == without_ids(whole)


def test_head_and_usage(engine: FakeEngine) -> None:
    answer = send(engine, says=["a", "b"])
    body = answer.json()
    assert body["id"] == f"msg_{engine.requests[0].rid}"
    assert (body["type"], body["role"], body["model"]) == ("message", "assistant", MODEL)
    assert body["usage"] == {
        "input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": 2,
        "output_tokens_details": {"thinking_tokens": 0},
    }  # fmt: skip
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    first = named_events(send(engine, says=["a", "b"], stream=True))[0]["message"]
    assert (first["usage"]["input_tokens"], first["usage"]["output_tokens"], first["stop_reason"]) == (10, 0, None)


def test_reasoning_is_counted_and_can_be_hidden(engine: FakeEngine) -> None:
    hidden = {"type": "adaptive", "display": "omitted"}
    for stream in (False, True):
        says = ["<think>1234", "</think>x", "yes"]  # the second is token 9, the end marker
        answer = send(engine, THINKING, says=says, thinking=hidden, stream=stream)
        message = accumulated(named_events(answer)) if stream else answer.json()
        assert message["content"][0] == {"type": "thinking", "thinking": "", "signature": "radixrt"}
        assert message["usage"]["output_tokens_details"] == {"thinking_tokens": 2}


@pytest.mark.parametrize(
    ("finish", "tokens", "expected"),
    [
        (Finish("stop", matched="END"), 3, ("stop_sequence", "END")),
        (Finish("stop", matched=2), 3, ("end_turn", None)),
        (Finish("length"), 100, ("max_tokens", None)),
        (Finish("length"), 99, ("model_context_window_exceeded", None)),
        (Finish("length", forced_close=True), 99, ("max_tokens", None)),
        (Finish("abort"), 3, ("max_tokens", None)),
    ],
)
def test_stop_reasons(engine: FakeEngine, finish: Finish, tokens: int, expected: tuple[str, str | None]) -> None:
    engine.script = lambda request: [RequestOutput(request.rid, "x", finish=finish, usage=Usage(10, tokens, 0))]
    body = {"max_tokens": 100, "messages": [{"role": "user", "content": "hi"}], "stop_sequences": ["END"]}
    whole = Caller(engine).post("/v1/messages", body).json()
    assert (whole["stop_reason"], whole["stop_sequence"]) == expected
    streamed = accumulated(named_events(Caller(engine).post("/v1/messages", {**body, "stream": True})))
    assert (streamed["stop_reason"], streamed["stop_sequence"]) == expected


def test_call_that_an_abort_has_cut_is_left_out(engine: FakeEngine) -> None:
    text = CALL_GET + "\n" + CALL_STOP[:-15]
    finish = Finish("abort")
    engine.script = lambda request: [RequestOutput(request.rid, text, finish=finish, usage=Usage(10, 5, 0))]
    body = {"max_tokens": 100, "messages": [{"role": "user", "content": "hi"}], "tools": [GET, STOP]}
    answer = Caller(engine, dialect=HERMES).post("/v1/messages", body).json()
    assert [block["input"] for block in answer["content"]] == [{"city": "Rome"}]
    assert answer["stop_reason"] == "max_tokens"


def test_count_tokens_asks_with_the_prompt_of_the_message(engine: FakeEngine) -> None:
    caller = Caller(engine, dialect=HERMES)
    body = {"messages": ASKED[:1], "system": "s", "tools": [GET], "tool_choice": {"type": "any"}}
    assert caller.post("/v1/messages/count_tokens", body).json() == {"input_tokens": 10}
    assert caller.post("/v1/messages", {**body, "max_tokens": 5}).status_code == 200
    assert engine.questions[0].chat == prompt_of(engine)


def test_message_is_aborted_by_its_id(engine: FakeEngine) -> None:
    caller = Caller(engine)
    aborted: list[dict[str, int]] = []

    def script(request: Sent) -> Iterable[RequestOutput | float]:
        aborted.append(caller.post("/abort", {"rid": "msg_r"}).json())
        yield from speak(request, ["hi"])

    engine.script = script
    body = {"max_tokens": 100, "messages": [{"role": "user", "content": "hi"}], "rid": "r"}
    assert caller.post("/v1/messages", body).json()["id"] == "msg_r"
    engine.wait_for(lambda: bool(aborted))
    assert aborted == [{"aborted": 1}]


# --- errors ---


def check_error(response: httpx.Response, status: int, kind: str, text: str) -> None:
    body = response.json()
    assert response.status_code == status, body
    assert (set(body), set(body["error"])) == ({"type", "error", "request_id"}, {"type", "message"})
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["request_id"] == response.headers["request-id"]
    assert text in body["error"]["message"]


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def tool(**fields: Any) -> dict[str, Any]:
    return {"tools": [{**GET, **fields}]}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages: Expected array, got null"),
    ({"messages": []}, "messages must hold at least one message"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role must be user, assistant or system"),
    ({"messages": [{"role": "user"}]}, "messages[0].content is required"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (user({"text": "x"}), "messages[0].content[0].type is required"),
    (user({"type": "text"}), "messages[0].content[0].text is required"),
    (user({"type": "image"}), "messages[0].content[0].source is required"),
    (user({"type": "image", "source": {}}), "messages[0].content[0].source.type is required"),
    (user({"type": "image", "source": {"type": "base64"}}), "messages[0].content[0].source.data is required"),
    (user({"type": "image", "source": {"type": "base64", "data": "%"}}), "content[0]: the image is not valid base64"),
    (user({"type": "image", "source": {"type": "file", "file_id": "x"}}), "not supported yet; send base64 or url"),
    ({"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}, "there can be no image here; it goes with"),
    (user({"type": "document", "source": {}}), "send the document's text in a text block"),
    (user({"type": "web_search_tool_result"}), "it is of Anthropic's own services"),
    (user(USE), "messages[0].content[0]: there can be no tool_use here; it goes with text, image, tool_result"),
    (user({"type": "tool_result"}), "messages[0].content[0].tool_use_id is required"),
    (user({"type": "tool_result", "tool_use_id": "x"}), "tool_use_id: no tool_use block before it has the id 'x'"),
    ({"messages": [*ASKED, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "image"}]}]}]},
     "messages[2].content[0].content[0].source is required"),
    ({"messages": [*ASKED, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [USE]}]}]},
     "messages[2].content[0].content[0]: there can be no tool_use here; it goes with text, image"),
    ({"messages": ASKED}, "messages[1] ends with tool_use; add a message of the user with a tool_result for each"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "get"}]}]},
     "messages[0].content[0].id is required"),
    ({"messages": [{"role": "assistant", "content": [{**USE, "input": "x"}]}]}, "messages[0].content[0].input"),
    ({"messages": [{"role": "assistant", "content": [{"type": "thinking"}]}]},
     "messages[0].content[0].thinking is required"),
    ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]}, "leave it out"),
    ({"messages": [{"role": "system", "content": [USE]}]}, "messages[0].content[0]: there can be no tool_use here"),
    ({"system": 5}, "system"),
    ({"system": [{"type": "image"}]}, "system[0]: there can be no image here"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens must be at least 1"),
    ({"temperature": -1}, "temperature must be"),
    ({"temperature": "hot"}, "temperature: Expected `float`".replace("`", "")),
    ({"top_p": 0}, "top_p must be"),
    ({"top_k": -2}, "top_k must be"),
    ({"seed": 2**64}, "seed"),
    ({"stop_sequences": "x"}, "stop_sequences: Expected array"),
    ({"stop_sequences": [""]}, "stop_sequences: each stop string must have 1 to 1024 characters"),
    ({"stop_sequences": [""], "tools": [GET]}, "each stop string must have"),
    ({"stream": "yes"}, "stream"),
    ({"metadata": {"user_id": 5}}, "metadata.user_id"),
    ({"cache_control": "x"}, "cache_control"),
    (tool(name="a b"), "tools[0].name must be 1 to 64 letters"),
    (tool(name=5), "tools[0].name"),
    (tool(input_schema=None), "tools[0].input_schema is required"),
    (tool(input_schema={"type": "string"}), "tools at /0/input_schema/type: the arguments of a tool are an object"),
    (tool(description=5), "tools[0].description"),
    (tool(strict="x"), "tools[0].strict"),
    (tool(type="web_search_20250305"), "tools[0].type 'web_search_20250305', a tool of Anthropic's own, is not"),
    (tool(defer_loading=True), "tools[0].defer_loading is not supported yet; leave it out"),
    (tool(input_examples=[{}]), "tools[0].input_examples is not supported yet; write the examples"),
    (tool(allowed_callers=["x"]), "tools[0].allowed_callers"),
    ({"tools": [GET, GET]}, "tools[1].name: there are two tools of the name 'get'"),
    ({"tool_choice": {"type": "any"}}, "tool_choice needs tools to choose from"),
    ({"tools": [GET], "tool_choice": {"type": "x"}}, "tool_choice.type must be auto, any, tool or none"),
    ({"tools": [GET], "tool_choice": {"type": "tool"}}, "tool_choice.name is required"),
    ({"tools": [GET], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name: there is no tool"),
    ({"tools": [GET], "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
     "tool_choice.disable_parallel_tool_use"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type must be enabled, adaptive or disabled"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens is required"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens must be between 1 and"),
    ({"thinking": {"type": "adaptive", "display": "x"}}, "thinking.display must be summarized or omitted"),
    ({"output_config": {"effort": 5}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "x"}}}, "output_config.format.type must be json_schema"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema is required"),
    ({"output_format": {"type": "json_schema"}}, "output_format is not supported yet; send output_config.format"),
    ({"container": "c"}, "container is not supported yet; run the code in your client"),
    ({"mcp_servers": [{}]}, "mcp_servers is not supported yet; call the MCP server in your client"),
    ({"rid": ""}, "rid must be"),
    ({"priority": 2**40}, "priority must be"),
    ({"timeout": 0}, "timeout must be"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "text"), REFUSED)
def test_bad_input_names_the_field(engine: FakeEngine, fields: dict[str, Any], text: str) -> None:
    check_error(send(engine, **fields), 400, "invalid_request_error", text)
    assert not engine.requests


def test_errors_in_this_apis_form(engine: FakeEngine) -> None:
    caller = Caller(engine)
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    check_error(caller.post("/v1/messages", {**body, "model": "x"}), 404, "not_found_error", "does not exist")
    check_error(caller.get("/v1/messages"), 405, "invalid_request_error", "method not allowed")
    check_error(caller.post("/v1/messages/batches", {}), 404, "not_found_error", "send each request to /v1/messages")
    check_error(caller.post("/v1/messages", content=b"{"), 415, "invalid_request_error", "content type")
    for status, kind in (
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (408, "timeout_error"),
    ):
        engine.script = lambda request, status=status: [error_delta(request, "no", status, param="prompt")]
        check_error(caller.post("/v1/messages", body), status, kind, "messages: no")


def test_error_within_a_stream_ends_it(engine: FakeEngine) -> None:
    engine.script = lambda request: [RequestOutput(request.rid, "x"), error_delta(request, "it broke", 500)]
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    response = Caller(engine).post("/v1/messages", body)
    last = named_events(response)[-1]
    assert last == {
        "type": "error",
        "error": {"type": "api_error", "message": "it broke"},
        "request_id": response.headers["request-id"],
    }


@pytest.mark.parametrize(
    ("version", "served"), [("2023-06-01", True), ("2026-10-21", True), ("2023-01-01", False), ("x", False)]
)
def test_version(engine: FakeEngine, version: str, served: bool) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        body = {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
        answer = Caller(engine).post(path, body, headers={"anthropic-version": version})
        if served:
            assert answer.status_code == 200
        else:
            check_error(answer, 400, "invalid_request_error", "send the header 'anthropic-version: 2023-06-01'")
