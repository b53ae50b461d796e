"""Languages with smaller counts, in which a short text may begin as in the original ones."""

from __future__ import annotations

from collections.abc import Callable

from radixrt.constrained.regex.algebra import concat, repeat
from radixrt.constrained.regex.charset import CharSet
from radixrt.constrained.regex.nodes import Concat, Regex, Repeat

MIN_COUNT = 8
"""Smaller counts stay: computing the few masks that they could share takes less than finding the longest token."""


def small_counts(regex: Regex, longest: Callable[[CharSet], int]) -> Regex:
    """Return a language with the same beginnings, as far as a token goes, that counts no further than necessary.

    Every item of a repetition has a character at least, so that a token holds no more items than characters of their
    alphabet. A repetition of more items than that is like one of just one more. Repetitions in the first two parts of a
    sequence are made smaller: a repetition itself, and one behind an item that has been begun. A repetition of a
    single string stays, because a library may look further ahead where the text is forced.

    Args:
        longest: a bound on the characters of a set that a token can begin with.
    """
    if not isinstance(regex, Concat):
        return _small(regex, regex.alphabet(), longest)
    head, tail = regex.head, regex.tail
    small_head = _small(head, head.alphabet(), longest)
    second = tail.head if isinstance(tail, Concat) else tail
    small_second = _small(second, head.alphabet() | second.alphabet(), longest)
    if small_head is head and small_second is second:
        return regex
    rest = concat(small_second, tail.tail) if isinstance(tail, Concat) else small_second
    return concat(small_head, rest)


def _small(regex: Regex, alphabet: CharSet, longest: Callable[[CharSet], int]) -> Regex:
    """Return a repetition with counts that a token over `alphabet` cannot exceed; any other language as it is."""
    if not isinstance(regex, Repeat) or regex.has_boolean or regex.item.min_length == 0 or regex.item.text is not None:
        return regex
    if max(regex.low, regex.high or 0) < MIN_COUNT:
        return regex
    most = longest(alphabet) + 1
    return repeat(regex.item, min(regex.low, most), None if regex.high is None else min(regex.high, most))
