"""Answers in Kimi-K3's blocks through the routes that report reasoning, text and calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixrt.chat.dialect import make_dialect
from radixrt.chat.kimi_k3 import FORMAT, MESSAGE_END, RESPONSE, RESPONSE_END, THINK_END
from tests.chat import templates
from tests.chat.templates import template
from tests.server.fake_engine import MODEL, FakeEngine, speak
from tests.server.helpers import Caller, events

DIALECT = make_dialect(
    template(templates.KIMI_K3), tokens={marker: 90 + i for i, marker in enumerate(FORMAT.markers)},
    special_tokens=frozenset(FORMAT.markers),
)  # fmt: skip
CODE = 'def f(x):\n    return x < 1 or "é"\n'
ARGUMENTS = {"code": CODE, "line": 7, "tags": ["a"]}
TOOL = {"type": "function", "function": {"name": "write", "parameters": {"type": "object"}}}
ANSWER = f"Hm m{THINK_END}{RESPONSE}It rains.{RESPONSE_END}{MESSAGE_END}"
CALL = f"Hm m{THINK_END}{RESPONSE}I write.{RESPONSE_END}{FORMAT.write([('write', ARGUMENTS)])}{MESSAGE_END}"


@pytest.fixture
def caller(engine: FakeEngine) -> Caller:
    return Caller(engine, dialect=DIALECT)


def says(engine: FakeEngine, text: str) -> None:
    engine.script = lambda request: speak(request, [text[i : i + 5] for i in range(0, len(text), 5)])


def test_chat(engine: FakeEngine, caller: Caller) -> None:
    says(engine, ANSWER)
    message = caller.chat().json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("It rains.", "Hm m")
    assert engine.requests[-1].sampling.skip_special_tokens is False
    says(engine, CALL)
    choice = caller.chat(tools=[TOOL]).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == ("I write.", "Hm m")
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("write", ARGUMENTS)


def test_chat_streams(engine: FakeEngine, caller: Caller) -> None:
    says(engine, CALL)
    deltas = [
        event["choices"][0]["delta"]
        for event in events(caller.chat(tools=[TOOL], stream=True)) if event["choices"]
    ]  # fmt: skip
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Hm m"
    assert "".join(delta.get("content") or "" for delta in deltas) == "I write."
    functions = [delta["tool_calls"][0]["function"] for delta in deltas if "tool_calls" in delta]
    assert len(functions) > 5
    assert json.loads("".join(function["arguments"] for function in functions)) == ARGUMENTS
    assert not any("<|" in json.dumps(delta) for delta in deltas)


def test_responses_and_messages(engine: FakeEngine, caller: Caller) -> None:
    says(engine, CALL)
    tool = {"type": "function", "name": "write", "parameters": {"type": "object"}}
    output = caller.post("/v1/responses", {"input": "hi", "tools": [tool]}).json()["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
    assert json.loads(output[2]["arguments"]) == ARGUMENTS
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 99, "messages": [{"role": "user", "content": "hi"}]}
    body["tools"] = [{"name": "write", "input_schema": {"type": "object"}}]
    content = caller.post("/v1/messages", body).json()["content"]
    assert [block["type"] for block in content] == ["thinking", "text", "tool_use"]
    assert content[2]["input"] == ARGUMENTS
