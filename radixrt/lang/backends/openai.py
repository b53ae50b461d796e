"""`OpenAI`: runs programs on any server with OpenAI's chat completions, through the `openai` package.

Such a server takes messages, not tokens. Features that it lacks raise `Unsupported` with their name: text outside of
roles, continuing an open assistant message, regular expressions and grammars, exact scores of choices, token ids.
Nothing is silently left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import msgspec
import numpy as np

from radixrt.constraint import StructuredOptions
from radixrt.errors import ConfigError, EngineError, RequestError
from radixrt.lang.backends.base import Backend, Call, ChatOutput, EmbedCall, Prompt, RerankCall, Unsupported
from radixrt.lang.backends.openai_schema import Format, response_format
from radixrt.lang.pictures import Picture
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import (
    FINISH_LENGTH,
    FINISH_TIMEOUT,
    ConstraintInfo,
    Finish,
    ProgramHint,
    SelectMethod,
    Timings,
    Usage,
)
from radixrt.messages.reads import PROMPT_READS, TokenLogprob
from radixrt.sampling_params import DrawParams, SamplingParams
from radixrt.tasks.embed import Embedding
from radixrt.tasks.prompts import Part
from radixrt.tasks.rerank import Reranking
from radixrt.tasks.score import Decision

if TYPE_CHECKING:
    import openai

DEFAULT_TIMEOUT_S = 600.0
CONTINUE = "continue_final_message"
OF_OPENAI = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
EXTENSIONS = (
    *(name for name in DrawParams.__struct_fields__ if name not in OF_OPENAI),
    *("min_tokens", "stop_token_ids", "ignore_eos", "skip_special_tokens", "include_stop_str_in_output"),
)
"""Fields of `SamplingParams` that OpenAI's API lacks and other servers may have."""

EMBED_EXTENSIONS = ("normalize", "prompt_name", "prompt")
EMBEDDED_AT_ONCE = 512
"""Texts of one request to embed; OpenAI takes 2,048 at most."""

_DEFAULTS = SamplingParams()
SELECT_TOKENS = 256
WRAPPING_TOKENS = 32
"""Tokens added to max_tokens for the object around a wrapped value, with some whitespace."""


