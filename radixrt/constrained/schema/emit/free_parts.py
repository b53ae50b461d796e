"""Bounds on the texts of the parts that a schema leaves free, so that a model cannot write such a part without end.

The bounds are far above what answers need. They make the grammar a subset of the schema, and `structured.bounded` turns
them off.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from radixrt.constrained.regex import ANY_CHAR, CharSet, Regex, alternate, chars, concat, json_string, remainder, repeat
from radixrt.constrained.regex.charset import DIGITS
from radixrt.constrained.regex.nodes import Alternate, Complement, Concat, Intersect, Remainder, Repeat, subterms
from radixrt.constrained.schema.normal_form.numbers import NUMBER_TEXT, PLAIN_NUMBER_TEXT

MAX_UNDECLARED: Final = 16
"""Most members of an object that declares others and of which no keyword says anything."""
MAX_KEY_CHARS: Final = 256
"""Longest name of a member where no keyword says anything about names, in code points."""
MAX_STRING_CHARS: Final = 8_000
"""Longest string among values of which no keyword says anything, in code points."""
MAX_DIGITS: Final = 40
"""Most digits after the first digit and after the point, of a number without a bound on that side."""
MAX_READABLE_DIGITS: Final = 307
"""Most digits after the first digit where the caller asks for as many as there can be. A number of 308 digits is the
longest that every double holds, whatever its digits are; a reader of doubles would read a longer one as infinity, and
CPython refuses integers of more than 4,300 digits."""
MAX_SCALED_DIGITS: Final = 40
"""Most digits after the first digit of a number with an exponent, so that the number is a double."""

FREE_KEY: Final = json_string(repeat(ANY_CHAR, 0, MAX_KEY_CHARS), ":")
"""Names as JSON strings, each with its colon."""
FREE_STRING: Final = json_string(repeat(ANY_CHAR, 0, MAX_STRING_CHARS))
"""Strings as JSON texts."""
_DIGITS: Final = frozenset((chars(DIGITS), chars(CharSet.of("0"))))


@lru_cache(maxsize=1024)
def with_bounded_digits(number: Regex, most: int) -> Regex:
    """Return the texts of numbers without the texts that have more than `most` digits in a row.

    Intersections and complements, such as those with multiples of decimals, are returned as they are, because the
    states of their automata would be multiplied by the counts.

    Args:
        number: the texts of numbers.
        most: digits after the first digit, and digits after the point. Numbers with an exponent have at most
            MAX_SCALED_DIGITS.
    """
    if any(isinstance(part, Intersect | Complement) for part in subterms(number)):
        return number
    if number is NUMBER_TEXT and most > MAX_SCALED_DIGITS:
        return alternate(with_bounded_digits(PLAIN_NUMBER_TEXT, most), with_bounded_digits(number, MAX_SCALED_DIGITS))
    bounded: dict[Regex, Regex] = {}
    for part in subterms(number):
        if isinstance(part, Repeat):
            high = part.high
            if high is None and part.item in _DIGITS:
                high = max(part.low, most)
            bounded[part] = repeat(bounded[part.item], part.low, high)
        elif isinstance(part, Remainder) and part.scale is None and not part.point and part.left.most is None:
            most_left = max(part.min_length, most)
            left = part.left._replace(most=most_left)
            bounded[part] = remainder(part.divisor, part.carry, left=left, excluded=part.excluded)
        elif isinstance(part, Concat):
            bounded[part] = concat(bounded[part.head], bounded[part.tail])
        elif isinstance(part, Alternate):
            bounded[part] = alternate(*[bounded[option] for option in part.options])
        else:
            bounded[part] = part
    return bounded[number]
