"""Clients on models whose templates write arguments between tags: whole, streamed, and with code of several lines.

The server is a real process on the embedded model with the template of a family, and unused tokens renamed to the
family's markers. The model knows nothing of their meaning, so a call is right by its constraint alone. Clients are the
openai package (chats and responses), the anthropic package, and requests as LangChain and instructor sent them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import jsonschema
import openai
import pytest

from radixrt.config import ModelConfig
from radixrt.constrained.tags.tool_formats import TOOL_FORMATS
from radixrt.models.loading.source import prepare_model
from tests.chat.tool_templates import TEMPLATES
from tests.server.test_tool_clients import as_recorded
from tests.server_process import ServerProcess

FAMILIES = ("qwen_3_coder", "minimax_m3")
UNUSED = ("<repo_name>", "<reponame>")
CODES = ['if x:\n\n\ty = "é<b>"\n', "<b>\n  </b>\n"]
WRITE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "maxLength": 8},
        "code": {"enum": CODES},
        "lines": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 2},
        "more": {"type": "object", "properties": {"code": {"const": CODES[0]}}, "required": ["code"]},
    },
    "required": ["path", "code", "more"],
    "additionalProperties": False,
}
RUN: dict[str, Any] = {"type": "object", "properties": {"fast": {"type": "boolean"}}, "required": ["fast"]}
SCHEMAS = {"write": WRITE, "run": RUN}
CHAT_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()
]
FLAT_TOOLS: list[Any] = [{"type": "function", **tool["function"]} for tool in CHAT_TOOLS]
MESSAGES_TOOLS: list[Any] = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
QUESTION: list[Any] = [{"role": "user", "content": "Write the file."}]
ONE = {"disable_parallel_tool_use": True}
NAMED = {"type": "function", "function": {"name": "write"}}
LIKELY_CALL = {"3": 20}
"""Makes the first renamed token likely, so that the model begins a call in the middle of its text."""

MAX_TOKENS = 130

Calls = list[tuple[str, Any]]


class Family:
    """A running server and the clients of it."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        options: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": 300}
        self.openai = openai.OpenAI(base_url=f"{url}/v1", **options)
        self.anthropic = anthropic.Anthropic(base_url=url, **options)

    def chat(self, **fields: Any) -> Any:
        given = {"tools": CHAT_TOOLS, "max_tokens": MAX_TOKENS, "temperature": 1, "seed": 1}
        fields = {**given, "parallel_tool_calls": False, **fields}
        return self.openai.chat.completions.create(model=self.name, messages=QUESTION, **fields)

    def respond(self, **fields: Any) -> Any:
        given = {"tools": FLAT_TOOLS, "max_output_tokens": MAX_TOKENS, "temperature": 1}
        fields = {**given, "parallel_tool_calls": False, **fields}
        return self.openai.responses.create(model=self.name, input="Write the file.", **fields)

    def message(self, **fields: Any) -> Any:
        body = {"temperature": 1, "seed": 1, **fields.pop("extra_body", {})}
        fields = {"tools": MESSAGES_TOOLS, "max_tokens": MAX_TOKENS, "extra_body": body, **fields}
        return self.anthropic.messages.create(model=self.name, messages=QUESTION, **fields)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, cache_folder: Path, tmp_path_factory: Any) -> Iterator[Family]:
    folder = make_folder(tmp_path_factory.mktemp("tagged") / request.param, request.param)
    server = ServerProcess("--model", str(folder), "--dtype", "float32", "--kv-cache-tokens", "8192").wait_ready()
    made = Family(folder.name, server.url)
    yield made
    made.openai.close()
    made.anthropic.close()
    assert server.stop() == 0, "".join(server.lines[-50:])


