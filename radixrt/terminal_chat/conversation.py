"""Messages of a chat, and the request that streams the next answer."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
from httpx_sse import EventSource

from radixrt.errors import RequestError
from radixrt.openai_api import CONNECT_TIMEOUT_S, OpenAIServer, error_message, tls_context

Message = dict[str, str]


@dataclass
class Conversation:
    """A chat as the user sees it.

    Attributes:
        system: text of the system message; None without one.
        schema: JSON schema that each answer has to satisfy; None for free text.
        turns: messages of the user and answers, without the system message.
    """

    system: str | None = None
    schema: dict[str, Any] | None = None
    turns: list[Message] = field(default_factory=list)

    def messages(self) -> list[Message]:
        """Return all messages in OpenAI's form, the system message first."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.turns]


@dataclass(frozen=True)
class Piece:
    """Increment of an answer: its text, or the model's reasoning before it."""

    kind: Literal["text", "reasoning"]
    text: str


@dataclass
class Answer:
    """An answer while it comes. `usage` and `finish_reason` are there when it is complete and the server tells them."""

    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None


class ChatClient:
    """Sends conversations to one server over a kept connection."""

    def __init__(self, server: OpenAIServer, **sampling: float | None) -> None:
        self._server = server
        self._sampling = {name: value for name, value in sampling.items() if value is not None}
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
        self._http = httpx.Client(headers=server.headers, timeout=timeout, trust_env=False, verify=tls_context())

    def close(self) -> None:
        self._http.close()

    def ask(self, conversation: Conversation, answer: Answer) -> Generator[Piece, None, None]:
        """Yield the next answer as it comes, and collect it in `answer`. Closing the iterator ends the request.

        Raises:
            RequestError: the server refused the request, or the connection broke.
        """
        body = self._body(conversation)
        try:
            with self._http.stream("POST", f"{self._server.url}/chat/completions", json=body) as response:
                if response.status_code != 200:
                    response.read()
                    raise RequestError(error_message(response), status=response.status_code)
                for event in _events(response):
                    yield from _pieces(event, answer)
        except httpx.HTTPError as error:
            raise RequestError(f"{self._server.url} broke off: {str(error) or type(error).__name__}") from None

    def _body(self, conversation: Conversation) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._server.model,
            "messages": conversation.messages(),
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._sampling,
        }
        if conversation.schema is not None:
            form = {"name": "answer", "schema": conversation.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        return body


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """Yield the objects of a stream of server-sent events."""
    for sent in EventSource(response).iter_sse():
        if sent.data and sent.data != "[DONE]":
            try:
                event = json.loads(sent.data)
            except ValueError:
                raise RequestError(f"the server sent an event that is no JSON: {sent.data[:80]!r}") from None
            if isinstance(event, dict):
                yield event


def _pieces(event: dict[str, Any], answer: Answer) -> Generator[Piece, None, None]:
    if "error" in event:
        error = event["error"]
        raise RequestError(str(error.get("message", error) if isinstance(error, dict) else error))
    answer.usage = event.get("usage") or answer.usage
    for choice in event.get("choices") or ():
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        delta = choice.get("delta") or {}
        if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
            yield Piece("reasoning", reasoning)
        if text := delta.get("content") or delta.get("refusal"):
            answer.text += text
            yield Piece("text", text)
