"""`EngineBackend`: programs on an `Engine` of this process."""

from __future__ import annotations

import asyncio
import functools
from array import array
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixrt.client.answers import raise_for_error
from radixrt.client.collector import OutputCollector
from radixrt.client.requests import NO_DEADLINE_S, new_rid, pack_parts
from radixrt.errors import EngineError, RequestError
from radixrt.lang.backends.base import Backend, Call, Decision, Delta, Hint, Part, Prompt, Result, SelectMethod
from radixrt.messages.client import GenerateReq, RequestOutput
from radixrt.messages.parts import ProgramHint, Timings, Usage

if TYPE_CHECKING:
    from radixrt.engine.engine import Engine
    from radixrt.tokenizer.prompt_parts import PartsEncoder
    from radixrt.tokenizer.tokenizer import Tokenizer

LONG_TEXT_CHARS = 100_000
"""Above this a text is tokenized in a thread, so that the event loop goes on."""


class EngineBackend(Backend):
    """See the module's docstring. The engine stays its owner's, who closes it."""

    tokens = True

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open = asyncio.Semaphore(engine.window)  # a fork of thousands must not fill the engine's queue
        info = engine.client.info
        self.name = f"engine {info.model if info is not None else engine.settings.model_name}"

    async def generate(self, call: Call) -> AsyncGenerator[Delta, None]:
        request = GenerateReq(
            new_rid(),
            call.sampling,
            parts=pack_parts(call.prompt.parts),
            stream=call.stream,
            timeout_s=NO_DEADLINE_S if call.timeout_s is None else call.timeout_s,
            program=_program_hint(call.hint),
        )
        collector = OutputCollector()
        async with self._open:
            try:
                async with aclosing(self._engine.client.astream(request)) as increments:
                    async for increment in increments:
                        whole = collector.add(increment)
                        result = None if whole is None else _result(whole)
                        yield Delta(increment.text, increment.token_ids, result)
            except RequestError as error:
                raise _as_engine_error(error) from None

    async def select(self, prompt: Prompt, choices: Sequence[str], method: SelectMethod, hint: Hint | None) -> Decision:
        async with self._open:
            scored = await self._engine.async_score(prompt.parts, choices, method, program=_program_hint(hint))
        return Decision(
            scored.choice,
            scored.logprobs,
            scored.scores,
            scored.probabilities,
            scored.token_ids,
            scored.kept,
            scored.prompt_token_ids,
            scored.usage,
        )

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

    # The engine's own tokenizer lives in another process; what programs need of one is so little and so often that they
    # have their own.

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


def _result(output: RequestOutput) -> Result:
    """Convert a whole output; raises RequestError if the request ended with an error."""
    finish = output.finish
    assert finish is not None
    raise_for_error(finish)
    return Result(
        text=output.text,
        token_ids=output.token_ids,
        prompt_ids=None if output.prompt_ids is None else array("i", output.prompt_ids),
        finish_reason=finish.reason,
        usage=output.usage or Usage(),
        timings=output.timings or Timings(),
        matched_stop=finish.matched,
        logprobs=output.logprobs,
        forced_close=finish.forced_close,
        constraint=output.constraint,
        kept=output.kept,
        tail=output.tail,
    )


def _as_engine_error(error: RequestError) -> RequestError | EngineError:
    return EngineError(error.message) if error.code == "engine_dead" else error


def _program_hint(hint: Hint | None) -> ProgramHint | None:
    if hint is None:
        return None
    return ProgramHint(hint.program, hint.branch, hint.fork_len, hint.siblings, hint.will_continue)
