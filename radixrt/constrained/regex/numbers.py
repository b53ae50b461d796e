"""JSON numbers within bounds as languages. A bound of n digits costs about n nodes."""

from __future__ import annotations

from decimal import Decimal
from functools import cache, lru_cache
from typing import Final

from radixrt.constrained.regex.algebra import alternate, chars, concat, literal, optional, repeat
from radixrt.constrained.regex.charset import DIGITS, CharSet
from radixrt.constrained.regex.nodes import EMPTY, EPSILON, Regex, RegexTooComplex

MAX_DIGITS: Final = 1000
DIGIT: Final = chars(DIGITS)
ANY_DIGITS: Final = repeat(DIGIT)
NONZERO: Final = chars(CharSet.of("123456789"))
MINUS: Final = literal("-")
ZERO: Final = literal("0")
ZEROS: Final = repeat(ZERO)
POINT: Final = literal(".")
_INTEGER: Final = alternate(ZERO, concat(NONZERO, ANY_DIGITS))
_EXPONENT: Final = concat(chars(CharSet.of("eE")), optional(chars(CharSet.of("+-"))), repeat(DIGIT, 1))
ANY_NUMBER: Final = concat(optional(MINUS), _INTEGER, optional(concat(POINT, repeat(DIGIT, 1))), optional(_EXPONENT))


@cache
def _digit(first: int, last: int) -> Regex:
    """One digit from first to last."""
    return chars(CharSet.span(48 + first, 48 + last)) if first <= last else EMPTY


@lru_cache(maxsize=1024)
def integer_range(low: int | None, high: int | None) -> Regex:
    """The integers from low to high, both included; None is no bound. No leading zero, no `-0`.

    Raises:
        RegexTooComplex: a bound has more than MAX_DIGITS digits.
    """
    for bound in (low, high):
        if bound is not None and abs(bound) >= _LARGEST:
            raise RegexTooComplex(f"a bound has more than {MAX_DIGITS} digits")
    options = []
    if high is None or high >= 0:
        options.append(_from_zero(max(low or 0, 0), high))
    if low is None or low < 0:
        options.append(
            concat(MINUS, _from_zero(max(1, -high if high is not None else 1), None if low is None else -low))
        )
    return alternate(*options)


_LARGEST: Final = 10**MAX_DIGITS


def _from_zero(low: int, high: int | None) -> Regex:
    """The integers from low >= 0 to high."""
    if high is not None and low > high:
        return EMPTY
    if low == 0:
        return alternate(ZERO, _from_zero(1, high))
    bottom = str(low)
    if high is None:
        return alternate(_at_least(bottom), concat(NONZERO, repeat(DIGIT, len(bottom))))
    top = str(high)
    if len(bottom) == len(top):
        return _between(bottom, top)
    between = concat(NONZERO, repeat(DIGIT, len(bottom), len(top) - 2))
    return alternate(_at_least(bottom), between, _between("1" + "0" * (len(top) - 1), top))


def _at_least(bottom: str) -> Regex:
    """Digit strings as long as bottom that are not less."""
    free = len(bottom) - len(bottom.rstrip("0"))
    result = repeat(DIGIT, free, free)
    for at in range(len(bottom) - 1 - free, -1, -1):
        digit = int(bottom[at])
        rest = len(bottom) - 1 - at
        greater = concat(_digit(digit + 1, 9), repeat(DIGIT, rest, rest))
        result = alternate(concat(_digit(digit, digit), result), greater)
    return result


def _at_most(top: str) -> Regex:
    """Digit strings as long as top that are not greater."""
    free = len(top) - len(top.rstrip("9"))
    result = repeat(DIGIT, free, free)
    for at in range(len(top) - 1 - free, -1, -1):
        digit = int(top[at])
        rest = len(top) - 1 - at
        less = concat(_digit(0, digit - 1), repeat(DIGIT, rest, rest))
        result = alternate(concat(_digit(digit, digit), result), less)
    return result


def _between(bottom: str, top: str) -> Regex:
    """Digit strings as long as bottom and top, from bottom to top."""
    same = 0
    while same < len(top) and bottom[same] == top[same]:
        same += 1
    if same == len(top):
        return literal(top)
    low, high, rest = int(bottom[same]), int(top[same]), len(top) - same - 1
    differing = alternate(
        concat(_digit(low, low), _at_least(bottom[same + 1 :])),
        concat(_digit(low + 1, high - 1), repeat(DIGIT, rest, rest)),
        concat(_digit(high, high), _at_most(top[same + 1 :])),
    )
    return concat(literal(top[:same]), differing)


