"""Targets of a replay: a radixrt server over its native routes, or /v1/completions of any other server."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from httpx_sse import EventSource

from radixrt.client.collector import OutputCollector
from radixrt.client.http import HttpClient
from radixrt.errors import ConfigError, EngineError, RequestError
from radixrt.lang.backends.base import Call, EmbedCall, Prompt, RerankCall
from radixrt.lang.backends.token_backend import Endpoint
from radixrt.lang.observe.run_log import TEXT_KINDS, CallRecord, TextOptions
from radixrt.messages.parts import ProgramHint, SelectMethod, TemplateText, Usage
from radixrt.openai_api import server_root
from radixrt.sampling_params import SamplingParams

Send = Literal["auto", "ids", "text"]


@dataclass(frozen=True)
class Question:
    """A call to be sent: its prompt as ids or, if those are empty, as text."""

    call: CallRecord
    ids: Sequence[int]
    text: str
    hint: ProgramHint | None


@dataclass
class Answered:
    """Result of a call. Times are in seconds; `cached_tokens` is None if the server does not report it."""

    seconds: float = 0.0
    first_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    output_tokens: int = 0
    text: str = ""
    ids: Sequence[int] = ()
    error: str | None = None


class Target(ABC):
    """Target of a replay.

    Attributes:
        name: name for the table.
        ids: whether prompts are sent as token ids.
    """

    name: str
    ids: bool

    async def ask(self, question: Question) -> Answered:
        """Send a call; errors are returned in the answer."""
        start, answer = time.perf_counter(), Answered()
        if question.call.pictures:
            answer.error = "the call has pictures, which a trace does not keep"
            return answer
        try:
            await self._ask(question, answer, start)
        except (RequestError, EngineError) as error:
            answer.error = str(error)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            answer.error = f"the answer cannot be read: {error!r}"
        answer.seconds = time.perf_counter() - start
        return answer

    @abstractmethod
    async def _ask(self, question: Question, answer: Answered, start: float) -> None: ...

    @abstractmethod
    async def release(self, program: str) -> None:
        """Tell that a program has ended."""

    @abstractmethod
    async def aclose(self) -> None: ...


class RadixrtTarget(Target):
    """A radixrt server: constraints and selects are sent as they were recorded."""

    def __init__(self, endpoint: Endpoint, model: str, ids: bool) -> None:
        self.name = f"{endpoint.name.removeprefix('Endpoint ')} (radixrt, {model})"
        self.ids = ids
        self._endpoint = endpoint

    async def _ask(self, question: Question, answer: Answered, start: float) -> None:
        call = question.call
        prompt = Prompt([question.ids if question.ids else TemplateText(question.text)])
        if call.kind == "select":
            method: SelectMethod = call.method or "token_length_normalized"  # type: ignore[assignment]
            decision = await self._endpoint.select(prompt, call.choices, method, question.hint)
            usage, answer.text = decision.usage, call.choices[decision.choice]
        elif call.kind == "rerank":
            usage = (await self._endpoint.rerank(_rerank_call(question))).usage
        elif call.kind == "embed":
            usage = (await self._endpoint.embed(_embed_call(question))).usage
        else:
            request = Call(prompt, _sampling(call), stream=True, hint=question.hint)
            collector, whole = OutputCollector(), None
            async with aclosing(self._endpoint.generate(request)) as outputs:
                async for output in outputs:
                    if answer.first_s is None:
                        answer.first_s = time.perf_counter() - start
                    whole = collector.add(output)
            assert whole is not None  # the endpoint raises if the answer is incomplete
            usage, answer.text, answer.ids = whole.usage or Usage(), whole.text, whole.token_ids
        answer.prompt_tokens, answer.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        answer.output_tokens = usage.completion_tokens

    async def release(self, program: str) -> None:
        await self._endpoint.release(program)

    async def aclose(self) -> None:
        await self._endpoint.aclose()


class CompletionsTarget(Target):
    """A server with OpenAI's /v1/completions and /v1/embeddings, and vLLM's /v1/rerank. It generates as many tokens as
    were recorded, without constraints, and one for a select. Of the options of an embed it gets the dimensions, and of
    those of a rerank all."""

    def __init__(self, http: HttpClient, model: str, ids: bool) -> None:
        self.name = f"{http.base_url} ({model})"
        self.ids = ids
        self._http = http
        self._model = model

    async def _ask(self, question: Question, answer: Answered, start: float) -> None:
        call = question.call
        if call.kind in TEXT_KINDS:
            await self._send_texts(call, answer)
            return
        tokens = 1 if call.kind == "select" else max(call.completion_tokens, 1)
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": list(question.ids) or question.text,
            "max_tokens": tokens,
            "min_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0.0 if call.sampling is None else call.sampling.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        usage: dict[str, Any] | None = None
        async with self._http.stream("POST", "/v1/completions", msgspec.json.encode(body)) as response:
            if response.status_code != 200:
                raise RequestError(
                    f"HTTP {response.status_code}: {(await response.aread())[:300].decode(errors='replace')}"
                )
            async with aclosing(EventSource(response).aiter_sse()) as answers:
                async for event in answers:
                    if event.data == "[DONE]":
                        continue
                    chunk = msgspec.json.decode(event.data)
                    if "error" in chunk:
                        raise RequestError(str(chunk["error"]))
                    usage = chunk.get("usage") or usage
                    for choice in chunk.get("choices") or ():
                        if choice.get("text") and answer.first_s is None:
                            answer.first_s = time.perf_counter() - start
                        answer.text += choice.get("text") or ""
        if usage is None:
            raise RequestError("the server told no usage")
        answer.prompt_tokens, answer.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")

    async def _send_texts(self, call: CallRecord, answer: Answered) -> None:
        options = call.options or TextOptions()
        fields: dict[str, Any]
        if call.kind == "embed":
            path, fields = "/v1/embeddings", {"input": list(call.texts), "dimensions": options.dimensions}
        else:
            path = "/v1/rerank"
            fields = {
                "query": call.texts[0], "documents": list(call.texts[1:]), "top_n": options.top_n,
                "instruction": options.instruction, "use_activation": None if options.activation else False,
            }  # fmt: skip
        body = {"model": self._model, **{name: value for name, value in fields.items() if value is not None}}
        async with self._http.stream("POST", path, msgspec.json.encode(body)) as response:
            content = await response.aread()
        if response.status_code != 200:
            raise RequestError(f"HTTP {response.status_code}: {content[:300].decode(errors='replace')}")
        usage = msgspec.json.decode(content)["usage"]
        answer.prompt_tokens = usage["prompt_tokens"]
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")

    async def release(self, program: str) -> None:
        """Do nothing: such a server has no programs."""

    async def aclose(self) -> None:
        await self._http.aclose()


def _embed_call(question: Question) -> EmbedCall:
    call, given = question.call, question.call.options or TextOptions()
    options = (given.dimensions, given.normalize, given.prompt_name, given.prompt)
    return EmbedCall(call.texts, *options, hint=question.hint)


def _rerank_call(question: Question) -> RerankCall:
    call, given = question.call, question.call.options or TextOptions()
    query, documents = call.texts[0], call.texts[1:]
    return RerankCall(query, documents, given.top_n, given.instruction, given.activation, hint=question.hint)


def _sampling(call: CallRecord) -> SamplingParams:
    """The recorded parameters; without a constraint, the output gets exactly the recorded length."""
    sampling = call.sampling or SamplingParams(temperature=0.0)
    if sampling.constraint is not None:
        return sampling
    tokens = max(call.completion_tokens, 1)
    return msgspec.structs.replace(
        sampling, max_tokens=tokens, min_tokens=tokens, ignore_eos=True, stop=(), stop_token_ids=(), logprobs=None
    )


async def find_target(
    base_url: str, api_key: str | None, model: str | None, send: Send, plain: bool, sample: CallRecord | None
) -> Target:
    """Detect the server behind a URL.

    Args:
        model: name of the model; None takes the first that the server lists.
        send: "auto" sends token ids where a radixrt server has the tokenizer that the trace was recorded with.
        plain: treat a radixrt server like any other.
        sample: a call of the trace.

    Raises:
        EngineError: the server does not answer.
        ConfigError: the server lists no models, or the trace has no token ids to send.
    """
    if send == "ids" and sample is not None and sample.prompt_ids is None:
        raise ConfigError("the trace has no token ids, because its backend told none; use --send text")
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    http = HttpClient(server_root(base_url), headers=headers)
    served = await _models(http)
    chosen = next((card for card in served if model in (None, card["id"])), None)
    if model is None and chosen is None:
        raise ConfigError(f"{base_url} lists no models; name one with --model")
    name = model or chosen["id"] if chosen is not None else str(model)
    if plain or chosen is None or chosen.get("owned_by") != "radixrt":
        return CompletionsTarget(http, name, ids=send == "ids")
    endpoint = Endpoint(base_url, api_key=api_key, model=name)
    ids = send == "ids" or (send == "auto" and await _same_tokenizer(endpoint, sample))
    await http.aclose()
    return RadixrtTarget(endpoint, name, ids)


async def _models(http: HttpClient) -> list[dict[str, Any]]:
    async with http.stream("GET", "/v1/models") as response:
        body = await response.aread()
    try:
        if response.status_code != 200:
            raise ValueError(f"status {response.status_code}")
        return list(msgspec.json.decode(body)["data"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{http.base_url}/v1/models does not list models: {error!r}") from None


async def _same_tokenizer(endpoint: Endpoint, sample: CallRecord | None) -> bool:
    if sample is None or sample.prompt_ids is None:
        return False
    return await endpoint.tokenize([TemplateText(sample.prompt_text)]) == sample.prompt_ids.tolist()