class OpenAI(Backend):
    """See the module's docstring.

    Args:
        base_url: e.g. "http://127.0.0.1:8000/v1"; None is the default of the `openai` package.
        model: name of the model on that server.
        api_key: None is the environment's OPENAI_API_KEY, or "none" if that is not set and base_url is given.
        timeout_s: time limit of calls without their own limit, in seconds.
        max_retries: number of times that the `openai` package repeats a call that a full or failing server refused.
        select: "refuse" raises for `select`, because choices cannot be scored; "constrained" has the model generate one
            of them instead, and gives no scores.
        extensions: request fields beyond OpenAI's API that this server takes: of sampling (`EXTENSIONS`, e.g.
            "top_k"), of embeddings (`EMBED_EXTENSIONS`), and continue_final_message (an open assistant message is
            continued).
        extra_body: additional fields of each request.
        embedding_model: name of the model for `embed`; default: `model`.

    Raises:
        ConfigError: the `openai` package is not installed, there is no key, or an argument is wrong.
    """

    tokens = False

    def __init__(
        self,
        base_url: str | None = None,
        model: str | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_retries: int = 2,
        select: Literal["refuse", "constrained"] = "refuse",
        extensions: Collection[str] = (),
        extra_body: Mapping[str, Any] | None = None,
        embedding_model: str | None = None,
    ) -> None:
        if not model:
            raise ConfigError('rt.OpenAI needs the name of a model: rt.OpenAI("http://.../v1", "name")')
        for name in extensions:
            known = (*EXTENSIONS, *EMBED_EXTENSIONS, CONTINUE)
            if name not in known:
                raise ConfigError(f"extensions: {name!r} is not one of {', '.join(known)}")
        if select not in ("refuse", "constrained"):
            raise ConfigError(f'select must be "refuse" or "constrained", not {select!r}')
        self.model = model
        self._embedding_model = embedding_model or model
        self.name = f"OpenAI {model}"
        self._options: dict[str, Any] = {
            "base_url": base_url,
            "api_key": api_key,
            "timeout": timeout_s,
            "max_retries": max_retries,
        }
        self._select: str = select
        self._extensions = frozenset(extensions)
        self._extra = dict(extra_body or {})
        self._clients: dict[asyncio.AbstractEventLoop, openai.AsyncOpenAI] = {}
        made = self._make_client()  # so that a missing package or key raises here, not in the first call
        host = urlsplit(str(made.base_url)).hostname or ""
        # OpenAI's newest models take neither max_tokens nor a temperature, not even the default one; other servers may
        # not know max_completion_tokens, and may have a default temperature of their own.
        self._is_openai = host == "api.openai.com"

    # --- calls ---

    async def generate(self, call: Call) -> AsyncGenerator[RequestOutput, None]:
        """See `Backend.generate`. A typed answer that is wrapped in an object does not stream."""
        constraint = call.sampling.constraint
        if call.tools and constraint is not None and constraint.kind == "structural_tag":
            constraint = None  # the format of tool calls is the server's business
        form = None if constraint is None else response_format(constraint)
        fields = self._fields(call, form)
        reader = _AnswerReader(form)
        with _errors():
            if not call.stream:
                answer = await self._client().chat.completions.create(**fields)
                reader.whole(answer)
            else:
                stream = await self._client().chat.completions.create(
                    **fields, stream=True, stream_options={"include_usage": True}
                )
                async with stream:
                    async for chunk in stream:
                        text = reader.add(chunk)
                        if text and (form is None or not form.wrapped):
                            yield ChatOutput("", text)
        output = reader.output()
        streamed = call.stream and (form is None or not form.wrapped)
        yield msgspec.structs.replace(output, text="") if streamed else output

    async def select(
        self, prompt: Prompt, choices: Sequence[str], method: SelectMethod, hint: ProgramHint | None
    ) -> Decision:
        """Have the model generate one of the choices, if `select="constrained"`. The lists of scores are empty."""
        if self._select == "refuse":
            raise Unsupported(
                "rt.OpenAI cannot score the choices of select: OpenAI's API gives no log-probability of a given text. "
                'rt.OpenAI(..., select="constrained") has the model generate one of them instead, without scores; an '
                "Engine or rt.Endpoint scores them exactly"
            )
        sampling = SamplingParams(choices=tuple(choices), temperature=0.0, max_tokens=SELECT_TOKENS)
        (output,) = [output async for output in self.generate(Call(prompt, sampling))]
        if output.text not in choices:
            raise RequestError(
                f"the server answered {output.text[:100]!r}, which is none of the choices; it may not enforce "
                "response_format",
                param="choices",
                status=502,
            )
        chosen, usage = list(choices).index(output.text), output.usage or Usage()
        return Decision(chosen, output.text, [], [], [], [], 0, [], usage, Timings())

    async def embed(self, call: EmbedCall) -> Embedding:
        """See `Backend.embed`. Many texts are sent in several requests, one after another."""
        fields: dict[str, Any] = {"model": self._embedding_model, "encoding_format": "float"}
        if call.dimensions is not None:
            fields["dimensions"] = call.dimensions
        extra = {**self._extra}
        for name in EMBED_EXTENSIONS:
            if getattr(call, name) is not None:
                self._check_extension(name)
                extra[name] = getattr(call, name)
        vectors: list[list[float]] = []
        tokens = 0
        with _errors():
            for i in range(0, len(call.texts), EMBEDDED_AT_ONCE):
                texts = list(call.texts[i : i + EMBEDDED_AT_ONCE])
                answer = await self._client().embeddings.create(input=texts, **fields, extra_body=extra or None)
                vectors += [each.embedding for each in sorted(answer.data, key=lambda each: each.index)]
                tokens += answer.usage.prompt_tokens
        return Embedding(np.array(vectors, np.float32), Usage(tokens))

    async def rerank(self, call: RerankCall) -> Reranking:
        raise Unsupported("rt.OpenAI does not rerank: OpenAI's API has no such call. Use an Engine or rt.Endpoint")

    async def chat_template(self) -> None:
        return None

    async def image_token(self) -> str:
        """See `Backend.image_token`. Whether the model reads pictures is known to the server alone."""
        return ""

    async def tokenize(self, parts: Sequence[Part], pictures: Sequence[Picture] = ()) -> list[int]:
        raise Unsupported("rt.OpenAI knows no token ids: OpenAI's API does not tokenize. Use an Engine or rt.Endpoint")

    async def release(self, program: str, branch: str | None = None) -> None:
        """Do nothing: the server keeps nothing for a program."""

    async def aclose(self) -> None:
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    # --- the request ---

    def _fields(self, call: Call, form: Format | None) -> dict[str, Any]:
        messages, continued = self._messages(call.prompt)
        fields: dict[str, Any] = {"model": self.model, "messages": messages, **_sampling_fields(call.sampling)}
        if call.sampling.max_tokens is not None:
            room = WRAPPING_TOKENS if form is not None and form.wrapped else 0
            fields["max_completion_tokens" if self._is_openai else "max_tokens"] = call.sampling.max_tokens + room
        for name in ("temperature", "top_p"):
            value = getattr(call.sampling, name)
            if not self._is_openai or value != getattr(_DEFAULTS, name):
                fields[name] = value
        extra = {**self._extra}
        for name in EXTENSIONS:
            value = getattr(call.sampling, name)
            if value != getattr(_DEFAULTS, name):
                extra[name] = list(value) if isinstance(value, tuple) else value
                self._check_extension(name)
        if continued:
            extra |= {CONTINUE: True, "add_generation_prompt": False}
        if form is not None:
            fields["response_format"] = form.body
        if call.tools:
            fields["tools"] = [dict(tool) for tool in call.tools]
            named = {"type": "function", "function": {"name": call.tool_choice}}
            fields["tool_choice"] = call.tool_choice if call.tool_choice in ("auto", "required") else named
        if extra:
            fields["extra_body"] = extra
        if call.timeout_s is not None:
            fields["timeout"] = call.timeout_s
        return fields

    def _check_extension(self, name: str) -> None:
        if name not in self._extensions:
            raise Unsupported(
                f"{name} is not part of OpenAI's API; if this server takes it all the same, say so: "
                f'rt.OpenAI(..., extensions=["{name}"])'
            )

    def _messages(self, prompt: Prompt) -> tuple[list[dict[str, Any]], bool]:
        """Return the messages, and whether the last is to be continued."""
        if prompt.messages is None:
            raise Unsupported(
                "rt.OpenAI takes messages, and this program has text outside of any role; put it into rt.system, "
                "rt.user or rt.assistant"
            )
        messages = [dict(message) for message in prompt.messages]
        if not prompt.open_message:
            return messages, False
        if not messages[-1].get("content"):
            return messages[:-1], False  # the server begins the assistant's message itself
        if CONTINUE not in self._extensions:
            content = messages[-1]["content"]
            begun = content if isinstance(content, str) else "a picture"
            raise Unsupported(
                "rt.OpenAI cannot continue an assistant message that has begun, here with "
                f"{begun[:60]!r}: OpenAI's API always begins a new one. Let the gen stand alone in "
                'its rt.assistant(...); or, if this server can, rt.OpenAI(..., extensions=["continue_final_message"])'
            )
        return messages, True

    # --- clients ---

    def _client(self) -> openai.AsyncOpenAI:
        """The client of the running event loop; connections cannot be shared by loops."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            for ended in [other for other in self._clients if other.is_closed()]:
                del self._clients[ended]
            self._clients[loop] = self._make_client()
        return self._clients[loop]

    def _make_client(self) -> openai.AsyncOpenAI:
        try:
            import openai
        except ImportError:
            raise ConfigError("rt.OpenAI needs the openai package: pip install openai") from None
        options = dict(self._options)
        if options["api_key"] is None and options["base_url"] is not None:
            import os

            options["api_key"] = os.environ.get("OPENAI_API_KEY") or "none"
        try:
            # The default HTTP client closes itself when it is garbage-collected, maybe in another loop than its own.
            return openai.AsyncOpenAI(**options, http_client=openai.DefaultAsyncHttpxClient())
        except openai.OpenAIError as error:
            raise ConfigError(f"rt.OpenAI: {error}") from None


# --- fields of the request ---


def _sampling_fields(sampling: SamplingParams) -> dict[str, Any]:
    """Fields of OpenAI's API. Raises Unsupported for parameters that it lacks."""
    for name in PROMPT_READS:
        if getattr(sampling, name) is not None:
            raise Unsupported(f"rt.OpenAI has no {name}: OpenAI's chat API does not report values of the prompt")
    options = sampling.structured
    if options.reasoning_end is not None or options.whitespace != StructuredOptions().whitespace:
        raise Unsupported("rt.OpenAI cannot set reasoning_end or whitespace: how a schema is enforced is the server's")
    fields: dict[str, Any] = {}
    for name in ("frequency_penalty", "presence_penalty", "seed"):
        value = getattr(sampling, name)
        if value != getattr(_DEFAULTS, name):
            fields[name] = value
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    if sampling.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": sampling.logprobs}
    return fields