def number_range(
    low: Decimal | int | None,
    high: Decimal | int | None,
    *,
    exclusive_low: bool = False,
    exclusive_high: bool = False,
) -> Regex:
    """The numbers between two bounds, None being no bound.

    With a bound they are plain decimals without exponent, with any number of fraction digits, and zero has no minus;
    without any they are all spellings of JSON numbers.

    Raises:
        RegexTooComplex: a bound has more than MAX_DIGITS digits.
    """
    if low is None and high is None:
        return ANY_NUMBER
    bottom = None if low is None else _checked(low)
    top = None if high is None else _checked(high)
    options = []
    if top is None or top >= 0:
        if bottom is None or bottom < 0:
            options.append(_decimals(Decimal(0), False, top, exclusive_high))
        else:
            options.append(_decimals(bottom, exclusive_low, top, exclusive_high))
    if bottom is None or bottom < 0:
        largest = None if bottom is None else bottom.copy_negate()
        if top is None or top >= 0:
            negative = _decimals(Decimal(0), True, largest, exclusive_low)
        else:
            negative = _decimals(top.copy_negate(), exclusive_high, largest, exclusive_low)
        options.append(concat(MINUS, negative))
    return alternate(*options)


def _checked(bound: Decimal | int) -> Decimal:
    value = Decimal(bound)
    if not value.is_finite() or abs(value.adjusted()) > MAX_DIGITS or len(value.as_tuple().digits) > MAX_DIGITS:
        raise RegexTooComplex(f"a bound is not a number of at most {MAX_DIGITS} digits")
    return value


def _decimals(low: Decimal, above: bool, high: Decimal | None, below: bool) -> Regex:
    """Plain decimals from low >= 0 (not itself if above) to high (not itself if below)."""
    floor, low_fraction = _split(low)
    from_low = None if not low_fraction and not above else low_fraction
    if high is None:
        first = concat(integer_range(floor, floor), _fraction(from_low, above, None, False))
        return alternate(first, concat(integer_range(floor + 1, None), _fraction(None, False, None, False)))
    if low > high:
        return EMPTY
    ceiling, high_fraction = _split(high)
    if floor == ceiling:
        return concat(integer_range(floor, floor), _fraction(from_low, above, high_fraction, below))
    return alternate(
        concat(integer_range(floor, floor), _fraction(from_low, above, None, False)),
        concat(integer_range(floor + 1, ceiling - 1), _fraction(None, False, None, False)),
        concat(integer_range(ceiling, ceiling), _fraction(None, False, high_fraction, below)),
    )


def _split(value: Decimal) -> tuple[int, str]:
    """Integer part, and fraction digits without trailing zeros."""
    whole, _, fraction = f"{value:f}".partition(".")
    return int(whole), fraction.rstrip("0")


def _fraction(low: str | None, above: bool, high: str | None, below: bool) -> Regex:
    """A point and fraction digits, or nothing, from 0.low (None: no bound) to 0.high (None: no bound)."""
    absent = low is None and (high is None or high != "" or not below)
    digits = _fraction_digits(low, above, high, below)
    return alternate(EPSILON if absent else EMPTY, concat(POINT, digits))


def _fraction_digits(low: str | None, above: bool, high: str | None, below: bool) -> Regex:
    """One or more fraction digits between the bounds. A bound has no trailing zeros; low "" means above 0 strictly."""
    if low is None:
        return _below(high, below)
    same: list[str] = []
    while high is not None:
        if low == "" and not above:
            return concat(literal("".join(same)), _at_or_below(high, below))
        if high == "":
            return EMPTY
        first, last = int(low[:1] or 0), int(high[0])
        if first != last:
            differing = alternate(
                concat(_digit(first, first), _at_or_above(low[1:], above)),
                concat(_digit(first + 1, last - 1), ANY_DIGITS),
                concat(_digit(last, last), _at_or_below(high[1:], below)),
            )
            return EMPTY if first > last else concat(literal("".join(same)), differing)
        same.append(high[0])
        low, high = low[1:], high[1:]
    return _at_or_above(low, above)


def _at_or_above(low: str, above: bool) -> Regex:
    """The rest of a fraction that equals the lower bound so far, whose remaining digits are low."""
    result = concat(ZEROS, NONZERO, ANY_DIGITS) if above else ANY_DIGITS
    for char in reversed(low):
        digit = int(char)
        result = alternate(concat(_digit(digit, digit), result), concat(_digit(digit + 1, 9), ANY_DIGITS))
    return result


def _at_or_below(high: str, below: bool) -> Regex:
    """The rest of a fraction that equals the upper bound so far, whose remaining digits are high."""
    ends = high != "" or not below
    return alternate(EPSILON if ends else EMPTY, _below(high, below))


def _below(high: str | None, below: bool) -> Regex:
    """One or more fraction digits, up to the upper bound whose digits left are high."""
    if high is None:
        return repeat(DIGIT, 1)
    result = EMPTY if below else repeat(ZERO, 1)
    for at in range(len(high) - 1, -1, -1):
        digit = int(high[at])
        ends = at + 1 < len(high) or not below
        follow = alternate(EPSILON if ends else EMPTY, result)
        result = alternate(concat(_digit(digit, digit), follow), concat(_digit(0, digit - 1), ANY_DIGITS))
    return result
