"""`Endpoint`: runs programs on a radixrt server, over its native routes.

Prompts are sent as parts, and the server reports their token ids, as an `Engine` in this process does, so that the
outputs of a program are the same on both.
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
import msgspec
import numpy as np

from radixrt.client.answers import Decision
from radixrt.client.pooled_answers import Embedding
from radixrt.client.relevance import RankedDocument, Reranking
from radixrt.client.requests import Part, pack_parts
from radixrt.errors import EngineError, RequestError
from radixrt.lang.backends.base import Backend, Call, EmbedCall, Prompt, RerankCall
from radixrt.lang.backends.http import HttpClient, events
from radixrt.lang.backends.portions import TEXTS_AT_ONCE, embed_in_portions, rerank_in_portions
from radixrt.messages.client import RequestOutput, TokenLogprob
from radixrt.messages.parts import ConstraintInfo, Finish, HiddenStates, ProgramHint, SelectMethod, Timings, Usage
from radixrt.messages.wire import F32, pack_i32
from radixrt.sampling_params import SamplingParams

SAMPLING = "sampling_params."
DEFAULT_TIMEOUT_S = 600.0
DEAD = ("engine_dead", "engine_error", "shutting_down")
"""Error codes that concern the server, not the request."""

FULL_WAIT_S = 0.25
"""Seconds to wait after a 429 without Retry-After, and jitter of all waits, so that refused calls spread out."""


class Endpoint(Backend):
    """See the module's docstring.

    Args:
        base_url: "http://host:port" of a radixrt server, with or without "/v1".
        api_key: key of the server, if it requires one.
        timeout_s: time limit of calls without their own limit, in seconds. A call that the server's full queue refuses
            is sent again until then.
        model: name of the model that the server must serve; None for any.

    Raises:
        ConfigError: base_url is not an http or https URL.
    """

    tokens = True

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        model: str | None = None,
    ) -> None:
        url = base_url.rstrip("/").removesuffix("/v1")
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._http = HttpClient(url, headers=headers)
        self._timeout_s = timeout_s
        self._model = model
        self._context: int | None = None
        self.name = f"Endpoint {self._http.base_url}"

    # --- calls ---

    async def generate(self, call: Call) -> AsyncGenerator[RequestOutput, None]:
        """See `Backend.generate`."""
        body: dict[str, Any] = {
            "input_parts": pack_parts(call.prompt.parts),
            "sampling_params": await self._sampling(call.sampling),
            "stream": call.stream,
            "return_prompt_ids": True,
            "encoding_format": "base64",
            **self._common(call.hint, call.timeout_s),
        }
        last = None
        async with self._post("/generate", body, call.timeout_s) as response:
            if not call.stream:
                last = _as_output(_decoded(await response.aread()), call.sampling)
            else:
                async with aclosing(events(response)) as answers:
                    async for data in answers:
                        if data == b"[DONE]":
                            continue  # the end of the body follows, and a connection read to its end is kept
                        answer = _decoded(data)
                        if "error" in answer:
                            raise _error_of(answer["error"], 500)
                        output = _as_output(answer, call.sampling)
                        if output.finish is None:
                            yield output
                        else:
                            last = output
        if last is None:
            raise EngineError(f"{self.name} ended its answer before it was finished")
        yield last

    async def select(
        self, prompt: Prompt, choices: Sequence[str], method: SelectMethod, hint: ProgramHint | None
    ) -> Decision:
        """See `Backend.select`."""
        body = {
            "input_parts": pack_parts(prompt.parts),
            "choices": list(choices),
            "method": method,
            "return_prompt_ids": True,
            **self._common(hint, None),
        }
        answer = await self._json("POST", "/v1/decisions", body)
        return Decision(
            choice=answer["choice"],
            text=choices[answer["choice"]],
            logprobs=answer["logprobs"],
            scores=answer["scores"],
            probabilities=answer["probabilities"],
            token_ids=answer["token_ids"],
            kept=answer["kept"],
            prompt_token_ids=answer["prompt_ids"],
            usage=_usage(answer["meta_info"]),
            timings=Timings(),
        )

    async def embed(self, call: EmbedCall) -> Embedding:
        """See `Backend.embed`. Many texts are sent in several requests, one after another."""
        return await embed_in_portions(call, TEXTS_AT_ONCE, self._embed)

    async def _embed(self, call: EmbedCall) -> Embedding:
        fields = {name: getattr(call, name) for name in ("dimensions", "normalize", "prompt_name", "prompt")}
        body = {"input": list(call.texts), **fields, "encoding_format": "base64", **self._common(call.hint, None)}
        answer = await self._json("POST", "/v1/embeddings", body)
        vectors = [np.frombuffer(base64.b64decode(each["embedding"]), F32) for each in answer["data"]]
        return Embedding(np.stack(vectors), _prompt_usage(answer["usage"]))

    async def rerank(self, call: RerankCall) -> Reranking:
        """See `Backend.rerank`. Many documents are sent in several requests, one after another."""
        return await rerank_in_portions(call, TEXTS_AT_ONCE, self._rerank)

    async def _rerank(self, call: RerankCall) -> Reranking:
        body = {
            "query": call.query, "documents": list(call.documents), "top_n": call.top_n,
            "instruction": call.instruction, "use_activation": call.activation, "return_documents": False,
            **self._common(call.hint, None),
        }  # fmt: skip
        answer = await self._json("POST", "/v1/rerank", body)
        found = [(each["index"], each["relevance_score"]) for each in answer["results"]]
        results = [RankedDocument(i, score, call.documents[i]) for i, score in found]
        return Reranking(results, _prompt_usage(answer["usage"]))

    async def chat_template(self) -> Mapping[str, Any] | None:
        template: Mapping[str, Any] | None = await self._json("GET", "/chat_template")
        return template

    async def tokenize(self, parts: Sequence[Part]) -> list[int]:
        answer = await self._json("POST", "/tokenize", {"input_parts": pack_parts(parts)})
        return list(answer["tokens"])

    async def release(self, program: str, branch: str | None = None) -> None:
        await self._json("POST", "/release", {"program": program, "branch": branch})

    async def aclose(self) -> None:
        await self._http.aclose()

    # --- requests ---

    def _common(self, hint: ProgramHint | None, timeout_s: float | None) -> dict[str, Any]:
        fields: dict[str, Any] = {"timeout": self._timeout_s if timeout_s is None else timeout_s}
        if self._model is not None:
            fields["model"] = self._model
        if hint is not None:
            fields["program"] = _wire_hint(hint)
        return fields

    async def _sampling(self, sampling: SamplingParams) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.to_builtins(sampling)
        if sampling.max_tokens is None:  # HTTP has no value for "no limit"; the context is the limit
            fields["max_tokens"] = await self._context_length()
        return fields

    async def _context_length(self) -> int:
        if self._context is None:
            models = await self._json("GET", "/v1/models")
            self._context = int(models["data"][0]["max_model_len"])
        return self._context

    async def _json(self, method: str, path: str, body: Any = None) -> Any:
        async with self._post(path, body, None, method=method) as response:
            return _decoded(await response.aread())

    @asynccontextmanager
    async def _post(
        self, path: str, body: Any, timeout_s: float | None, *, method: str = "POST"
    ) -> AsyncGenerator[httpx.Response, None]:
        """Yield a response with status 200; a full queue is waited for, any other status is raised."""
        data = None if body is None else msgspec.json.encode(body)
        limit = self._timeout_s if timeout_s is None else timeout_s
        deadline = asyncio.get_running_loop().time() + limit
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    async with self._http.stream(method, path, data) as response:
                        if response.status_code == 200:
                            yield response
                            return
                        error = _refusal(response.status_code, await response.aread(), path)
                        wait = _wait(response.headers.get("retry-after"))
                    if error.status != 429 or asyncio.get_running_loop().time() + wait > deadline:
                        break
                    await asyncio.sleep(wait)
        except TimeoutError:
            raise RequestError(
                f"{self.name} did not answer within {limit:g} s", param="timeout_s", code="timeout", status=408
            ) from None
        if error.code in DEAD:
            raise EngineError(f"{self.name}: {error.message}")
        raise error


# --- requests and answers as JSON ---


def _wire_hint(hint: ProgramHint) -> dict[str, Any]:
    return {
        "id": hint.program,
        "branch": hint.branch,
        "fork_len": hint.fork_len,
        "siblings": hint.siblings,
        "will_continue": hint.will_continue,
    }


def _wait(retry_after: str | None) -> float:
    """Seconds until a call that a full queue refused is sent again."""
    try:
        least = float(retry_after or FULL_WAIT_S)
    except ValueError:
        least = FULL_WAIT_S
    return least + random.uniform(0.0, FULL_WAIT_S)


def _as_output(answer: Mapping[str, Any], sampling: SamplingParams) -> RequestOutput:
    """Convert an answer of /generate, or an event of its stream."""
    meta = answer["meta_info"]
    finish, prompt_ids, logprobs = meta["finish_reason"], answer.get("prompt_ids"), None
    if "output_token_logprobs" in meta:
        rows = zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True)
        logprobs = [_logprob(row, top) for row, top in rows]
    output = RequestOutput(
        "",
        answer["text"],
        pack_i32(answer["output_ids"]),
        logprobs=logprobs,
        prompt_ids=None if prompt_ids is None else pack_i32(prompt_ids),
        hidden_states=_hidden_states(meta, len(prompt_ids or ()) if sampling.return_hidden_states == "prompt" else 1),
    )
    if finish is None:
        return output
    enforced = meta.get("radixrt")
    constraint = None
    if enforced is not None:
        names = ("backend", "ignored", "forced_tokens", "closing_tokens")
        constraint = ConstraintInfo(**{name: enforced[name] for name in names})
    forced_close = enforced is not None and enforced["forced_close"]
    return msgspec.structs.replace(
        output,
        finish=Finish(finish["type"], finish["matched"], forced_close=forced_close),
        usage=_usage(meta),
        timings=Timings(meta["queue_s"], meta["prefill_s"], meta["decode_s"], meta["retractions"]),
        constraint=constraint,
        kept=meta.get("kept"),
        tail=meta.get("tail", ""),
    )


def _hidden_states(meta: Mapping[str, Any], count: int) -> HiddenStates | None:
    """Decode the hidden states of `count` tokens; None if the answer has none."""
    if "hidden_states" not in meta:
        return None
    data = base64.b64decode(meta["hidden_states"])
    return HiddenStates(len(data) // (4 * count), data)


def _usage(meta: Mapping[str, Any]) -> Usage:
    return Usage(meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"])


def _prompt_usage(usage: Mapping[str, Any]) -> Usage:
    """Convert the usage of a call that generates nothing."""
    return Usage(usage["prompt_tokens"], 0, usage["prompt_tokens_details"]["cached_tokens"])


def _logprob(row: Sequence[Any], top: Sequence[Sequence[Any]] = ()) -> TokenLogprob:
    logprob, token_id, text = row
    return TokenLogprob(token_id, text, text.encode(), logprob, [_logprob(other) for other in top])


def _decoded(data: bytes) -> Any:
    """Decode JSON; raises EngineError if it is not JSON."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise EngineError(f"the server's answer is not JSON: {error}; is it a radixrt server?") from None


def _refusal(status: int, body: bytes, path: str) -> RequestError:
    """The error of an answer whose status is not 200."""
    try:
        return _error_of(msgspec.json.decode(body)["error"], status)
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        what = body[:200].decode(errors="replace")
        return RequestError(f"{path} answered with status {status}: {what}; is it a radixrt server?", status=status)


def _error_of(body: Mapping[str, Any], status: int) -> RequestError:
    """Convert an error; fields of `SamplingParams` lose their prefix."""
    message, param = str(body["message"]), body.get("param")
    if param is not None:
        message, param = message.removeprefix(SAMPLING), param.removeprefix(SAMPLING)
    return RequestError(message, param=param, code=body.get("code"), status=status)
