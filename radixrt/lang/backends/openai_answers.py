"""Answers and errors of OpenAI-compatible servers, converted to those of the language."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from radixrt.errors import EngineError, RequestError
from radixrt.lang.backends.base import ChatOutput
from radixrt.lang.backends.openai_schema import Format
from radixrt.messages.client import TokenLogprob
from radixrt.messages.parts import ConstraintInfo, Finish, Timings, Usage


class AnswerReader:
    """Reads an answer, whole or in chunks."""

    def __init__(self, form: Format | None) -> None:
        self._form = form
        self._texts: list[str] = []
        self._finish: str | None = None
        self._stop: Any = None
        self._usage = Usage()
        self._logprobs: list[TokenLogprob] | None = None
        self._calls: dict[int, dict[str, Any]] = {}
        self._enforced: Mapping[str, Any] | None = None

    def whole(self, answer: Any) -> None:
        """Read an answer that is not streamed."""
        self._usage = usage_of(answer.usage)
        choice = answer.choices[0]
        self._choice(choice, choice.message)

    def add(self, chunk: Any) -> str:
        """Read a chunk; return its new text."""
        if chunk.usage is not None:
            self._usage = usage_of(chunk.usage)
        return self._choice(chunk.choices[0], chunk.choices[0].delta) if chunk.choices else ""

    def _choice(self, choice: Any, message: Any) -> str:
        if getattr(message, "refusal", None):
            raise RequestError(f"the model refused: {message.refusal}", code="refusal", status=422)
        text: str = message.content or ""
        self._texts.append(text)
        for index, call in enumerate(message.tool_calls or ()):
            self._tool_call(index if getattr(call, "index", None) is None else call.index, call)
        if choice.logprobs is not None and choice.logprobs.content:
            self._logprobs = (self._logprobs or []) + [_logprob(row) for row in choice.logprobs.content]
        if choice.finish_reason is not None:
            self._finish = choice.finish_reason
            more = choice.model_extra or {}
            self._stop, self._enforced = more.get("stop_reason"), more.get("radixrt")
        return text

    def _tool_call(self, index: int, call: Any) -> None:
        made = self._calls.setdefault(index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        made["id"] = call.id or made["id"]
        if call.function is not None:
            made["function"]["name"] = call.function.name or made["function"]["name"]
            made["function"]["arguments"] += call.function.arguments or ""

    def output(self) -> ChatOutput:
        """The whole output. Raises EngineError if it is incomplete, RequestError if the server withheld it."""
        if self._finish is None:
            raise EngineError("the server's answer ended before it was finished")
        if self._finish == "content_filter":
            raise RequestError("the server's content filter ended the answer", code="content_filter", status=422)
        text = "".join(self._texts)
        enforced = self._enforced
        info, forced_close = None, False
        if enforced is not None:
            fields = {name: enforced[name] for name in ("backend", "ignored", "forced_tokens", "closing_tokens")}
            info, forced_close = ConstraintInfo(**fields), bool(enforced["forced_close"])
        return ChatOutput(
            "",
            text if self._form is None else self._form.text(text),
            finish=Finish("length" if self._finish == "length" else "stop", self._stop, forced_close=forced_close),
            usage=self._usage,
            timings=Timings(),
            logprobs=self._logprobs,
            constraint=info,
            tool_calls=[self._calls[index] for index in sorted(self._calls)],
        )


def usage_of(usage: Any) -> Usage:
    """Convert the usage; zeros if the server reports none."""
    if usage is None:
        return Usage()
    details = usage.prompt_tokens_details
    cached = 0 if details is None else details.cached_tokens or 0
    return Usage(usage.prompt_tokens, usage.completion_tokens, cached)


def _logprob(row: Any) -> TokenLogprob:
    data = row.token.encode() if row.bytes is None else bytes(row.bytes)
    top = [_logprob(other) for other in getattr(row, "top_logprobs", None) or ()]
    return TokenLogprob(-1, row.token, data, row.logprob, top)


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """Convert exceptions of the openai package: a failed call is a RequestError, a missing server an EngineError."""
    import openai

    try:
        yield
    except openai.APITimeoutError:
        raise RequestError("the server did not answer in time", code="timeout", status=408) from None
    except openai.APIConnectionError as error:
        reason = error.__cause__ or error
        raise EngineError(f"cannot reach {error.request.url}: {reason}; is the server running?") from None
    except openai.APIStatusError as error:
        message = _message(error.body) or error.message
        raise RequestError(message, param=error.param, code=error.code, status=error.status_code) from None
    except openai.APIError as error:
        raise RequestError(error.message, param=error.param, code=error.code, status=500) from None
    except (openai.OpenAIError, json.JSONDecodeError) as error:
        raise EngineError(f"the server's answer cannot be read: {error}") from None


def _message(body: object) -> str | None:
    return body.get("message") if isinstance(body, dict) and isinstance(body.get("message"), str) else None
