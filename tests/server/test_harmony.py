"""Answers in Harmony's channels through the routes that report reasoning, text and calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixrt.chat.dialect import make_dialect
from radixrt.chat.harmony import MARKERS
from tests.chat import templates
from tests.chat.templates import template
from tests.server.fake_engine import MODEL, FakeEngine, speak
from tests.server.helpers import Caller, events

DIALECT = make_dialect(
    template(templates.HARMONY), tokens={marker: 90 + i for i, marker in enumerate(MARKERS)},
    special_tokens=frozenset(MARKERS),
)  # fmt: skip
TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}
THOUGHT = ["<|channel|>", "analysis", "<|message|>", "Hm", " m", "<|end|>", "<|start|>", "assistant"]
ANSWER = [*THOUGHT, "<|channel|>", "final", "<|message|>", "It ", "rains."]
CALL = [*THOUGHT, "<|channel|>", "commentary to=functions.get ", "<|constrain|>", "json", "<|message|>", "{", "}"]


@pytest.fixture
def caller(engine: FakeEngine) -> Caller:
    return Caller(engine, dialect=DIALECT)


def says(engine: FakeEngine, words: list[str]) -> None:
    engine.script = lambda request: speak(request, words)


def test_chat(engine: FakeEngine, caller: Caller) -> None:
    says(engine, ANSWER)
    choice = caller.chat().json()["choices"][0]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "It rains.",
        "refusal": None,
        "reasoning_content": "Hm m",
    }
    assert (choice["message"], choice["finish_reason"]) == (message, "stop")
    assert engine.requests[-1].sampling.skip_special_tokens is False
    says(engine, CALL)
    choice = caller.chat(tools=[TOOL]).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == (None, "Hm m")
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "get", "arguments": "{}"}


def test_chat_streams(engine: FakeEngine, caller: Caller) -> None:
    says(engine, CALL)
    deltas = [
        event["choices"][0]["delta"]
        for event in events(caller.chat(tools=[TOOL], stream=True)) if event["choices"]
    ]  # fmt: skip
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Hm m"
    functions = [delta["tool_calls"][0]["function"] for delta in deltas if "tool_calls" in delta]
    assert functions[0] == {"name": "get", "arguments": ""}
    assert "".join(function["arguments"] for function in functions) == "{}"
    assert not any("<|" in json.dumps(delta) for delta in deltas)


def test_responses_and_messages(engine: FakeEngine, caller: Caller) -> None:
    says(engine, ANSWER)
    output = caller.post("/v1/responses", {"input": "hi"}).json()["output"]
    assert [item["type"] for item in output] == ["reasoning", "message"]
    assert output[1]["content"][0]["text"] == "It rains."
    body = {"model": MODEL, "max_tokens": 99, "messages": [{"role": "user", "content": "hi"}]}
    content = caller.post("/v1/messages", body).json()["content"]
    assert [(block["type"], block.get("text") or block.get("thinking")) for block in content] == [
        ("thinking", "Hm m"), ("text", "It rains."),
    ]  # fmt: skip
