"""`EngineBackend`: programs on an `Engine` of this process."""

from __future__ import annotations

import asyncio
import functools
import itertools
from array import array
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixrt.client.arguments import NO_DEADLINE_S
from radixrt.client.engine_client import new_rid, raise_for_error
from radixrt.client.prompt_parts import pack_parts
from radixrt.errors import EngineError, RequestError
from radixrt.lang.backends.base import Backend, Call, Decision, Delta, Hint, Part, Prompt, Result, SelectMethod
from radixrt.messages.client import GenerateReq, TextDelta, TokenLogprob
from radixrt.messages.parts import Finish, ProgramHint, Timings, Usage
from radixrt.messages.wire import unpack_i32

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
        collected = _Collected()
        async with self._open:
            try:
                async with aclosing(self._engine.client.astream(request)) as deltas:
                    async for delta in deltas:
                        token_ids = collected.add(delta)
                        result = None
                        if delta.finish is not None:
                            result = self._result(call, collected, delta, delta.finish)
                        yield Delta(delta.text, token_ids, result)
            except RequestError as error:
                raise _as_engine_error(error) from None

    def _result(self, call: Call, collected: _Collected, delta: TextDelta, finish: Finish) -> Result:
        raise_for_error(finish)
        text = "".join(collected.text)
        shown, by_text = collected.token_ids, isinstance(finish.matched, str)
        if finish.matched is not None and not by_text and not call.sampling.include_stop_str_in_output:
            shown = shown[:-1]
        hidden = self._tokenizer.special_ids if call.sampling.skip_special_tokens else frozenset()
        kept, tail = len(shown), ""
        if by_text or not hidden.isdisjoint(shown):
            kept, tail = self._whole_tokens(shown, text, hidden)
        return Result(
            text=text,
            token_ids=collected.token_ids,
            prompt_ids=collected.prompt_ids,
            finish_reason=finish.reason,
            usage=delta.usage or Usage(),
            timings=delta.timings or Timings(),
            matched_stop=finish.matched,
            logprobs=collected.logprobs,
            forced_close=finish.forced_close,
            constraint=delta.constraint,
            kept=kept,
            tail=tail,
        )

    def _whole_tokens(self, token_ids: Sequence[int], text: str, hidden: Collection[int]) -> tuple[int, str]:
        """How many tokens have come to a beginning of the text, and what follows that beginning.

        Args:
            hidden: tokens that the text leaves out; what stands behind one goes on from the text alone.
        """
        shown = list(itertools.takewhile(lambda token_id: token_id not in hidden, token_ids))
        for kept in range(len(shown), 0, -1):  # a stop string is a token or two
            detokenizer = self._tokenizer.detokenizer(skip_special_tokens=bool(hidden))
            begun = detokenizer.push(shown[:kept]) + detokenizer.flush()
            if text.startswith(begun):
                return kept, text[len(begun) :]
        return 0, text

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


class _Collected:
    """The deltas of one request, put together."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.token_ids: list[int] = []
        self.prompt_ids: array[int] | None = None
        self.logprobs: list[TokenLogprob] | None = None

    def add(self, delta: TextDelta) -> list[int]:
        """The new token ids."""
        token_ids: list[int] = unpack_i32(delta.token_ids).tolist()
        self.text.append(delta.text)
        self.token_ids += token_ids
        if delta.prompt_ids is not None:
            self.prompt_ids = array("i", delta.prompt_ids)
        if delta.logprobs is not None:
            self.logprobs = (self.logprobs or []) + delta.logprobs
        return token_ids


def _as_engine_error(error: RequestError) -> RequestError | EngineError:
    return EngineError(error.message) if error.code == "engine_dead" else error


def _program_hint(hint: Hint | None) -> ProgramHint | None:
    if hint is None:
        return None
    return ProgramHint(hint.program, hint.branch, hint.fork_len, hint.siblings, hint.will_continue)
