"""Sends recorded requests again, and checks the form of what the server answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import anthropic.types
import httpx
import jsonschema
import pydantic
from anthropic.types import RawMessageStreamEvent
from openai.types import CompletionUsage, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

from radixrt.server.http.middleware import IGNORED_HEADER
from tests.clients.recorder import answer_object
from tests.clients.recordings import REFERENCE, Recorded, event_datas

LIMIT_S = 120.0
FEW_IDS = 256


class Models(pydantic.BaseModel):
    """Answer of /v1/models, whose entries both APIs read."""

    object: str
    data: list[Model]


class TextChoice(pydantic.BaseModel):
    """Choice of /v1/completions. OpenAI's own class takes no null in the logprobs of an echoed prompt, nor before the
    end of a stream."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: dict[str, list[Any]] | None


class TextCompletion(pydantic.BaseModel):
    """Answer of /v1/completions, and a chunk of it."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: CompletionUsage | None = None


class Vector(pydantic.BaseModel):
    index: int
    object: Literal["embedding"]
    embedding: list[float] | pydantic.Base64Bytes


class Embeddings(pydantic.BaseModel):
    """Answer of /v1/embeddings."""

    object: Literal["list"]
    data: list[Vector]
    model: str
    usage: dict[str, Any]


class Tokens(pydantic.BaseModel):
    """Answer of /tokenize."""

    tokens: list[int]
    count: int


class Deleted(pydantic.BaseModel):
    """Answer of DELETE /v1/responses/{response_id}."""

    id: str
    deleted: bool


class InputItems(pydantic.BaseModel):
    """Answer of /v1/responses/{response_id}/input_items."""

    data: list[dict[str, Any]]
    has_more: bool


SHAPES: tuple[tuple[str, str, Any, Any], ...] = (
    ("POST", r"/v1/chat/completions", ChatCompletion, ChatCompletionChunk),
    ("POST", r"/v1/completions", TextCompletion, TextCompletion),
    ("POST", r"/v1/embeddings", Embeddings, None),
    ("POST", r"/v1/responses", Response, ResponseStreamEvent),
    ("GET", r"/v1/responses/[^/?]+", Response, None),
    ("DELETE", r"/v1/responses/[^/?]+", Deleted, None),
    ("GET", r"/v1/responses/[^/?]+/input_items(\?.*)?", InputItems, None),
    ("POST", r"/v1/messages(\?.*)?", anthropic.types.Message, RawMessageStreamEvent),
    ("POST", r"/v1/messages/count_tokens(\?.*)?", anthropic.types.MessageTokensCount, None),
    ("GET", r"/v1/models(\?.*)?", Models, None),
    ("GET", r"/v1/models/[^/?]+(\?.*)?", Model, None),
    ("POST", r"/tokenize", Tokens, None),
    ("GET", r"/tokenizer_info", dict[str, Any], None),
)
"""Method, path, and the types of the whole answer and of an event: those of OpenAI's and Anthropic's own clients."""


class Session:
    """The requests of one case, sent one after another: their answers hold the ids that later ones refer to."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._answers: list[Any] = []

    def send(self, recorded: Recorded) -> httpx.Response:
        """Send a request; the references in it are replaced by the ids of this session's answers, and token ids by some
        that every model has."""
        body = recorded.body
        if isinstance(body, dict) and isinstance(body.get("prompt"), list):
            body = {**body, "prompt": known_ids(body["prompt"])}
        content = None if body is None else self._resolve(json.dumps(body)).encode()
        path = self._resolve(recorded.path)
        answer = self._http.request(recorded.method, path, content=content, headers=recorded.headers)
        self._answers.append(answer_object(answer.content))
        return answer

    def _resolve(self, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            place = self._answers[int(found[1])]
            for name in found[2].split("."):
                place = place[int(name) if isinstance(place, list) else name]
            return str(place)

        return REFERENCE.sub(value, text)


def known_ids(prompt: Any) -> Any:
    """Return a prompt of token ids with ids below FEW_IDS, which are no special tokens; other parts as they are."""
    if isinstance(prompt, list):
        return [known_ids(each) for each in prompt]
    return prompt % (FEW_IDS - 8) + 8 if isinstance(prompt, int) else prompt


def check(recorded: Recorded, answer: httpx.Response) -> None:
    """Check status, type and content of an answer.

    Raises:
        AssertionError, pydantic.ValidationError, jsonschema.ValidationError: says what is wrong.
    """
    assert answer.status_code == recorded.status, answer.text
    assert IGNORED_HEADER.decode() not in answer.headers, "a field of a client is not read"
    if recorded.status >= 400:
        assert answer.json()["error"]["message"]
        return
    whole, event = next(shapes for method, path, *shapes in SHAPES if fits(recorded, method, path))
    body = recorded.body if isinstance(recorded.body, dict) else {}
    if body.get("stream"):
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [each for each in event_datas(answer.text) if each.get("type") != "ping"]  # no event of the clients'
        for each in events:
            adapter(event).validate_python(each)
        check_events(recorded.path.partition("?")[0], body, events, answer.text)
    else:
        adapter(whole).validate_python(answer.json())
        if recorded.path == "/v1/chat/completions":
            for choice in answer.json()["choices"]:
                check_choice(body, choice["message"], choice["finish_reason"])


@cache
def adapter(kind: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(kind)


def fits(recorded: Recorded, method: str, path: str) -> bool:
    return recorded.method == method and re.fullmatch(path, recorded.path) is not None


def check_events(path: str, body: dict[str, Any], events: list[dict[str, Any]], text: str) -> None:
    """Check the order and the end of a stream."""
    if path == "/v1/responses":
        assert [each["sequence_number"] for each in events] == list(range(len(events)))
        assert [each["type"] for each in events[:2]] == ["response.created", "response.in_progress"]
        assert events[-1]["type"] in ("response.completed", "response.incomplete")
    elif path == "/v1/messages":
        assert events[0]["type"] == "message_start"
        assert [each["type"] for each in events[-2:]] == ["message_delta", "message_stop"]
    else:
        assert text.endswith("data: [DONE]\n\n")
        with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        assert [each["choices"] == [] for each in events] == [False] * (len(events) - with_usage) + [True] * with_usage
        if path == "/v1/chat/completions":
            check_streamed_choice(body, [each["choices"][0] for each in events if each["choices"]])


def check_streamed_choice(body: dict[str, Any], choices: list[dict[str, Any]]) -> None:
    """Check the chunks of a stream with one choice, and what they say together."""
    assert choices[0]["delta"]["role"] == "assistant"
    assert [bool(each["finish_reason"]) for each in choices] == [False] * (len(choices) - 1) + [True]
    message: dict[str, Any] = {"content": "", "tool_calls": []}
    for choice in choices:
        message["content"] += choice["delta"].get("content") or ""
        for call in choice["delta"].get("tool_calls") or []:
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append(call)
            else:
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    check_choice(body, message, choices[-1]["finish_reason"])


def check_choice(body: dict[str, Any], message: dict[str, Any], reason: str) -> None:
    """Check that calls have valid arguments, that those asked for are there, and that JSON is what was asked for."""
    tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or []}
    calls = message.get("tool_calls") or []
    for call in calls:
        schema = tools[call["function"]["name"]].get("parameters") or {}
        jsonschema.validate(json.loads(call["function"]["arguments"]), schema)
    choice = body.get("tool_choice")
    if tools and (choice == "required" or isinstance(choice, dict)):
        assert calls
        assert reason in ("tool_calls", "length")
    asked = schema_of(body)
    if asked is not None and not calls:
        jsonschema.validate(json.loads(message["content"]), asked)
    if pattern := regex_of(body):
        assert re.fullmatch(pattern, message["content"])


def schema_of(body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the JSON schema that a chat request states, or None."""
    form = body.get("response_format") or {}
    stated = body.get("structured_outputs") or {}
    readers: tuple[Callable[[], Any], ...] = (
        lambda: form.get("json_schema", {}).get("schema"),
        lambda: {"type": "object"} if form.get("type") == "json_object" else None,
        lambda: stated.get("json"),
        lambda: body.get("json_schema"),
    )
    return next((found for read in readers if (found := read()) is not None), None)


def regex_of(body: dict[str, Any]) -> str | None:
    return body.get("regex") or (body.get("structured_outputs") or {}).get("regex")
