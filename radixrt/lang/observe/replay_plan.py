"""What a replay sends and when: the calls of a trace, what each waits for, and what its prompt goes on from.

A replayed call answers something else than the recorded one did, but as long. So that the next call's prompt goes on
from what this server has in its cache, the recorded output at its beginning is replaced by the new one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from radixrt.lang.observe.run_log import CallRecord, RunLog
from radixrt.lang.observe.shared_prefix import common_prefix, ids_of

Key = tuple[int, int]
"""Index of the run in the trace, and id of the call in it."""


@dataclass(frozen=True)
class Replayed:
    """The prompt that a call was replayed with, and its answer; each as text and as ids, as far as they are known."""

    prompt_text: str
    prompt_ids: Sequence[int]
    text: str
    ids: Sequence[int]


@dataclass(frozen=True)
class Base:
    """The call whose prompt and output a prompt begins with: how much of its output, and where the rest begins."""

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
        gap_s: seconds from the last of their answers to asking for this one; from the trace's start where there is
            none to wait for.
        base: see `Base`; None where the prompt goes on from no other call.
        continues: another call goes on from this one.
    """

    key: Key
    call: CallRecord
    after: tuple[Key, ...]
    gap_s: float
    base: Base | None
    continues: bool

    def text(self, done: dict[Key, Replayed]) -> str:
        """The prompt to send, as text."""
        before = None if self.base is None else done.get(self.base.call)
        if self.base is None or before is None:
            return self.call.prompt_text
        kept = before.text[: self.base.output_chars]
        return before.prompt_text + kept + self.call.prompt_text[self.base.rest_chars :]

    def ids(self, done: dict[Key, Replayed]) -> list[int]:
        """The prompt to send, as token ids; empty where the trace has none."""
        before = None if self.base is None else done.get(self.base.call)
        recorded = ids_of(self.call)
        if self.base is None or before is None or not before.ids:
            return recorded.tolist()
        kept = before.ids[: self.base.output_ids]
        return [*before.prompt_ids, *kept, *recorded[self.base.rest_ids :]]


def plan(runs: Sequence[RunLog]) -> list[Planned]:
    """The calls of all runs that got an answer when they were recorded, in the order in which they were asked for."""
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
        if other is None or other.kind == "select":
            continue  # a choice is what it was
        ids = common_prefix(ids_of(call), ids_of(other) + (other.output_ids or array("i")))
        chars = common_prefix(call.prompt_text, other.prompt_text + other.text)
        output_ids, output_chars = ids - len(ids_of(other)), chars - len(other.prompt_text)
        if output_chars >= 0 and output_ids >= 0 and (best is None or (ids, chars) > (best.rest_ids, best.rest_chars)):
            best = Base((index, number), output_ids, output_chars, ids, chars)
    return best
