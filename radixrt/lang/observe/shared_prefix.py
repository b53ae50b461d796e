"""What prompts have in common at their beginning: for traces and reports, which say a shared prefix once."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from radixrt.lang.observe.run_log import CallRecord


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """How many items two texts, or two arrays of ids, begin with in common."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:  # comparing slices is one memcmp; a Python loop over 100,000 characters is not
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True)
class Shared:
    """A call's prompt, told by that of an earlier call.

    Attributes:
        base: that call's id, None if none has anything in common.
        chars, tokens: what the two prompts begin with in common; the call's own text and ids follow.
    """

    base: int | None = None
    chars: int = 0
    tokens: int = 0


class Sharing:
    """The calls of one run, and with which earlier one each has most in common: one that it goes on from, the latest of
    its siblings, or the latest of all.

    Attributes:
        calls: those added, by id.
    """

    def __init__(self) -> None:
        self.calls: dict[int, CallRecord] = {}
        self._latest: int | None = None
        self._latest_after: dict[tuple[int, ...], int] = {}

    def add(self, call: CallRecord) -> Shared:
        """Take a call whose prompt will not change any more."""
        best = Shared()
        for number in {*call.depends, self._latest_after.get(call.depends), self._latest}:
            other = None if number is None or number == call.id else self.calls.get(number)
            if other is None:
                continue
            chars = common_prefix(call.prompt_text, other.prompt_text)
            tokens = common_prefix(ids_of(call), ids_of(other))
            if (tokens, chars) > (best.tokens, best.chars):
                best = Shared(other.id, chars, tokens)
        self.calls[call.id] = call
        self._latest = self._latest_after[call.depends] = call.id
        return best


def ids_of(call: CallRecord) -> array[int]:
    """The prompt's ids; empty where the backend told none."""
    return call.prompt_ids if call.prompt_ids is not None else array("i")
