"""Multiples of a number as a language of plain decimals.

Where the divisor goes into a small power of ten, the last digits decide and an ordinary expression says so. Else a
`Remainder` node carries the value modulo the divisor; it is an automaton with as many states as the divisor has units.
"""

from __future__ import annotations

from decimal import Decimal
from math import gcd
from typing import Final

from radixrt.constrained.regex.algebra import alternate, chars, concat, literal, literals, optional, repeat
from radixrt.constrained.regex.base import EMPTY, Regex, RegexTooComplex
from radixrt.constrained.regex.charset import DIGITS, CharSet
from radixrt.constrained.regex.nodes import EPSILON, remainder_node

_LAST_DIGITS: Final = 3
MAX_DIGITS: Final = 100
_DIGIT: Final = chars(DIGITS)
_DIGITS: Final = repeat(_DIGIT)
_ZERO: Final = literal("0")
_ZEROS: Final = repeat(_ZERO)
_NONZERO: Final = chars(CharSet.of("123456789"))
_POINT: Final = literal(".")


def remainder(
    divisor: int, carry: int = 0, scale: int | None = None, *, point: bool = False, pending: bool = False
) -> Regex:
    """What may follow in a plain decimal so that it becomes a multiple of divisor / 10**scale; see `Remainder`."""
    carry %= divisor
    if divisor == 1 and not point and scale is None:
        return _DIGITS
    length = _missing(divisor, carry, scale, point, pending)
    return EMPTY if length is None else remainder_node(divisor, carry, scale, point, pending, length)


def _missing(divisor: int, carry: int, scale: int | None, point: bool, pending: bool) -> int | None:
    """The fewest characters that complete the number; None if nothing does.

    After n more digits the number is any of 10**n neighbours, one of which is a multiple iff -carry * 10**n modulo
    what is left of the divisor is below 10**n.
    """
    counted = scale or 0
    if point:
        for more in range(int(pending), max(counted, int(pending)) + 1):
            units = min(more, counted)
            if _reaches(divisor, carry, units, counted - units):
                return more
        return None
    more = 0
    while True:
        if _reaches(divisor, carry, more, counted):
            return more
        if (
            scale
            and more >= 2
            and any(_reaches(divisor, carry, more - 1, counted - used) for used in range(1, min(more - 1, counted) + 1))
        ):
            return more
        more += 1


def _reaches(divisor: int, carry: int, digits: int, scale: int) -> bool:
    left = divisor // gcd(divisor, 10**scale)
    within: int = 10**digits
    return -carry * within % left < within


def multiple_of(k: Decimal | int, *, integer: bool = False) -> Regex:
    """The plain decimals that are multiples of k > 0, without exponent and with zero written without a minus.

    With `integer` only those without a point.

    Raises:
        RegexTooComplex: k has more than MAX_DIGITS digits.
        ValueError: k is not above 0.
    """
    step = Decimal(k)
    if not step.is_finite() or step <= 0:
        raise ValueError("multiples are of a number above 0")
    digits, exponent = step.as_tuple().digits, int(step.as_tuple().exponent)
    if len(digits) + abs(exponent) > MAX_DIGITS:
        raise RegexTooComplex(f"a divisor has more than {MAX_DIGITS} digits")
    divisor, scale = int("".join(map(str, digits))), 0
    if exponent >= 0:
        divisor *= 10**exponent
    else:
        shared = gcd(divisor, 10**-exponent)
        divisor, denominator = divisor // shared, 10**-exponent // shared
        while 10**scale % denominator:
            scale += 1
        divisor *= 10**scale // denominator
    if integer:
        divisor, scale = divisor // gcd(divisor, 10**scale), 0
    places = next((places for places in range(_LAST_DIGITS + 1) if 10**places % divisor == 0), None)
    if places is not None and (scale == 0 or places <= scale <= _LAST_DIGITS or divisor == 1):
        return _by_last_digits(divisor, places, scale, integer)
    return _by_remainder(divisor, scale, integer)


def _signed(positive: Regex, zero: Regex) -> Regex:
    return alternate(zero, concat(optional(literal("-")), positive))


def _by_last_digits(divisor: int, places: int, scale: int, integer: bool) -> Regex:
    if scale:
        return _by_last_fraction_digits(divisor, scale)
    ending = EPSILON if integer else optional(concat(_POINT, repeat(_ZERO, 1)))
    if places == 0:
        return concat(_signed(concat(_NONZERO, _DIGITS), _ZERO), ending)
    multiples = range(0, 10**places, divisor)
    short = literals([str(multiple) for multiple in multiples if multiple])
    long = concat(_NONZERO, _DIGITS, literals([f"{multiple:0{places}d}" for multiple in multiples]))
    return concat(_signed(alternate(short, long), _ZERO), ending)


def _by_last_fraction_digits(divisor: int, scale: int) -> Regex:
    whole = concat(_NONZERO, _DIGITS)
    if divisor == 1:
        fraction = optional(concat(_POINT, repeat(_DIGIT, 1, scale), _ZEROS))
        small = [concat(repeat(_ZERO, at, at), _NONZERO, repeat(_DIGIT, 0, scale - 1 - at)) for at in range(scale)]
        below_one = concat(literal("0."), alternate(*small), _ZEROS)
    else:
        multiples = range(divisor, 10**scale, divisor)
        digits = literals([f"{multiple:0{scale}d}".rstrip("0") for multiple in multiples])
        below_one = concat(literal("0."), digits, _ZEROS)
        fraction = optional(concat(_POINT, alternate(concat(digits, _ZEROS), repeat(_ZERO, 1))))
    zero = concat(_ZERO, optional(concat(_POINT, repeat(_ZERO, 1))))
    return _signed(alternate(concat(whole, fraction), below_one), zero)


def _by_remainder(divisor: int, scale: int, integer: bool) -> Regex:
    places = None if integer else scale
    by_carry: dict[int, list[str]] = {}
    for digit in range(1, 10):
        by_carry.setdefault(digit % divisor, []).append(str(digit))
    options = [
        concat(chars(CharSet.of(digits)), remainder(divisor, carry, places)) for carry, digits in by_carry.items()
    ]
    for at in range(scale):
        for carry, digits in by_carry.items():
            rest = remainder(divisor, carry, scale - 1 - at, point=True)
            options.append(concat(literal("0." + "0" * at), chars(CharSet.of(digits)), rest))
    zero = _ZERO if integer else concat(_ZERO, optional(concat(_POINT, repeat(_ZERO, 1))))
    return _signed(alternate(*options), zero)
