"""`EngineBackend`: programs on an `Engine` of this process."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixrt.client.answers import Decision, raise_for_error
from radixrt.client.pooled_answers import Embedding
from radixrt.client.relevance import Reranking
from radixrt.client.requests import NO_DEADLINE_S, Part, new_rid, pack_parts
from radixrt.errors import EngineError, RequestError
from radixrt.lang.backends.base import Backend, Call, EmbedCall, Prompt, RerankCall
from radixrt.lang.backends.portions import ENGINE_TEXTS_AT_ONCE, embed_in_portions, rerank_in_portions
from radixrt.messages.client import GenerateReq, RequestOutput
from radixrt.messages.parts import ProgramHint, SelectMethod

if TYPE_CHECKING:
    from radixrt.engine.engine import Engine
    from radixrt.tokenizer.prompt_parts import PartsEncoder
    from radixrt.tokenizer.tokenizer import Tokenizer

LONG_TEXT_CHARS = 100_000
"""Longer texts are tokenized in a thread, so that the event loop is not blocked."""


class EngineBackend(Backend):
    """See the module's docstring. The engine belongs to its owner, who closes it."""

    tokens = True

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open = asyncio.Semaphore(engine.window)  # a fork of thousands must not fill the engine's queue
        info = engine.client.info
        self.name = f"engine {info.model if info is not None else engine.settings.model_name}"

    async def generate(self, call: Call) -> AsyncGenerator[RequestOutput, None]:
        request = GenerateReq(
            new_rid(),
            call.sampling,
            parts=pack_parts(call.prompt.parts),
            stream=call.stream,
            timeout_s=NO_DEADLINE_S if call.timeout_s is None else call.timeout_s,
            program=call.hint,
        )
        async with self._open:
            try:
                async with aclosing(self._engine.client.astream(request)) as outputs:
                    async for output in outputs:
                        if output.finish is not None:
                            raise_for_error(output.finish)
                        yield output
            except RequestError as error:
                raise EngineError(error.message) if error.code == "engine_dead" else error from None

    async def select(
        self, prompt: Prompt, choices: Sequence[str], method: SelectMethod, hint: ProgramHint | None
    ) -> Decision:
        async with self._open:
            return await self._engine.async_score(prompt.parts, choices, method, program=hint)

    async def embed(self, call: EmbedCall) -> Embedding:
        return await embed_in_portions(call, ENGINE_TEXTS_AT_ONCE, self._embed)

    async def _embed(self, call: EmbedCall) -> Embedding:
        async with self._open:
            return await self._engine.async_embed(
                list(call.texts), dimensions=call.dimensions, normalize=call.normalize, prompt_name=call.prompt_name,
                prompt=call.prompt, program=call.hint,
            )  # fmt: skip

    async def rerank(self, call: RerankCall) -> Reranking:
        return await rerank_in_portions(call, ENGINE_TEXTS_AT_ONCE, self._rerank)

    async def _rerank(self, call: RerankCall) -> Reranking:
        async with self._open:
            return await self._engine.async_rerank(
                call.query, call.documents, top_n=call.top_n, instruction=call.instruction, activation=call.activation,
                program=call.hint,
            )  # fmt: skip

    async def chat_template(self) -> Mapping[str, Any] | None:
        template = self._tokenizer.chat_template
        return (
            None
            if template is None
            else {"templates": template.sources, "special_tokens": self._tokenizer.special_tokens}
        )

    async def tokenize(self, parts: Sequence[Part]) -> list[int]:
        packed = pack_parts(parts)
        if sum(len(part) for part in parts if isinstance(part, str)) > LONG_TEXT_CHARS:
            return await asyncio.to_thread(self._encoder.encode, packed, "prompt")
        return self._encoder.encode(packed, "prompt")

    async def release(self, program: str, branch: str | None = None) -> None:
        self._engine.release(program, branch)

    async def aclose(self) -> None:
        return None

    # The engine's own tokenizer is in another process. Programs tokenize so often and so little that they have another.

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        from radixrt.tokenizer.tokenizer import Tokenizer

        model = self._engine.config.model
        override = None if model.chat_template is None else Path(model.chat_template)
        return Tokenizer.from_folder(Path(model.tokenizer or self._engine.settings.folder), chat_template_file=override)

    @functools.cached_property
    def _encoder(self) -> PartsEncoder:
        from radixrt.tokenizer.prompt_parts import PartsEncoder

        return PartsEncoder(self._tokenizer)