# --- the answer ---


class _AnswerReader:
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
        self._usage = _usage(answer.usage)
        choice = answer.choices[0]
        self._choice(choice, choice.message)

    def add(self, chunk: Any) -> str:
        """Read a chunk; return its new text."""
        if chunk.usage is not None:
            self._usage = _usage(chunk.usage)
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

    def _finished(self, forced_close: bool) -> Finish:
        """Return the engine's finish; radixrt's server reports a deadline beside OpenAI's reason."""
        if self._finish != "length":
            return Finish("stop", self._stop, forced_close=forced_close)
        reason: Literal["length", "timeout"] = FINISH_TIMEOUT if self._stop == FINISH_TIMEOUT else FINISH_LENGTH
        return Finish(reason, forced_close=forced_close)

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
            fields["repetition"] = bool(enforced.get("repetition"))
            info, forced_close = ConstraintInfo(**fields), bool(enforced["forced_close"])
        return ChatOutput(
            "",
            text if self._form is None else self._form.text(text),
            finish=self._finished(forced_close),
            usage=self._usage,
            timings=Timings(),
            logprobs=self._logprobs,
            constraint=info,
            tool_calls=[self._calls[index] for index in sorted(self._calls)],
        )


def _usage(usage: Any) -> Usage:
    """Convert the usage; zeros if the server reports none."""
    if usage is None:
        return Usage()
    details = usage.prompt_tokens_details
    cached = 0 if details is None else details.cached_tokens or 0
    by_tier: dict[str, int] = getattr(details, "cached_tokens_details", None) or {}
    fetched = {tier: count for tier, count in by_tier.items() if tier != "device" and count}
    return Usage(usage.prompt_tokens, usage.completion_tokens, cached, 0, fetched)


def _logprob(row: Any) -> TokenLogprob:
    data = row.token.encode() if row.bytes is None else bytes(row.bytes)
    top = [_logprob(other) for other in getattr(row, "top_logprobs", None) or ()]
    return TokenLogprob(-1, row.token, data, row.logprob, top)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
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