def make_folder(folder: Path, name: str) -> Path:
    """Write the embedded model with the template and the markers of a format."""
    folder.mkdir()
    original = prepare_model(ModelConfig(dtype="float32")).folder
    for file in original.iterdir():
        if file.name not in ("tokenizer.json", "tokenizer_config.json"):
            os.symlink(file, folder / file.name)
    renamed = dict(zip(UNUSED, TOOL_FORMATS[name].markers, strict=False))
    tokenizer = json.loads((original / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token["content"] = renamed.get(token["content"], token["content"])
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {renamed.get(text, text): i for text, i in vocabulary.items()}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((original / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATES[name]}))
    return folder


def checked(calls: Calls) -> Calls:
    """Check each call against its schema; the code arrives as it was listed."""
    for name, arguments in calls:
        jsonschema.validate(arguments, SCHEMAS[name])
    return calls


def of_chat(message: Any) -> Calls:
    return checked([(one.function.name, json.loads(one.function.arguments)) for one in message.tool_calls or []])


def has_no_marker(text: str | None, family: Family) -> bool:
    form = TOOL_FORMATS[family.name]
    return not any(one in (text or "") for one in (*form.markers, form.trigger, "<function", "<invoke"))


def test_the_server_says_which_format_holds(family: Family) -> None:
    assert httpx.get(f"{family.url}/server_info", timeout=60).json()["tool_call_format"] == family.name


@pytest.mark.parametrize("parallel", [True, False])
def test_chats_required_and_named(family: Family, parallel: bool) -> None:
    choice = family.chat(tool_choice="required", parallel_tool_calls=parallel).choices[0]
    calls = of_chat(choice.message)
    assert len(calls) == 1 or (parallel and calls)
    assert choice.message.content is None
    named = family.chat(tool_choice=NAMED).choices[0]
    ((name, arguments),) = of_chat(named.message)
    assert (name, named.finish_reason) == ("write", "tool_calls")
    assert arguments["code"] in CODES
    assert arguments["more"] == {"code": CODES[0]}


def test_chats_in_auto_mode(family: Family) -> None:
    answer = family.chat(n=2, logit_bias=LIKELY_CALL, extra_body={"structured": {"on_length": "stop"}})
    assert sum(len(of_chat(choice.message)) for choice in answer.choices)
    for choice in answer.choices:
        assert has_no_marker(choice.message.content, family)
        assert (choice.finish_reason == "tool_calls") == bool(choice.message.tool_calls)


@pytest.mark.parametrize("choice", ["required", NAMED, "auto"], ids=["required", "named", "auto"])
def test_chats_streamed(family: Family, choice: Any) -> None:
    bias = {"logit_bias": LIKELY_CALL} if choice == "auto" else {}
    chunks = [chunk.choices[0] for chunk in family.chat(tool_choice=choice, stream=True, **bias) if chunk.choices]
    assert has_no_marker("".join(chunk.delta.content or "" for chunk in chunks), family)
    names: dict[int, str] = {}
    texts: dict[int, str] = {}
    for chunk in chunks:
        for part in chunk.delta.tool_calls or []:
            names.setdefault(part.index, part.function.name)
            texts[part.index] = texts.get(part.index, "") + (part.function.arguments or "")
    calls = checked([(names[i], json.loads(texts[i])) for i in names])
    assert calls
    if choice is NAMED:
        assert calls[0][1]["more"] == {"code": CODES[0]}


def test_responses(family: Family) -> None:
    for choice in ("required", {"type": "function", "name": "write"}):
        answer = family.respond(tool_choice=choice)
        calls = checked([(o.name, json.loads(o.arguments)) for o in answer.output if o.type == "function_call"])
        assert calls
    assert [name for name, _ in calls] == ["write"]
    events = list(family.respond(tool_choice={"type": "function", "name": "write"}, stream=True))
    text = "".join(one.delta for one in events if one.type == "response.function_call_arguments.delta")
    (whole,) = [one.arguments for one in events if one.type == "response.function_call_arguments.done"]
    assert json.loads(text) == json.loads(whole)
    assert checked([("write", json.loads(whole))])[0][1]["code"] in CODES


def test_messages(family: Family) -> None:
    for choice in ({"type": "any", **ONE}, {"type": "tool", "name": "write", **ONE}):
        answer = family.message(tool_choice=choice)
        assert checked([(block.name, block.input) for block in answer.content if block.type == "tool_use"])
    events = list(family.message(tool_choice={"type": "tool", "name": "write", **ONE}, stream=True))
    parts = [one.delta.partial_json for one in events if getattr(getattr(one, "delta", None), "partial_json", None)]
    ((_, arguments),) = checked([("write", json.loads("".join(parts)))])
    assert arguments["code"] in CODES


@pytest.mark.parametrize("client", ["langchain", "instructor"])
def test_requests_as_other_clients_send_them(family: Family, client: str) -> None:
    (arguments,) = as_recorded(client)(family.url, family.name, 1)
    assert set(arguments) == {"a", "b"}
