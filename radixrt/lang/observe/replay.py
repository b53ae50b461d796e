"""`replay`: sends the calls of a trace to a server as a load, with the same arrivals and dependencies.

A replayed call gets another answer than the recorded one, of the same length. The next call's prompt must continue what
this server has in its cache, so the recorded output at its beginning is replaced by the new one.
"""

from __future__ import annotations

import asyncio
import uuid
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from radixrt.errors import ConfigError
from radixrt.lang.observe.replay_target import Answered, Question, Target
from radixrt.lang.observe.run_log import TEXT_KINDS, CallRecord, RunLog
from radixrt.lang.observe.shared_prefix import common_prefix, ids_of
from radixrt.messages.parts import ProgramHint

# --- the plan: calls, their times and their dependencies ---

Key = tuple[int, int]
"""Index of the run in the trace, and id of the call in it."""


@dataclass(frozen=True)
class Replayed:
    """Prompt and answer of a replayed call, as text and as token ids; ids are empty if they are not known."""

    prompt_text: str
    prompt_ids: Sequence[int]
    text: str
    ids: Sequence[int]


@dataclass(frozen=True)
class Base:
    """The call whose prompt and output begin a prompt: how much of the output, and where the rest begins."""

    call: Key
    output_ids: int
    output_chars: int
    rest_ids: int
    rest_chars: int


@dataclass(frozen=True)
class Planned:
    """One call to send.

    Attributes:
        after: calls that must have been answered.
        gap_s: seconds from the last of their answers until this call; from the trace's start if there are none.
        base: see `Base`; None if the prompt continues no other call.
        continues: another call continues this one.
    """

    key: Key
    call: CallRecord
    after: tuple[Key, ...]
    gap_s: float
    base: Base | None
    continues: bool

    def text(self, done: dict[Key, Replayed]) -> str:
        """Text of the prompt to send."""
        before = None if self.base is None else done.get(self.base.call)
        if self.base is None or before is None:
            return self.call.prompt_text
        kept = before.text[: self.base.output_chars]
        return before.prompt_text + kept + self.call.prompt_text[self.base.rest_chars :]

    def ids(self, done: dict[Key, Replayed]) -> list[int]:
        """Token ids of the prompt to send; empty if the trace has none."""
        before = None if self.base is None else done.get(self.base.call)
        recorded = ids_of(self.call)
        if self.base is None or before is None or not before.ids:
            return recorded.tolist()
        kept = before.ids[: self.base.output_ids]
        return [*before.prompt_ids, *kept, *recorded[self.base.rest_ids :]]


def plan(runs: Sequence[RunLog]) -> list[Planned]:
    """The calls of all runs that were answered in the recording, in the order in which they were queued."""
    first = min((log.unix_time for log in runs), default=0.0)
    planned: list[Planned] = []
    for index, log in enumerate(runs):
        answered = {call.id: call for call in log.calls if call.error is None and call.end is not None}
        bases = {call.id: _base(index, call, answered) for call in answered.values()}
        continued = {base.call[1] for base in bases.values() if base is not None}
        for call in answered.values():
            waits = [answered[other] for other in call.depends if other in answered]
            since = max((other.end or 0.0 for other in waits), default=log.start)
            gap_s = max(call.queued - since, 0.0) + (0.0 if waits else log.unix_time - first)
            planned.append(
                Planned(
                    key=(index, call.id),
                    call=call,
                    after=tuple((index, other.id) for other in waits),
                    gap_s=gap_s,
                    base=bases[call.id],
                    continues=call.id in continued,
                )
            )
    return sorted(planned, key=lambda one: one.call.queued - runs[one.key[0]].start + runs[one.key[0]].unix_time)


def _base(index: int, call: CallRecord, answered: dict[int, CallRecord]) -> Base | None:
    best: Base | None = None
    for number in call.depends:
        other = answered.get(number)
        if other is None or other.kind != "gen":
            continue  # the recorded choice is replayed unchanged
        ids = common_prefix(ids_of(call), ids_of(other) + (other.output_ids or array("i")))
        chars = common_prefix(call.prompt_text, other.prompt_text + other.text)
        output_ids, output_chars = ids - len(ids_of(other)), chars - len(other.prompt_text)
        if output_chars >= 0 and output_ids >= 0 and (best is None or (ids, chars) > (best.rest_ids, best.rest_chars)):
            best = Base((index, number), output_ids, output_chars, ids, chars)
    return best


