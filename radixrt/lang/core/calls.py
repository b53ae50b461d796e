"""Steps that call the model: `Generate` and `Choose` compose a prompt, send the prompt and append the answer; `Embed`
and `Rerank` send texts."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from array import array
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from radixrt.client.collector import OutputCollector
from radixrt.lang.backends.base import Backend, Call, ChatOutput, EmbedCall, RerankCall
from radixrt.lang.core.branch import Branch, Failure, Step
from radixrt.lang.core.corrections import correction, resampled
from radixrt.lang.core.embedding import EmbedTexts
from radixrt.lang.core.expr import Gen, Select
from radixrt.lang.core.prompt import Composed
from radixrt.lang.core.reranking import RerankTexts
from radixrt.lang.core.streaming import Streamed
from radixrt.lang.core.tools import constrained as constrained_by_tools
from radixrt.lang.core.tools import read_calls as read_tool_calls
from radixrt.lang.core.transcript import Answer, Known, Transcript, append, last_call
from radixrt.lang.core.values import Meta, Slot
from radixrt.lang.errors import describe
from radixrt.lang.observe.run_log import CallKind, CallRecord, PictureRecord, TextOptions
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import FINISH_ABORT, FINISH_STOP, Finish, ProgramHint, Timings, Usage
from radixrt.sampling_params import SamplingParams

if TYPE_CHECKING:
    from radixrt.chat.dialect import Dialect

HALF = "\ufffd"
"""Replacement character, which stands for bytes that are not a whole character."""


class CallStep(Step):
    """A step that calls the model and fills a slot."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._queued = time.monotonic()
        self.label = slot.label

    @property
    def leads_to_call(self) -> bool:
        return True

    def fail(self, error: Failure) -> None:
        self._slot.fail(error)


