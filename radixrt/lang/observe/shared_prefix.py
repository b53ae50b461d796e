"""Common prefixes of prompts, for traces and reports, which write a shared prefix once."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from radixrt.lang.observe.run_log import CallRecord


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the common prefix of two texts, or of two arrays of ids."""
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
    """The prefix that a call's prompt shares with an earlier call's.

    Attributes:
        base: id of the earlier call; None if no call shares a prefix.
        chars, tokens: length of the prefix in characters and in tokens.
    """

    base: int | None = None
    chars: int = 0
    tokens: int = 0


class Sharing:
    """Finds the earlier call of a run that shares the longest prefix with a new call. Candidates are the calls that it
    depends on, its latest sibling, and the latest call of all.

    Attributes:
        calls: added calls by id.
    """

    def __init__(self) -> None:
        self.calls: dict[int, CallRecord] = {}
        self._latest: int | None = None
        self._latest_after: dict[tuple[int, ...], int] = {}

    def add(self, call: CallRecord) -> Shared:
        """Add a call whose prompt is final."""
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
    """Token ids of the prompt; empty if the backend reported none."""
    return call.prompt_ids if call.prompt_ids is not None else array("i")