# --- the replay ---


@dataclass
class Replay:
    """Results of a replay.

    Attributes:
        seconds: from the first call sent to the last answer.
        answers: answers by call.
        program_s: seconds of each run that had calls, from its first call to its last answer.
    """

    seconds: float = 0.0
    answers: dict[Key, Answered] = field(default_factory=dict)
    program_s: dict[int, float] = field(default_factory=dict)


async def replay(
    runs: Sequence[RunLog], target: Target, *, speed: float = 1.0, concurrency: int | None = None, hints: bool = True
) -> Replay:
    """Replay the runs.

    Args:
        speed: factor by which arrivals and pauses are faster than recorded; inf sends each call once it is ready.
        concurrency: maximum number of open calls; None for no limit.
        hints: send program hints to a radixrt server.
    """
    return await _Run(plan(runs), target, speed, concurrency, hints).run()


class _Run:
    def __init__(
        self, calls: Sequence[Planned], target: Target, speed: float, concurrency: int | None, hints: bool
    ) -> None:
        self._calls = calls
        self._target = target
        self._speed = speed
        self._hints = hints
        self._slots = asyncio.Semaphore(concurrency or max(len(calls), 1))
        self._ended: dict[Key, asyncio.Future[float]] = {}
        self._done: dict[Key, Replayed] = {}
        self._sent: dict[int, float] = {}
        self._programs = {one.key[0]: uuid.uuid4().hex for one in calls}
        self._left = {index: sum(one.key[0] == index for one in calls) for index in self._programs}
        self._result = Replay()

    async def run(self) -> Replay:
        loop = asyncio.get_running_loop()
        self._ended = {one.key: loop.create_future() for one in self._calls}
        start = loop.time()
        async with asyncio.TaskGroup() as tasks:
            for one in self._calls:
                tasks.create_task(self._one(one, start))
        ends = [future.result() for future in self._ended.values()]
        self._result.seconds = max(ends, default=0.0) - min(self._sent.values(), default=0.0)
        return self._result

    async def _one(self, one: Planned, start: float) -> None:
        loop, index = asyncio.get_running_loop(), one.key[0]
        since = max([await self._ended[other] for other in one.after], default=start)
        await asyncio.sleep(max(since + one.gap_s / self._speed - loop.time(), 0.0))
        async with self._slots:
            question = self._question(one)
            self._sent.setdefault(index, loop.time())
            answer = await self._target.ask(question)
        self._result.answers[one.key] = answer
        if answer.error is None:
            self._done[one.key] = Replayed(question.text, question.ids, answer.text, answer.ids)
        self._ended[one.key].set_result(loop.time())
        self._left[index] -= 1
        if not self._left[index]:
            self._result.program_s[index] = loop.time() - self._sent[index]
            if self._hints:
                await self._target.release(self._programs[index])

    def _question(self, one: Planned) -> Question:
        hint = None
        if self._hints:
            call = one.call
            hint = ProgramHint(self._programs[one.key[0]], call.branch, call.fork_len, call.siblings, one.continues)
        ids = one.ids(self._done) if self._target.ids else []
        return Question(one.call, ids, one.text(self._done), hint)


# --- the table ---