class Generate(CallStep):
    """Run a gen: n calls at once."""

    def __init__(self, gen: Gen, sampling: SamplingParams, slot: Slot) -> None:
        super().__init__(slot)
        self._gen = gen
        self._sampling = sampling

    async def run(self, branch: Branch) -> None:
        transcript, attempt = branch.transcript, 0
        dialect = None if self._gen.tools is None else await branch.program.dialect()
        if self._gen.tools is not None and dialect is not None:
            self._sampling = constrained_by_tools(self._sampling, self._gen.tools, dialect)
        # Each iteration is an attempt. The type or `check` may refuse an answer by a ValueError; the next attempt
        # continues from the refused answer and the error.
        while True:
            composed = await branch.program.compose(transcript)
            made = [self._record(branch, transcript, composed, index) for index in range(self._gen.n)]
            outputs = await self._all(branch, composed, made)
            known = _known(composed, outputs[0], made[0])
            try:
                read = [self._read(branch, each, record, dialect) for each, record in zip(outputs, made, strict=True)]
                break
            except ValueError as error:
                attempt += 1
                if attempt > self._gen.retries:
                    raise
                refused = Answer(outputs[0].text, made[0].id, known)
                corrected = correction(transcript, refused, error)
                self._sampling = resampled(self._sampling, attempt, told=corrected is not transcript)
                transcript = corrected
        calls = read[0][1].tool_calls
        # The transcript excludes refused answers. The known token ids of a corrected answer include them, so the ids
        # are not kept.
        answer = Answer(outputs[0].text, made[0].id, None if attempt else known, calls)
        branch.transcript = append(branch.transcript, answer)
        branch.joined = []
        values = [value for value, _ in read]
        branch.program.publish(made[0], branch.record, self._gen.type, Streamed.done(values))
        self._slot.fill(values[0] if self._gen.n == 1 else values, [meta for _, meta in read])

    async def _all(self, branch: Branch, composed: Composed, made: Sequence[CallRecord]) -> list[RequestOutput]:
        if len(made) == 1:
            return [await self._one(branch, composed, made[0])]
        tasks = [asyncio.ensure_future(self._one(branch, composed, record)) for record in made]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # wait until each task has closed its request
            for record in made:  # a call that was cancelled before it began has recorded nothing
                _failed(branch, record, asyncio.CancelledError())

    def _read(
        self, branch: Branch, output: RequestOutput, record: CallRecord, dialect: Dialect | None
    ) -> tuple[Any, Meta]:
        """The value and its meta; raises ValueError if the text is not a value of the type, or the program's check does
        not accept it. A placeholder of `explain` is not checked."""
        value: Any
        tool_calls: Sequence[dict[str, Any]]
        try:
            if self._gen.tools is not None and dialect is not None:
                value, tool_calls = read_tool_calls(output.text, self._gen.tools, dialect)
            else:
                marker = self._sampling.structured.reasoning_end
                text = output.text if marker is None else output.text.partition(marker)[2]
                tool_calls = output.tool_calls if isinstance(output, ChatOutput) else ()
                value = self._gen.type.read(text)
            if self._gen.check is not None and not branch.program.log.dry_run:
                self._gen.check(value)
            return value, _meta(output, record, tool_calls)
        except ValueError as error:
            record.error = describe(error)
            raise

    def _record(self, branch: Branch, transcript: Transcript, composed: Composed, index: int) -> CallRecord:
        sampling = self._sampling
        if sampling.seed is not None:
            sampling = msgspec.structs.replace(sampling, seed=(sampling.seed + index + 2**63) % 2**64 - 2**63)
        record = _record(branch, composed, self._slot.name, "gen", self._queued, transcript)
        record.index, record.type, record.sampling = index, self._gen.type.name, sampling
        return record

    async def _one(self, branch: Branch, composed: Composed, record: CallRecord) -> RequestOutput:
        assert record.sampling is not None
        program = branch.program
        call = Call(
            composed.prompt,
            record.sampling,
            schema=self._gen.type.schema,
            stream=program.streams,
            hint=_start(branch, record),
            timeout_s=self._gen.timeout_s,
            tools=() if self._gen.tools is None else self._gen.tools.given,
            tool_choice="auto" if self._gen.tools is None else self._gen.tools.choice,
        )
        collector = OutputCollector()
        try:
            generated, record.same_as = program.calls.generate(call, record.id)
            async with aclosing(generated) as outputs:
                async for output in outputs:
                    if output.text and record.first_token is None and call.stream:
                        record.first_token = time.monotonic()
                    record.text += output.text
                    if program.streams and output.text:
                        streamed = Streamed(output.text, record.text)
                        program.publish(record, branch.record, self._gen.type, streamed)
                    whole = collector.add(output)
                    if whole is not None:
                        whole = whole if record.same_as is None else _as_reused(whole)
                        _finish(branch, record, whole)
                        if whole.finish_reason == FINISH_ABORT:
                            raise RuntimeError("the request was aborted")
                        return whole
            raise RuntimeError(f"{program.backend.name} ended the answer without a finish")
        except BaseException as error:
            _failed(branch, record, error)
            raise


class Choose(CallStep):
    """Run a select."""

    def __init__(self, select: Select, slot: Slot) -> None:
        super().__init__(slot)
        self._select = select

    async def run(self, branch: Branch) -> None:
        program, select = branch.program, self._select
        composed = await program.compose(branch.transcript)
        record = _record(branch, composed, self._slot.name, "select", self._queued)
        record.type, record.choices, record.method = "choice", select.choices, select.method
        hint = _start(branch, record)
        try:
            decision = await program.backend.select(composed.prompt, select.choices, select.method, hint)
        except BaseException as error:
            _failed(branch, record, error)
            raise
        chosen, ids = decision.text, array("i", decision.prompt_token_ids)
        known = output_ids = None
        if ids:
            output_ids = array("i", decision.token_ids[decision.choice])
            known = Known(ids[: decision.kept] + output_ids, composed.text + chosen)
            record.prompt_ids, record.output_ids = ids, output_ids
        record.end = time.monotonic()
        record.text, record.finish = chosen, "choice"
        record.probabilities = tuple(decision.probabilities)
        _count_tokens(record, decision.usage)
        program.log.emit("call_end", record)
        branch.transcript = append(branch.transcript, Answer(chosen, record.id, known))
        branch.joined = []
        meta = Meta(
            rid="",
            text=chosen,
            output_ids=b"" if output_ids is None else output_ids.tobytes(),
            prompt_ids=ids.tobytes() if ids else None,
            usage=decision.usage,
            timings=decision.timings,
            call=record.id,
            choices=select.choices,
            probabilities=decision.probabilities,
            scores=decision.scores,
            choice_logprobs=decision.logprobs,
        )
        program.publish(record, branch.record, None, Streamed(chosen, chosen, [chosen]))
        self._slot.fill(chosen, [meta])


