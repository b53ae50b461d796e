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
from typing import TYPE_CHECKING, Any, TypeVar

from radixrt.client.answers import engine_errors, raise_for_error
from radixrt.client.http_client import HttpEngineClient, TokenClient
from radixrt.lang.backends.base import Backend, Call, EmbedCall, Prompt, RerankCall, Unsupported
from radixrt.lang.pictures import Picture
from radixrt.messages.client import ClientRequest, InputRow, PartsInput, RequestOutput, TextInput
from radixrt.messages.parts import ProgramHint, SelectMethod
from radixrt.messages.request import Envelope
from radixrt.tasks.embed import Embed, Embedding
from radixrt.tasks.prompts import NO_DEADLINE_S, Part, inputs_of, new_envelope, pack_parts
from radixrt.tasks.rerank import RankedDocument, Rerank, Reranking, texts_of
from radixrt.tasks.run import TaskCall, add_usage, arun
from radixrt.tasks.score import Decision, Score
from radixrt.tasks.tokenize import Tokenize

if TYPE_CHECKING:
    from radixrt.engine.engine import Engine
    from radixrt.tokenizer.prompt_parts import PartsEncoder

A = TypeVar("A")

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
        prompt = InputRow(_input(call.prompt.parts, call.prompt.pictures))
        request = ClientRequest(self._envelope(call.hint, call.timeout_s), [prompt], call.sampling, call.stream)
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
        given = _input(prompt.parts, prompt.pictures)
        return await self._run(Score(given, choices, self._envelope(hint), method))

    async def embed(self, call: EmbedCall) -> Embedding:
        """See `Backend.embed`."""
        asked = Embed(
            await self._client.ainfo(),
            inputs_of(call.texts, "prompts"),
            self._envelope(call.hint),
            dimensions=call.dimensions,
            normalize=call.normalize,
            prompt_name=call.prompt_name,
            prompt=call.prompt,
        )
        return await self._run(asked)

    async def rerank(self, call: RerankCall) -> Reranking:
        """See `Backend.rerank`. The usage counts the query once for each request that is sent."""
        info, results, usages = await self._client.ainfo(), list[RankedDocument](), []
        for start in range(0, len(call.documents), DOCUMENTS_AT_ONCE):
            asked = Rerank(
                info,
                TextInput(call.query, "query"),
                texts_of(call.documents[start : start + DOCUMENTS_AT_ONCE], "documents"),
                self._envelope(call.hint),
                call.top_n,
                instruction=call.instruction,
                activation=call.activation,
            )
            found = await self._run(asked)
            results += [dataclasses.replace(each, index=start + each.index) for each in found.results]
            usages.append(found.usage)
        results.sort(key=lambda each: (-each.score, each.index))
        return Reranking(results[: call.top_n], add_usage(usages))

    def _envelope(self, hint: ProgramHint | None, timeout_s: float | None = None) -> Envelope:
        return new_envelope(timeout_s=self._timeout_s if timeout_s is None else timeout_s, program=hint)

    async def _run(self, call: TaskCall[A]) -> A:
        async with self._open:
            return await arun(self._client, call)

    async def chat_template(self) -> Mapping[str, Any] | None:
        """See `Backend.chat_template`."""
        info = await self._client.ainfo()
        if not info.chat_templates:
            return None
        return {"templates": info.chat_templates, "special_tokens": info.special_tokens}

    async def image_token(self) -> str:
        """See `Backend.image_token`."""
        info = await self._client.ainfo()
        if not info.max_images:
            raise Unsupported(
                f"rt.image: {info.model} reads no images; use a model of text and vision (docs/models.md lists them), "
                "started without --text-only"
            )
        return info.image_token

    async def tokenize(self, parts: Sequence[Part], pictures: Sequence[Picture] = ()) -> list[int]:
        """See `Backend.tokenize`."""
        return await arun(self._client, Tokenize(_input(parts, pictures), new_envelope(timeout_s=self._timeout_s)))

    async def release(self, program: str, branch: str | None = None) -> None:
        """See `Backend.release`."""
        await self._client.arelease(program, branch)

    async def aclose(self) -> None:
        """See `Backend.aclose`."""
        await self._client.aclose()


def _input(parts: Sequence[Part], pictures: Sequence[Picture]) -> PartsInput:
    return PartsInput(pack_parts(parts), [picture.image for picture in pictures])


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

    async def tokenize(self, parts: Sequence[Part], pictures: Sequence[Picture] = ()) -> list[int]:
        """See `Backend.tokenize`. Long texts are tokenized in a thread, so that the event loop is not blocked. The
        engine tokenizes prompts with pictures, since it has the model's image processor."""
        if pictures:
            return await super().tokenize(parts, pictures)
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