def table(runs: Sequence[RunLog], result: Replay, target: Target) -> str:
    """Table of recorded and replayed figures."""
    calls = [one.call for one in plan(runs)]
    answers = [answer for answer in result.answers.values() if answer.error is None]
    spans = [log.end - log.start for log in runs if log.end is not None]
    recorded = _Column(
        programs=len(runs),
        seconds=_span(runs),
        calls=[call.end - call.start for call in calls if call.end is not None and call.start is not None],
        first=[
            call.first_token - call.start for call in calls if call.first_token is not None and call.start is not None
        ],
        program_s=spans,
        failed=sum(call.error is not None for log in runs for call in log.calls),
        prompt=sum(call.prompt_tokens for call in calls),
        cached=sum(call.cached_tokens for call in calls),
        output=sum(call.completion_tokens for call in calls),
    )
    told = [answer.cached_tokens for answer in answers if answer.cached_tokens is not None]
    replayed = _Column(
        programs=len(result.program_s),
        seconds=result.seconds,
        calls=[answer.seconds for answer in answers],
        first=[answer.first_s for answer in answers if answer.first_s is not None],
        program_s=list(result.program_s.values()),
        failed=len(result.answers) - len(answers),
        prompt=sum(answer.prompt_tokens for answer in answers),
        cached=sum(told) if len(told) == len(answers) else None,
        output=sum(answer.output_tokens for answer in answers),
    )
    left, right = recorded.rows(), replayed.rows()
    lines = [f"replayed on {target.name}", "", f"{'':26}{'recorded':>16}{'replayed':>16}"]
    lines += [f"{name:26}{left[name]:>16}{right[name]:>16}" for name in left]
    errors = sorted({answer.error for answer in result.answers.values() if answer.error is not None})
    lines += ["", *(f"error: {error[:200]}" for error in errors[:5])] if errors else []
    return "\n".join(lines)


@dataclass(frozen=True)
class _Column:
    programs: int
    seconds: float
    calls: Sequence[float]
    first: Sequence[float]
    program_s: Sequence[float]
    failed: int
    prompt: int
    cached: int | None
    output: int

    def rows(self) -> dict[str, str]:
        rows = {
            "programs": f"{self.programs:,}",
            "calls answered": f"{len(self.calls):,}",
            "calls failed": f"{self.failed:,}",
            "time, s": f"{self.seconds:.2f}",
            "calls per s": _per(len(self.calls), self.seconds),
            "output tokens per s": _per(self.output, self.seconds),
            "prompt tokens": f"{self.prompt:,}",
            "  reused": "not told" if self.cached is None else f"{self.cached:,}",
            "  hit rate": "not told" if self.cached is None else f"{self.cached / max(self.prompt, 1):.1%}",
            "  computed": "not told" if self.cached is None else f"{self.prompt - self.cached:,}",
            "output tokens": f"{self.output:,}",
        }
        for name, times in (("call", self.calls), ("first token", self.first), ("program", self.program_s)):
            for percent in (50, 90, 99):
                nearest = np.percentile(times, percent, method="inverted_cdf") if times else None
                rows[f"{name} p{percent}, s"] = "-" if nearest is None else f"{nearest:.3f}"
        return rows


def _per(number: int, seconds: float) -> str:
    return f"{number / seconds:.2f}" if seconds else "-"


def _span(runs: Sequence[RunLog]) -> float:
    ends = [log.end - log.start + log.unix_time for log in runs if log.end is not None]
    return max(ends) - min(log.unix_time for log in runs) if ends else 0.0


# --- the command ---


def command(
    path: str, base_url: str, *, api_key: str | None, model: str | None, speed: float, concurrency: int | None,
    send: str, plain: bool,
) -> int:  # fmt: skip
    """`radixrt replay`. Returns 1 if calls failed that were answered when they were recorded.

    Raises:
        RadixRTError: the trace cannot be read, or the server cannot be reached.
    """
    from radixrt.lang.observe.replay_target import find_target
    from radixrt.lang.observe.trace import read_trace

    try:
        runs = read_trace(path)
    except OSError as error:
        raise ConfigError(f"the trace {path} cannot be read: {error.strerror}") from None
    planned = plan(runs)
    sample = next((one.call for one in planned if not one.after and one.call.kind not in TEXT_KINDS), None)

    async def run() -> tuple[Replay, Target]:
        target = await find_target(base_url, api_key, model, send, plain, sample)  # type: ignore[arg-type]
        try:
            return await replay(runs, target, speed=speed, concurrency=concurrency, hints=not plain), target
        finally:
            await target.aclose()

    how = "as fast as the calls allow" if speed == float("inf") else f"at {speed:g} times the recorded speed"
    print(f"{len(planned):,} calls of {len(runs):,} programs, {how}", flush=True)
    result, target = asyncio.run(run())
    print(table(runs, result, target))
    return int(any(answer.error is not None for answer in result.answers.values()))
