"""From an ECMA-262 pattern to a regular language."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from radixrt.constrained.regex.assertions import resolve
from radixrt.constrained.regex.base import MAX_DEPTH, Regex, RegexTooComplex
from radixrt.constrained.regex.pattern_tree import RegexError
from radixrt.constrained.regex.syntax import Reader

MAX_PATTERN: Final = 10_000


@lru_cache(maxsize=512)
def parse_regex(pattern: str, *, search: bool) -> Regex:
    """The texts that a pattern matches, as ECMA-262 reads it with the flag u.

    Args:
        pattern: at most 10,000 characters.
        search: True: texts in which the pattern is found somewhere (the `pattern` of JSON Schema); False: texts that
            it matches as a whole.

    Raises:
        RegexError: the pattern cannot be read or is not regular; says where.
    """
    if len(pattern) > MAX_PATTERN:
        raise RegexError(f"the pattern has {len(pattern)} characters; at most {MAX_PATTERN} are taken", MAX_PATTERN)
    try:
        return read_pattern(pattern, search=search)
    except RegexTooComplex as error:
        raise RegexError(str(error), 0) from None


def read_pattern(pattern: str, *, search: bool) -> Regex:
    """`parse_regex` for a pattern of any length."""
    made = resolve(Reader(pattern).read(), search=search)
    if made.depth > MAX_DEPTH // 2:
        raise RegexError("repetitions and alternatives are nested too deep", 0)
    return made
