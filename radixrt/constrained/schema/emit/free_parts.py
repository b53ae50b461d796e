"""Bounds on the texts of the parts that a schema leaves free, so that a model cannot write such a part without end.

The bounds are far above what answers need. They make the grammar a subset of the schema, and `structured.bounded` turns
them off.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from radixrt.constrained.regex import ANY_CHAR, CharSet, Regex, alternate, chars, concat, json_string, repeat
from radixrt.constrained.regex.charset import DIGITS
from radixrt.constrained.regex.nodes import Alternate, Concat, Repeat, subterms

MAX_UNDECLARED: Final = 16
"""Most members of an object that declares others and of which no keyword says anything."""
MAX_KEY_CHARS: Final = 256
"""Longest name of a member where no keyword says anything about names, in code points."""
MAX_STRING_CHARS: Final = 8_000
"""Longest string among values of which no keyword says anything, in code points."""
MAX_DIGITS: Final = 40
"""Most digits before and after the point, and of an exponent, of a number without a bound on that side."""

FREE_KEY: Final = json_string(repeat(ANY_CHAR, 0, MAX_KEY_CHARS), ":")
"""Names as JSON strings, each with its colon."""
FREE_STRING: Final = json_string(repeat(ANY_CHAR, 0, MAX_STRING_CHARS))
"""Strings as JSON texts."""
_DIGITS: Final = frozenset((chars(DIGITS), chars(CharSet.of("0"))))


@lru_cache(maxsize=1024)
def with_bounded_digits(number: Regex) -> Regex:
    """Return the texts of numbers without the texts that have more than MAX_DIGITS digits in a row.

    A language of intersections and complements, such as multiples, is returned as it is, because the states of its
    automaton would be multiplied by the counts.
    """
    if number.has_boolean:
        return number
    bounded: dict[Regex, Regex] = {}
    for part in subterms(number):
        if isinstance(part, Repeat):
            most = part.high
            if most is None and part.item in _DIGITS:
                most = max(part.low, MAX_DIGITS)
            bounded[part] = repeat(bounded[part.item], part.low, most)
        elif isinstance(part, Concat):
            bounded[part] = concat(bounded[part.head], bounded[part.tail])
        elif isinstance(part, Alternate):
            bounded[part] = alternate(*[bounded[option] for option in part.options])
        else:
            bounded[part] = part
    return bounded[number]