class SendTexts(CallStep):
    """Run a call that sends texts, and does not change the transcript.

    Args:
        kind, type, texts, options, finish: attributes of the call's record.
    """

    def __init__(
        self, slot: Slot, kind: CallKind, type: str, texts: tuple[str, ...], options: TextOptions, finish: str
    ) -> None:
        super().__init__(slot)
        self._kind, self._type, self._texts, self._options, self._end = kind, type, texts, options, finish

    async def run(self, branch: Branch) -> None:
        program = branch.program
        record = _record(branch, None, self._slot.name, self._kind, self._queued)
        record.type, record.texts, record.options = self._type, self._texts, self._options
        hint = _start(branch, record)
        try:
            value, text, usage = await self._ask(program.backend, hint)
        except BaseException as error:
            _failed(branch, record, error)
            raise
        record.end, record.finish, record.text = time.monotonic(), self._end, text
        _count_tokens(record, usage)
        program.log.emit("call_end", record)
        program.publish(record, branch.record, None, Streamed.done([value]))
        self._slot.fill(
            value, [Meta(rid="", finish=Finish(FINISH_STOP), usage=usage, timings=Timings(), call=record.id)]
        )

    @abstractmethod
    async def _ask(self, backend: Backend, hint: ProgramHint) -> tuple[Any, str, Usage]:
        """Return the value, its short description, and the token counts."""


class Embed(SendTexts):
    """Run an embed."""

    def __init__(self, embed: EmbedTexts, slot: Slot) -> None:
        options = TextOptions(embed.dimensions, embed.normalize, embed.prompt_name, embed.prompt)
        super().__init__(slot, "embed", "vector" if embed.is_one else "vectors", embed.texts, options, "vectors")
        self._embed = embed

    async def _ask(self, backend: Backend, hint: ProgramHint) -> tuple[Any, str, Usage]:
        embed = self._embed
        options = (embed.dimensions, embed.normalize, embed.prompt_name, embed.prompt)
        found = await backend.embed(EmbedCall(embed.texts, *options, hint))
        count, size = found.vectors.shape
        return found.vectors[0] if embed.is_one else found.vectors, f"{count} x {size} numbers", found.usage


class Rerank(SendTexts):
    """Run a rerank."""

    def __init__(self, rerank: RerankTexts, slot: Slot) -> None:
        texts = (rerank.query, *rerank.documents)
        options = TextOptions(top_n=rerank.top_n, instruction=rerank.instruction, activation=rerank.activation)
        super().__init__(slot, "rerank", "ranking", texts, options, "ranking")
        self._rerank = rerank

    async def _ask(self, backend: Backend, hint: ProgramHint) -> tuple[Any, str, Usage]:
        asked = self._rerank
        options = (asked.top_n, asked.instruction, asked.activation)
        found = await backend.rerank(RerankCall(asked.query, asked.documents, *options, hint))
        best = found.results[0]
        text = f"{len(found.results)} of {len(asked.documents)} documents, first {best.index} ({best.score:.4g})"
        return found.results, text, found.usage


