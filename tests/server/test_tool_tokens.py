"""A server on a model whose vocabulary has tokens for tool calls and reasoning, and whose template uses them.

It is the embedded model with four of its unused tokens renamed, so it knows nothing of their meaning: whatever comes
right is the constraint's doing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from radixrt.config import ModelConfig
from radixrt.models.loading.source import prepare_model
from tests.chat import templates
from tests.server_process import ServerProcess

RENAMED = {
    "<repo_name>": "<tool_call>",
    "<reponame>": "</tool_call>",
    "<file_sep>": "<think>",
    "<filename>": "</think>",
}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("visit", "leave")]
QUESTION = [{"role": "user", "content": "Plan a trip."}]
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture(scope="module")
def folder(cache_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("renamed")
    original = prepare_model(ModelConfig(dtype="float32")).folder
    for file in original.iterdir():
        if file.name not in ("tokenizer.json", "tokenizer_config.json"):
            os.symlink(file, made / file.name)
    tokenizer = json.loads((original / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token["content"] = RENAMED.get(token["content"], token["content"])
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {RENAMED.get(text, text): i for text, i in vocabulary.items()}
    (made / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((original / "tokenizer_config.json").read_text())
    (made / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": templates.HERMES_THINKING}))
    return made


@pytest.fixture(scope="module")
def chat(folder: Path) -> Iterator[Callable[..., Any]]:
    server = ServerProcess("--model", str(folder), "--dtype", "float32", "--kv-cache-tokens", "8192").wait_ready()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:

        def ask(**fields: Any) -> Any:
            fields = {"model": folder.name, "messages": QUESTION, "max_tokens": 70, "temperature": 1.0, **fields}
            return client.chat.completions.create(**fields)

        yield ask
    assert server.stop() == 0, "".join(server.lines[-50:])


def names_of(choice: Any) -> list[str]:
    for call in choice.message.tool_calls or []:
        jsonschema.validate(json.loads(call.function.arguments), CITY)
    return [call.function.name for call in choice.message.tool_calls or []]


@pytest.mark.parametrize("max_tokens", [26, 60])
def test_calls_begin_and_end_with_tokens(chat: Callable, max_tokens: int) -> None:
    answer = chat(tools=TOOLS, tool_choice="required", seed=0, n=3, max_tokens=max_tokens, extra_body=NO_THINKING)
    assert len(answer.choices) == 3
    for choice in answer.choices:
        assert names_of(choice)
        assert choice.message.content is None
        if choice.model_extra["radixrt"]["forced_close"]:
            assert choice.finish_reason == "length"
        else:  # the limit may also strike where the calls are whole and more could have come
            assert choice.finish_reason in ("tool_calls", "length")


def test_streamed(chat: Callable) -> None:
    chunks = list(
        chat(tools=TOOLS, tool_choice="required", stream=True, parallel_tool_calls=False, extra_body=NO_THINKING)
    )
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    jsonschema.validate(json.loads("".join(call.function.arguments for call in calls)), CITY)
    assert not any(chunk.choices[0].delta.content for chunk in chunks)


def test_text_in_auto_mode_has_no_markers(chat: Callable) -> None:
    """The token is made likely, so that the model does begin a call in the middle of its text."""
    called = 0
    body = {**NO_THINKING, "structured": {"on_length": "stop"}}
    answer = chat(tools=TOOLS, seed=0, n=4, logit_bias={"3": 12}, max_tokens=60, extra_body=body)
    assert len(answer.choices) == 4
    for choice in answer.choices:
        called += len(names_of(choice))
        assert "tool_call>" not in (choice.message.content or "")
        assert (choice.finish_reason == "tool_calls") == bool(choice.message.tool_calls)
    assert called


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_then_structure(chat: Callable, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}
    fields: dict[str, Any] = {"response_format": form, "max_tokens": 40, "stream": stream}
    fields["extra_body"] = {"structured": {"reasoning_budget": 20}}
    if stream:
        *chunks, last = list(chat(**fields, stream_options={"include_usage": True}))
        deltas = [chunk.choices[0].delta for chunk in chunks]
        text = "".join(delta.content or "" for delta in deltas)
        usage = last.usage
    else:
        answer = chat(**fields)
        message = answer.choices[0].message
        text, usage = message.content, answer.usage
        assert "reasoning_content" in message.model_extra
    jsonschema.validate(json.loads(text), CITY)
    assert 1 <= usage.completion_tokens_details.reasoning_tokens <= 20


def test_reasoning_then_calls(chat: Callable) -> None:
    choice = chat(
        tools=TOOLS, tool_choice="required", extra_body={"structured": {"reasoning_budget": 10}}
    ).choices[0]  # fmt: skip
    assert names_of(choice)
    assert "reasoning_content" in choice.message.model_extra


def test_reasoning_without_structure(chat: Callable) -> None:
    message = chat(max_tokens=30, logit_bias={"5": 100}).choices[0].message
    assert message.model_extra["reasoning_content"] is not None or message.content is not None
    plain = chat(max_tokens=5, extra_body=NO_THINKING).choices[0].message
    assert "reasoning_content" not in (plain.model_extra or {})


def test_reasoning_within_a_budget_before_plain_text(chat: Callable) -> None:
    answer = chat(max_tokens=30, seed=3, extra_body={"thinking_token_budget": 8})
    assert 1 <= answer.usage.completion_tokens_details.reasoning_tokens <= 8
    assert answer.usage.completion_tokens > 8 or answer.choices[0].finish_reason == "stop"
    assert "think>" not in (answer.choices[0].message.content or "")
