"""Multiples of a number as languages, and numbers with multiples that a library cannot execute.

Where a divisor goes into a small power of ten, the last digits decide and an ordinary expression describes its
multiples; elsewhere a `Remainder` node carries the value modulo the divisor, and the digits that the bounds leave.
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from math import gcd, lcm
from typing import Final

from radixrt.constrained.regex.algebra import alternate, chars, concat, literal, literals, optional, repeat
from radixrt.constrained.regex.automaton import Dfa
from radixrt.constrained.regex.boolean import intersect
from radixrt.constrained.regex.charset import CharSet
from radixrt.constrained.regex.derivatives import remainder
from radixrt.constrained.regex.nodes import (
    EPSILON,
    Alternate,
    Complement,
    Concat,
    DigitsLeft,
    Intersect,
    Regex,
    RegexTooComplex,
    Remainder,
    Repeat,
    subterms,
)
from radixrt.constrained.regex.numbers import (
    ANY_DIGITS,
    DIGIT,
    MAX_DIGITS,
    MINUS,
    NONZERO,
    POINT,
    ZERO,
    ZEROS,
    integer_range,
)

MAX_DIVISOR_DIGITS: Final = 100
MAX_EXCLUDED: Final = 32
"""Most numbers of which a number is no multiple. Each digit of the number takes a division by each of them."""
MAX_STATES: Final = 1_200
"""States of the largest automaton that is written as rules of a grammar. A number of 308 digits, which becomes rules
beside multiples, has 616."""
MAX_EXECUTED_STATES: Final = 64
"""States of the largest automaton of multiples that is written as rules where the recognizer can follow them too."""
_FEW_STATES: Final = 24
_FEW_DIGITS: Final = 20
_LAST_DIGITS: Final = 3


def multiple_of(k: Decimal | int, *, integer: bool = False) -> Regex:
    """The plain decimals that are multiples of k > 0, without exponent and with zero written without a minus.

    With `integer` only those without a point.

    Raises:
        RegexTooComplex: k has more than MAX_DIVISOR_DIGITS digits.
        ValueError: k is not above 0.
    """
    step = Decimal(k)
    if not step.is_finite() or step <= 0:
        raise ValueError("multiples are of a number above 0")
    digits, exponent = step.as_tuple().digits, int(step.as_tuple().exponent)
    if len(digits) + abs(exponent) > MAX_DIVISOR_DIGITS:
        raise RegexTooComplex(f"a divisor has more than {MAX_DIVISOR_DIGITS} digits")
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
    ending = EPSILON if integer else optional(concat(POINT, repeat(ZERO, 1)))
    if places == 0:
        return concat(_signed(concat(NONZERO, ANY_DIGITS), ZERO), ending)
    multiples = range(0, 10**places, divisor)
    short = literals([str(multiple) for multiple in multiples if multiple])
    long = concat(NONZERO, ANY_DIGITS, literals([f"{multiple:0{places}d}" for multiple in multiples]))
    return concat(_signed(alternate(short, long), ZERO), ending)


def _by_last_fraction_digits(divisor: int, scale: int) -> Regex:
    whole = concat(NONZERO, ANY_DIGITS)
    if divisor == 1:
        fraction = optional(concat(POINT, repeat(DIGIT, 1, scale), ZEROS))
        small = [concat(repeat(ZERO, at, at), NONZERO, repeat(DIGIT, 0, scale - 1 - at)) for at in range(scale)]
        below_one = concat(literal("0."), alternate(*small), ZEROS)
    else:
        multiples = range(divisor, 10**scale, divisor)
        digits = literals([f"{multiple:0{scale}d}".rstrip("0") for multiple in multiples])
        below_one = concat(literal("0."), digits, ZEROS)
        fraction = optional(concat(POINT, alternate(concat(digits, ZEROS), repeat(ZERO, 1))))
    zero = concat(ZERO, optional(concat(POINT, repeat(ZERO, 1))))
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
    zero = ZERO if integer else concat(ZERO, optional(concat(POINT, repeat(ZERO, 1))))
    return _signed(alternate(*options), zero)


@lru_cache(maxsize=1024)
def multiples_between(k: int, low: int | None, high: int | None, excluded: tuple[int, ...] = ()) -> Regex:
    """The integers from low to high, both included, that are multiples of k > 0; None is no bound. No leading zero.

    Args:
        excluded: numbers of which the integers are not multiples; none of them divides k.

    Raises:
        RegexTooComplex: k, or the least common multiple of k and `excluded`, has more than MAX_DIVISOR_DIGITS digits, a
            bound has more than MAX_DIGITS digits, or more than MAX_EXCLUDED numbers are excluded.
    """
    multiples = multiple_of(k, integer=True)
    if len(excluded) > MAX_EXCLUDED:
        raise RegexTooComplex(f"it is no multiple of more than {MAX_EXCLUDED} numbers")
    if excluded and lcm(k, *excluded) >= 10**MAX_DIVISOR_DIGITS:
        raise RegexTooComplex(f"the common multiple of its divisors has more than {MAX_DIVISOR_DIGITS} digits")
    if low is None and high is None and not excluded:
        return multiples
    digits = max(len(str(abs(bound or 0))) for bound in (low, high))
    if digits > MAX_DIGITS:
        raise RegexTooComplex(f"a bound has more than {MAX_DIGITS} digits")
    is_small = not multiples.has_boolean or (digits <= _FEW_DIGITS and Dfa.of(multiples, _FEW_STATES) is not None)
    if is_small and not excluded:
        return intersect(integer_range(low, high), multiples)
    options = [ZERO] if (low or 0) <= 0 <= (high or 0) and not excluded else []
    if high is None or high > 0:
        options.append(_positive_multiples(k, max(low or 1, 1), high, excluded))
    if low is None or low < 0:
        most = None if low is None else -low
        options.append(concat(MINUS, _positive_multiples(k, max(-(high or -1), 1), most, excluded)))
    return alternate(*options)


def _positive_multiples(k: int, low: int, high: int | None, excluded: tuple[int, ...]) -> Regex:
    """The multiples of k from low >= 1 to high that are multiples of no excluded number."""
    bottom, top = str(low), "" if high is None else str(high)
    left = DigitsLeft(len(bottom), len(top) or None, bottom, top)
    by_rest: dict[Regex, list[str]] = {}
    for digit in "123456789":
        after = left.after(digit)
        if after is not None:
            by_rest.setdefault(remainder(k, int(digit), left=after, excluded=excluded), []).append(digit)
    return alternate(*[concat(chars(CharSet.of(digits)), rest) for rest, digits in by_rest.items()])


# --- terminals that a library cannot execute ---


@lru_cache(maxsize=4096)
def has_remainder(regex: Regex) -> bool:
    """Return whether a `Remainder` is somewhere inside of an expression."""
    return regex.has_boolean and any(isinstance(part, Remainder) for part in subterms(regex))


@lru_cache(maxsize=1024)
def is_widened(regex: Regex) -> bool:
    """Return whether a library gets `without_remainders(regex)` in place of a language, because the language has more
    states than MAX_EXECUTED_STATES, and the recognizer finds out in one step whether a text leads to an end."""
    return has_remainder(regex) and not _is_searched(regex) and _has_more_states(regex, MAX_EXECUTED_STATES)


@lru_cache(maxsize=1024)
def is_too_large(regex: Regex) -> bool:
    """Return whether a language with multiples can neither be executed by a library nor be narrowed."""
    return has_remainder(regex) and _is_searched(regex) and _has_more_states(regex, MAX_STATES)


def _is_searched(regex: Regex) -> bool:
    """Return whether only a search says if the language of some derivative is empty: multiples in an intersection."""
    return any(isinstance(part, Intersect | Complement) and has_remainder(part) for part in subterms(regex))


def _has_more_states(regex: Regex, limit: int) -> bool:
    if regex.max_length is None:
        # A divisor without its factors 2 and 5 has as many states. Counting them is quicker than making them.
        divisors = [
            one for part in subterms(regex) if isinstance(part, Remainder) for one in (part.divisor, *part.excluded)
        ]
        if lcm(*map(_without_tens, divisors)) > limit:
            return True
    try:
        return Dfa.of(regex, limit) is None
    except RegexTooComplex:
        return True


def _without_tens(number: int) -> int:
    while (shared := gcd(number, 10)) > 1:
        number //= shared
    return number


def without_remainders(regex: Regex) -> Regex:
    """Return a language with more texts and without `Remainder`: digits take the place of multiples.

    Raises:
        RegexTooComplex: such a language would have all texts.
    """
    made: dict[Regex, Regex] = {}
    for part in subterms(regex):
        if not has_remainder(part):
            made[part] = part
        elif isinstance(part, Remainder):
            digits = repeat(DIGIT, part.min_length if part.scale is None else 0, part.left.most)
            fraction = EPSILON if part.scale is None or part.point else optional(concat(POINT, repeat(DIGIT, 1)))
            made[part] = concat(digits, fraction)
        elif isinstance(part, Intersect):
            plain = [item for item in part.items if not has_remainder(item)]
            others = [made[item] for item in part.items if item in made]
            made[part] = intersect(*(plain or others))
        elif isinstance(part, Concat):
            made[part] = concat(made[part.head], made[part.tail])
        elif isinstance(part, Alternate):
            made[part] = alternate(*[made[option] for option in part.options])
        elif isinstance(part, Repeat):
            made[part] = repeat(made[part.item], part.low, part.high)
    if regex not in made:
        raise RegexTooComplex("all texts but some multiples")
    return made[regex]