def _record(
    branch: Branch, composed: Composed | None, name: str | None, kind: str, queued: float,
    transcript: Transcript = None,
) -> CallRecord:  # fmt: skip
    log = branch.program.log
    before = last_call(transcript or branch.transcript)
    depends = (*(() if before is None else (before,)), *branch.joined)
    record = CallRecord(len(log.calls), branch.id, name or "", kind, "", queued, depends=depends)  # type: ignore[arg-type]
    if composed is not None:
        record.prompt_text, record.rerendered = composed.text, composed.rerendered
        pictures = composed.prompt.pictures
        record.pictures = tuple(PictureRecord(each.width, each.height, each.digest) for each in pictures)
        log.pictures.update((each.label, each) for each in pictures)
    log.calls.append(record)
    return record


def _start(branch: Branch, record: CallRecord) -> ProgramHint:
    record.start = time.monotonic()
    record.fork_len, record.siblings = branch.group
    log = branch.program.log
    log.emit("call_start", record)
    branch.announced = branch.will_continue
    return ProgramHint(log.program, branch.id, record.fork_len, record.siblings, branch.announced)


def _finish(branch: Branch, record: CallRecord, output: RequestOutput) -> None:
    record.end = time.monotonic()
    record.text, record.finish = output.text, output.finish_reason or ""
    _count_tokens(record, output.usage or Usage())
    record.forced_tokens = 0 if output.constraint is None else output.constraint.forced_tokens
    timings = output.timings or Timings()
    if timings.prefill_s and record.start is not None:
        record.admitted = min(record.start + timings.queue_s, record.end)
        if record.first_token is None:
            record.first_token = min(record.admitted + timings.prefill_s, record.end)
    if output.prompt_ids is not None:
        record.prompt_ids = array("i", output.prompt_ids)
        record.output_ids = array("i", output.output_ids)
    branch.program.log.emit("call_end", record)


def _as_reused(output: RequestOutput) -> RequestOutput:
    """Return the output of an equal call as output of this call. All prompt tokens but the last count as cached,
    because the equal call has computed them; the last token would be computed again."""
    usage = output.usage or Usage()
    cached = max(usage.cached_tokens, usage.prompt_tokens - 1)
    return msgspec.structs.replace(output, usage=msgspec.structs.replace(usage, cached_tokens=cached))


def _count_tokens(record: CallRecord, usage: Usage) -> None:
    record.prompt_tokens, record.cached_tokens = usage.prompt_tokens, usage.cached_tokens
    record.completion_tokens, record.fetched_tokens = usage.completion_tokens, usage.fetched_tokens


def _failed(branch: Branch, record: CallRecord, error: BaseException) -> None:
    cancelled = isinstance(error, asyncio.CancelledError)
    if record.end is None:
        record.error = "cancelled" if cancelled else str(error) or type(error).__name__
        record.end = time.monotonic()
        record.finish = "cancelled" if cancelled else "error"
        branch.program.log.emit("call_end", record)


def _known(composed: Composed, output: RequestOutput, record: CallRecord) -> Known | None:
    """Return the token ids of the prompt and of the output tokens whose text is kept (`RequestOutput.kept`)."""
    if record.prompt_ids is None or record.output_ids is None:
        return None
    kept, text = output.kept or 0, output.text.removesuffix(output.tail)
    # The last bytes of the prompt and the first bytes of the output may be a single character.
    if not kept or (composed.text.endswith(HALF) and text.startswith(HALF)):
        kept, text = 0, ""
    return Known(record.prompt_ids + record.output_ids[:kept], composed.text + text)


def _meta(output: RequestOutput, record: CallRecord, tool_calls: Sequence[dict[str, Any]]) -> Meta:
    fields = {name: getattr(output, name) for name in RequestOutput.__struct_fields__}
    fields["usage"], fields["timings"] = output.usage or Usage(), output.timings or Timings()
    return Meta(**fields, call=record.id, tool_calls=tool_calls)
