"""Steps that call the model: `Generate` and `Choose`. Each composes a prompt, sends it, and appends the answer."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from radixrt.lang.backends.base import Call, Decision, Hint, Result
from radixrt.lang.core.branch import Branch, Failure, Step
from radixrt.lang.core.primitives import Gen, Select
from radixrt.lang.core.prompt import Composed
from radixrt.lang.core.streaming import Streamed
from radixrt.lang.core.tools import constrained as constrained_by_tools
from radixrt.lang.core.tools import read_calls as read_tool_calls
from radixrt.lang.core.transcript import Answer, Known, append, last_call
from radixrt.lang.core.values import Meta, Slot
from radixrt.lang.errors import describe
from radixrt.lang.observe.run_log import CallRecord
from radixrt.sampling_params import SamplingParams

if TYPE_CHECKING:
    from radixrt.chat.dialect import Dialect

HALF = "\ufffd"
"""Replacement character: the text of bytes that are not a whole character."""


class Generate(Step):
    """Run a gen: n calls at once."""

    calls = True

    def __init__(self, gen: Gen, sampling: SamplingParams, slot: Slot) -> None:
        self._gen = gen
        self._sampling = sampling
        self._slot = slot
        self._queued = time.monotonic()
        self.label = slot.label

    def fail(self, error: Failure) -> None:
        self._slot.fail(error)

    async def run(self, branch: Branch) -> None:
        composed = await branch.program.compose(branch.transcript)
        dialect = None if self._gen.tools is None else await branch.program.dialect()
        if self._gen.tools is not None and dialect is not None:
            self._sampling = constrained_by_tools(self._sampling, self._gen.tools, dialect)
        made = [self._record(branch, composed, index) for index in range(self._gen.n)]
        results = await self._all(branch, composed, made)
        read = [self._read(result, record, dialect) for result, record in zip(results, made, strict=True)]
        known = _known(composed, results[0], made[0])
        calls = read[0][1].tool_calls
        branch.transcript = append(branch.transcript, Answer(results[0].text, made[0].id, known, calls))
        branch.joined = []
        values = [value for value, _ in read]
        branch.program.publish(made[0], branch.record, self._gen.type, Streamed.done(values))
        self._slot.fill(values[0] if self._gen.n == 1 else values, [meta for _, meta in read])

    async def _all(self, branch: Branch, composed: Composed, made: Sequence[CallRecord]) -> list[Result]:
        if len(made) == 1:
            return [await self._one(branch, composed, made[0])]
        tasks = [asyncio.ensure_future(self._one(branch, composed, record)) for record in made]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # until each has closed its request
            for record in made:  # a call that was cancelled before it began has recorded nothing
                _failed(branch, record, asyncio.CancelledError())

    def _read(self, result: Result, record: CallRecord, dialect: Dialect | None) -> tuple[Any, Meta]:
        """The value and its meta; raises ValueError if the text is not a value of the type."""
        if self._gen.tools is not None and dialect is not None:
            said, calls = read_tool_calls(result.text, self._gen.tools, dialect)
            return said, replace(_meta(result, record), tool_calls=calls)
        marker = self._sampling.structured.reasoning_end
        text = result.text if marker is None else result.text.partition(marker)[2]
        try:
            return self._gen.type.read(text), _meta(result, record)
        except ValueError as error:
            record.error = describe(error)
            raise

    def _record(self, branch: Branch, composed: Composed, index: int) -> CallRecord:
        sampling = self._sampling
        if sampling.seed is not None:
            sampling = msgspec.structs.replace(sampling, seed=(sampling.seed + index + 2**63) % 2**64 - 2**63)
        record = _record(branch, composed, self._slot.name, "gen", self._queued)
        record.index, record.type, record.sampling = index, self._gen.type.name, sampling
        return record

    async def _one(self, branch: Branch, composed: Composed, record: CallRecord) -> Result:
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
        try:
            async with aclosing(program.backend.generate(call)) as deltas:
                async for delta in deltas:
                    if delta.text and record.first_token is None and call.stream:
                        record.first_token = time.monotonic()
                    record.text += delta.text
                    if program.streams and delta.text:
                        program.publish(record, branch.record, self._gen.type, Streamed(delta.text, record.text))
                    if delta.result is not None:
                        _finish(branch, record, delta.result)
                        if delta.result.finish_reason == "abort":
                            raise RuntimeError("the request was aborted")
                        return delta.result
            raise RuntimeError(f"{program.backend.name} ended the answer without a result")
        except BaseException as error:
            _failed(branch, record, error)
            raise


class Choose(Step):
    """Run a select."""

    calls = True

    def __init__(self, select: Select, slot: Slot) -> None:
        self._select = select
        self._slot = slot
        self._queued = time.monotonic()
        self.label = slot.label

    def fail(self, error: Failure) -> None:
        self._slot.fail(error)

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
        chosen = select.choices[decision.choice]
        self._note(branch, record, decision, chosen)
        known = None
        if decision.prompt_ids is not None:
            ids = array("i", decision.prompt_ids[: decision.kept])
            ids.extend(decision.token_ids[decision.choice])
            known = Known(ids, composed.text + chosen)
        branch.transcript = append(branch.transcript, Answer(chosen, record.id, known))
        branch.joined = []
        meta = Meta(
            chosen,
            record.id,
            record.output_ids.tolist() if record.output_ids is not None else None,
            "choice",
            decision.usage,
            choices=select.choices,
            probabilities=decision.probabilities,
            scores=decision.scores,
            choice_logprobs=decision.logprobs,
        )
        program.publish(record, branch.record, None, replace(Streamed.done([chosen]), text=chosen, so_far=chosen))
        self._slot.fill(chosen, [meta])

    def _note(self, branch: Branch, record: CallRecord, decision: Decision, chosen: str) -> None:
        record.end = time.monotonic()
        record.text, record.finish = chosen, "choice"
        record.probabilities = tuple(decision.probabilities)
        usage = decision.usage
        record.prompt_tokens, record.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        record.completion_tokens = usage.completion_tokens
        if decision.prompt_ids is not None:
            record.prompt_ids = array("i", decision.prompt_ids)
            record.output_ids = array("i", decision.token_ids[decision.choice])
        branch.program.log.emit("call_end", record)


def _record(branch: Branch, composed: Composed, name: str | None, kind: str, queued: float) -> CallRecord:
    log = branch.program.log
    before = last_call(branch.transcript)
    depends = (*(() if before is None else (before,)), *branch.joined)
    record = CallRecord(len(log.calls), branch.id, name or "", kind, "", queued, depends=depends)  # type: ignore[arg-type]
    record.prompt_text, record.rerendered = composed.text, composed.rerendered
    log.calls.append(record)
    return record


def _start(branch: Branch, record: CallRecord) -> Hint:
    record.start = time.monotonic()
    record.fork_len, record.siblings = branch.group
    branch.program.log.emit("call_start", record)
    return Hint(
        branch.program.log.program,
        branch.id,
        fork_len=record.fork_len,
        siblings=record.siblings,
        will_continue=branch.will_continue,
    )


def _finish(branch: Branch, record: CallRecord, result: Result) -> None:
    record.end = time.monotonic()
    record.text, record.finish = result.text, result.finish_reason
    record.prompt_tokens, record.cached_tokens = result.usage.prompt_tokens, result.usage.cached_tokens
    record.completion_tokens = result.usage.completion_tokens
    record.forced_tokens = 0 if result.constraint is None else result.constraint.forced_tokens
    if result.timings.prefill_s and record.start is not None:
        record.admitted = min(record.start + result.timings.queue_s, record.end)
        if record.first_token is None:
            record.first_token = min(record.admitted + result.timings.prefill_s, record.end)
    if result.prompt_ids is not None:
        ids = result.prompt_ids
        record.prompt_ids = ids if isinstance(ids, array) else array("i", ids)
    if result.token_ids is not None:
        record.output_ids = array("i", result.token_ids)
    branch.program.log.emit("call_end", record)


def _failed(branch: Branch, record: CallRecord, error: BaseException) -> None:
    cancelled = isinstance(error, asyncio.CancelledError)
    if record.end is None:
        record.error = "cancelled" if cancelled else str(error) or type(error).__name__
        record.end = time.monotonic()
        record.finish = "cancelled" if cancelled else "error"
        branch.program.log.emit("call_end", record)


def _known(composed: Composed, result: Result, record: CallRecord) -> Known | None:
    """Token ids up to the end of the answer: the prompt's, and those of the output whose text is kept whole."""
    if record.prompt_ids is None or result.token_ids is None:
        return None
    if result.kept is not None:
        kept, text = result.kept, result.text.removesuffix(result.tail)
    elif isinstance(result.matched_stop, str):
        kept, text = 0, ""
    elif isinstance(result.matched_stop, int):
        kept, text = len(result.token_ids) - 1, result.text
    else:
        kept, text = len(result.token_ids), result.text
    if composed.text.endswith(HALF) and text.startswith(HALF):  # together their tokens may be another character
        kept, text = 0, ""
    ids = record.prompt_ids[:]
    ids.extend(result.token_ids[:kept])
    return Known(ids, composed.text + text)


def _meta(result: Result, record: CallRecord) -> Meta:
    return Meta(
        result.text,
        record.id,
        result.token_ids,
        result.finish_reason,
        result.usage,
        result.timings,
        matched_stop=result.matched_stop,
        logprobs=result.logprobs,
        forced_close=result.forced_close,
        constraint=result.constraint,
        tool_calls=result.tool_calls,
    )
