"""`TokenBackend`: runs programs on a radixrt engine, through a client of it: an `Engine` of this process, or a server.

Prompts are sent as parts, and the engine reports their token ids, so that the outputs of a program are the same on
both.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixrt.client.answers import Decision, as_decision, engine_errors, raise_for_error
from radixrt.client.http_client import HttpEngineClient, TokenClient
from radixrt.client.pooled import aask_all, pooled_jobs
from radixrt.client.pooled_answers import Embedding
from radixrt.client.relevance import RankedDocument, Reranking, rerank_request
from radixrt.client.requests import NO_DEADLINE_S, Part, new_rid, pack_parts, score_request
from radixrt.lang.backends.base import Backend, Call, EmbedCall, Prompt, RerankCall
from radixrt.messages.client import EmbedReq, GenerateReq, RequestOutput, TokenizeReq
from radixrt.messages.parts import ProgramHint, SelectMethod, Usage

if TYPE_CHECKING:
    from radixrt.engine.engine import Engine
    from radixrt.tokenizer.prompt_parts import PartsEncoder

DEFAULT_TIMEOUT_S = 600.0
LONG_TEXT_CHARS = 100_000
DOCUMENTS_AT_ONCE = 2047
"""Documents of one request to rank; more are sent in several requests, one after another."""


class TokenBackend(Backend):
    """See the module's docstring.

    Args:
        timeout_s: time limit of calls without their own limit, in seconds.
        window: number of calls that are open at once; None for any number.
    """

    tokens = True

    def __init__(self, client: TokenClient, name: str, *, timeout_s: float, window: int | None = None) -> None:
        self.name = name
        self._client = client
        self._timeout_s = timeout_s
        self._open: AbstractAsyncContextManager[Any] = nullcontext() if window is None else asyncio.Semaphore(window)

    async def generate(self, call: Call) -> AsyncGenerator[RequestOutput, None]:
        """See `Backend.generate`."""
        request = GenerateReq(
            new_rid(),
            call.sampling,
            parts=pack_parts(call.prompt.parts),
            stream=call.stream,
            timeout_s=self._timeout_s if call.timeout_s is None else call.timeout_s,
            program=call.hint,
        )
        async with self._open:
            with engine_errors():
                async with aclosing(self._client.astream(request)) as outputs:
                    async for output in outputs:
                        if output.finish is not None:
                            raise_for_error(output.finish)
                        yield output

    async def select(
        self, prompt: Prompt, choices: Sequence[str], method: SelectMethod, hint: ProgramHint | None
    ) -> Decision:
        """See `Backend.select`."""
        request = score_request(prompt.parts, choices, method, timeout_s=self._timeout_s, program=hint)
        async with self._open:
            with engine_errors():
                return as_decision(request, await self._client.aask(request))

    async def embed(self, call: EmbedCall) -> Embedding:
        """See `Backend.embed`."""
        jobs = pooled_jobs(
            EmbedReq, call.texts, dimensions=call.dimensions, normalize=call.normalize, prompt_name=call.prompt_name,
            prompt_text=call.prompt, timeout_s=self._timeout_s, program=call.hint,
        )  # fmt: skip
        async with self._open:
            with engine_errors():
                return Embedding.of(await aask_all(self._client, jobs))

    async def rerank(self, call: RerankCall) -> Reranking:
        """See `Backend.rerank`. The usage counts the query once for each request that is sent."""
        results: list[RankedDocument] = []
        usage = Usage()
        for start in range(0, len(call.documents), DOCUMENTS_AT_ONCE):
            documents = call.documents[start : start + DOCUMENTS_AT_ONCE]
            request = rerank_request(
                call.query, documents, call.top_n, instruction=call.instruction, activation=call.activation,
                timeout_s=self._timeout_s, program=call.hint,
            )  # fmt: skip
            async with self._open:
                with engine_errors():
                    found = Reranking.of(request, await self._client.aask(request), call.top_n)
            results += [dataclasses.replace(each, index=start + each.index) for each in found.results]
            tokens, cached = found.usage.prompt_tokens, found.usage.cached_tokens
            usage = Usage(usage.prompt_tokens + tokens, 0, usage.cached_tokens + cached)
        results.sort(key=lambda each: (-each.score, each.index))
        return Reranking(results[: call.top_n], usage)

    async def chat_template(self) -> Mapping[str, Any] | None:
        """See `Backend.chat_template`."""
        info = await self._client.ainfo()
        if not info.chat_templates:
            return None
        return {"templates": info.chat_templates, "special_tokens": info.special_tokens}

    async def tokenize(self, parts: Sequence[Part]) -> list[int]:
        """See `Backend.tokenize`."""
        with engine_errors():
            output = await self._client.aask(TokenizeReq(new_rid(), parts=pack_parts(parts)))
        return output.prompt_token_ids

    async def release(self, program: str, branch: str | None = None) -> None:
        """See `Backend.release`."""
        await self._client.arelease(program, branch)

    async def aclose(self) -> None:
        """See `Backend.aclose`."""
        await self._client.aclose()


class EngineBackend(TokenBackend):
    """An `Engine` of this process, which its owner closes. It has a limit of open calls, because a fork of thousands
    must not fill the engine's queue.

    The engine's own tokenizer is in another process, and refuses prompts beyond the context, which plans of programs
    may have. Programs tokenize so often and so little that they have a tokenizer of their own.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        info = engine.client.info
        name = f"engine {info.model if info is not None else engine.settings.model_name}"
        super().__init__(engine.client, name, timeout_s=NO_DEADLINE_S, window=engine.window)

    async def tokenize(self, parts: Sequence[Part]) -> list[int]:
        """See `Backend.tokenize`. Long texts are tokenized in a thread, so that the event loop is not blocked."""
        packed = pack_parts(parts)
        if sum(len(part) for part in parts if isinstance(part, str)) > LONG_TEXT_CHARS:
            return await asyncio.to_thread(self._encoder.encode, packed, "prompt")
        return self._encoder.encode(packed, "prompt")

    @functools.cached_property
    def _encoder(self) -> PartsEncoder:
        from radixrt.tokenizer.prompt_parts import PartsEncoder
        from radixrt.tokenizer.tokenizer import Tokenizer

        model = self._engine.config.model
        return PartsEncoder(Tokenizer.from_folder(Path(model.tokenizer or self._engine.settings.folder)))


class Endpoint(TokenBackend):
    """A radixrt server.

    Args:
        base_url: "http://host:port" of a radixrt server, with or without "/v1".
        api_key: key of the server, if it requires one.
        timeout_s: time limit of calls without their own limit, in seconds. A call that the server's full queue refuses
            is sent again until then.
        model: name of the model that the server must serve; None for any.

    Raises:
        ConfigError: base_url is not an http or https URL.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        model: str | None = None,
    ) -> None:
        client = HttpEngineClient(base_url, api_key=api_key, timeout_s=timeout_s, model=model)
        super().__init__(client, f"Endpoint {client.http.base_url}", timeout_s=timeout_s)
