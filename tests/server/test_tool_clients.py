"""Calls of a plain function of two parameters, as clients offer it: exactly the declared arguments, at temperature 1.

The clients say nothing about other arguments, and a small model would add some. openai and anthropic are the real
packages; LangChain and instructor, whose requirements exclude those of the suite, are their recorded requests with
this function in place of the recorded one. No request but Anthropic's, whose API needs it, has a limit of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

SEEDS = range(4)
QUESTION = [{"role": "user", "content": "What is 2 plus 3? Call add."}]
ADD: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
FUNCTION = {"name": "add", "description": "Add two numbers.", "parameters": ADD}
RECORDED = Path(__file__).parents[1] / "clients" / "recorded"

Calls = list[dict[str, Any]]


def with_openai(url: str, model: str, seed: int) -> Calls:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        answer = client.chat.completions.create(
            model=model,
            messages=QUESTION,  # type: ignore[arg-type]
            tools=[{"type": "function", "function": FUNCTION}],  # type: ignore[list-item, typeddict-item]
            tool_choice="required",
            temperature=1,
            seed=seed,
        )
    return [json.loads(call.function.arguments) for call in answer.choices[0].message.tool_calls or []]  # type: ignore[union-attr]


def with_anthropic(url: str, model: str, seed: int) -> Calls:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=300) as client:
        answer = client.messages.create(
            model=model,
            max_tokens=512,
            messages=QUESTION,  # type: ignore[arg-type]
            tools=[{"name": "add", "description": "Add two numbers.", "input_schema": ADD}],
            tool_choice={"type": "any"},
            extra_body={"temperature": 1, "seed": seed},
        )
    return [block.input for block in answer.content if block.type == "tool_use"]


def as_recorded(client: str) -> Callable[[str, str, int], Calls]:
    """Return a function that sends the first recorded chat of a client that must call a function."""
    requests = json.loads((RECORDED / f"{client}.json").read_text())["requests"]
    bodies = [one["body"] for one in requests if isinstance(one.get("body"), dict)]
    recorded = next(
        body for body in bodies if isinstance(body.get("tool_choice"), dict) and not body.get("stream")
        and "strict" not in body["tools"][0].get("function", {"strict": None})
    )  # fmt: skip
    keep = {name: recorded[name] for name in recorded.keys() - {"max_tokens", "max_completion_tokens"}}

    def send(url: str, model: str, seed: int) -> Calls:
        choice = {"type": "function", "function": {"name": "add"}}
        tools = [{**recorded["tools"][0], "function": {**recorded["tools"][0]["function"], **FUNCTION}}]
        body = {**keep, "model": model, "messages": QUESTION, "tools": tools, "tool_choice": choice}
        answer = httpx.post(
            f"{url}/v1/chat/completions", json={**body, "temperature": 1, "seed": seed}, timeout=300
        ).json()
        return [json.loads(call["function"]["arguments"]) for call in answer["choices"][0]["message"]["tool_calls"]]

    return send


CLIENTS = {
    "openai": with_openai,
    "anthropic": with_anthropic,
    "langchain": as_recorded("langchain"),
    "instructor": as_recorded("instructor"),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_calls_have_exactly_the_declared_arguments(server_url: str, model_name: str, client: str) -> None:
    for seed in SEEDS:
        calls = CLIENTS[client](server_url, model_name, seed)
        assert calls
        for arguments in calls:
            assert set(arguments) == {"a", "b"}
            assert all(type(value) is int for value in arguments.values())
