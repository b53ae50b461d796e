"""`shared_lengths`: number of tokens of each planned prompt that the scheduler will find cached when the call arrives.

Calls that become ready at the same time are admitted together. A call waits only if it shares at least KIN_DEFER_TOKENS
tokens with a call that is being computed (`radixrt.scheduler.admission.PrefillPrefixes`). With fewer common tokens each
call computes its own prompt, unless a call arrives a step later and finds these few tokens cached too.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

from radixrt.lang.observe.run_log import TEXT_KINDS, CallRecord
from radixrt.lang.observe.shared_prefix import common_prefix, ids_of
from radixrt.scheduler.admission import KIN_DEFER_TOKENS

Records = Mapping[int, CallRecord]
Outputs = Mapping[int, tuple[int, ...]]
"""For each call, the calls whose outputs are in its prompt."""

TOKEN_BYTES = 4


def shared_lengths(records: Records, outputs: Outputs) -> dict[int, int]:
    """Return the number of cached tokens of each call by id, outputs of other calls excluded.

    The numbers are exact on an engine with an empty cache and room for the program, except for the few tokens described
    in the module's docstring.
    """
    together: dict[tuple[int, ...], list[CallRecord]] = {}  # calls that become ready at the same time
    for call in records.values():
        if call.kind not in TEXT_KINDS:
            together.setdefault(call.depends, []).append(call)
    computed: dict[tuple[int, ...], _Prompts] = {}
    found: dict[int, int] = {}
    for depends, calls in together.items():
        earlier = [computed[key] for key in _earlier(depends, records) if key in computed]
        computed[depends] = prompts = _Prompts()
        waiting = [_Waiting(call, *_certain(call, earlier, records, outputs)) for call in calls]
        while waiting:
            waiting = _admit(waiting, prompts, records, outputs, found)
    return found


class _Prompts:
    """Prompts in order of their tokens, so that neighbours have the longest prefixes in common."""

    def __init__(self) -> None:
        self._sorted: list[tuple[bytes, int]] = []

    def add(self, call: CallRecord) -> None:
        insort(self._sorted, (ids_of(call).tobytes(), call.id))

    def longest(self, call: CallRecord) -> tuple[int, int | None]:
        """The longest prefix in common with one of the prompts, in tokens, and the id of its call."""
        key = ids_of(call).tobytes()
        at = bisect_left(self._sorted, (key, -1))
        best: tuple[int, int | None] = (0, None)
        for other, number in self._sorted[max(at - 1, 0) : at + 1]:
            best = max(best, (common_prefix(key, other) // TOKEN_BYTES, number), key=lambda pair: pair[0])
        return best


class _Waiting:
    """A call that is ready.

    Attributes:
        cached: number of cached prompt tokens.
        generated: number of cached prompt tokens that calls have generated.
    """

    def __init__(self, call: CallRecord, cached: int, generated: int) -> None:
        self.call = call
        self.cached = cached
        self.generated = generated


def _admit(
    waiting: Sequence[_Waiting], computed: _Prompts, records: Records, outputs: Outputs, found: dict[int, int]
) -> list[_Waiting]:
    """Admit the calls of a step; return the calls that wait for prefixes computed in the step."""
    computing: list[CallRecord] = []
    prefixes: dict[int, set[bytes]] = {}  # of the prompts being computed, by length
    deferred = []
    for one in waiting:
        length, number = computed.longest(one.call)
        length = min(length, one.call.prompt_tokens - 1)
        if number is not None and length > one.cached:
            one.cached, one.generated = length, _generated(one.call, records[number], length, records, outputs)
        end = one.cached + KIN_DEFER_TOKENS
        if end not in prefixes:
            prefixes[end] = {ids_of(other)[:end].tobytes() for other in computing}
        ids = ids_of(one.call)
        if end < len(ids) and ids[:end].tobytes() in prefixes[end]:
            deferred.append(one)
            continue
        found[one.call.id] = one.cached - one.generated
        computing.append(one.call)
        for end, known in prefixes.items():
            if len(ids) >= end:
                known.add(ids[:end].tobytes())
    for call in computing:
        computed.add(call)
    return deferred


def _earlier(depends: tuple[int, ...], records: Records) -> list[tuple[int, ...]]:
    """Keys of the calls that were ready before these dependencies had ended."""
    found: dict[tuple[int, ...], None] = {}
    pending = list(depends)
    while pending:
        other = records.get(pending.pop())
        if other is not None and other.depends not in found:
            found[other.depends] = None
            pending += other.depends
    return list(found)


def _certain(call: CallRecord, earlier: Sequence[_Prompts], records: Records, outputs: Outputs) -> tuple[int, int]:
    """Tokens that are cached before the call is ready, and how many of them are outputs: those that its prompt shares
    with an earlier prompt, or with the prompt and the output of a call that it depends on."""
    best, generated = 0, 0
    most = max(call.prompt_tokens - 1, 0)  # the last token of a prompt is always computed
    for prompts in earlier:
        length, number = prompts.longest(call)
        if number is not None and min(length, most) > best:
            best = min(length, most)
            generated = _generated(call, records[number], best, records, outputs)
    for number in call.depends:
        other = records.get(number)
        if other is None or other.kind in TEXT_KINDS:
            continue
        whole = ids_of(other) + other.output_ids if other.output_ids is not None else ids_of(other)
        length = min(common_prefix(ids_of(call), whole), most)
        if length > best:
            best, generated = length, _generated(call, other, length, records, outputs)
    return best, generated


def _generated(call: CallRecord, other: CallRecord, length: int, records: Records, outputs: Outputs) -> int:
    """Number of output tokens in the first `length` tokens that a prompt has in common with another call."""
    within = {*outputs[other.id], *([other.id] if length > other.prompt_tokens else [])}
    both = within & set(outputs[call.id])
    return min(sum(len(records[number].output_ids or ()) for number in both), length)
