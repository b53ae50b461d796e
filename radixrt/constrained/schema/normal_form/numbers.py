"""Sets of numbers: intervals, multiples and non-multiples, whole or fractional, minus single numbers.

Bounds are exact decimals; a float stands for its shortest decimal form. The grammar excludes texts that, read as a
float, equal an excluded bound, because most JSON parsers turn numbers into floats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cache

from radixrt.constrained.regex import (
    EMPTY,
    Regex,
    alternate,
    complement,
    concat,
    integer_range,
    intersect,
    literal,
    literals,
    multiple_of,
    multiples_between,
    number_range,
    optional,
    parse_regex,
    repeat,
)
from radixrt.constrained.schema.values import decimal_of, is_integer

MAX_LISTED_NUMBERS = 64
"""A set of at most this many multiples becomes a list of numbers."""
TINIEST = Decimal("1e-30")
"""Distance from 0 of an open bound at 0, which a double distinguishes from 0."""
NUMBER_TEXT = parse_regex(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?", search=False)
"""Any number whose exponent overflows no double; a parser would read infinity."""
PLAIN_NUMBER_TEXT = parse_regex(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?", search=False)
"""Any number without an exponent."""


@dataclass(frozen=True, slots=True)
class NumberSet:
    """The numbers between two bounds that satisfy the rest.

    Attributes:
        low: greatest lower bound, or None; `low_open`: the bound itself is excluded.
        high: least upper bound, or None; `high_open` likewise.
        integer: True for whole numbers only, False for numbers with a fraction only, None for both.
        step: they are multiples of this, or None.
        not_multiples: they are multiples of none of these.
        excluded: single numbers that are not in the set.
    """

    low: Decimal | None = None
    low_open: bool = False
    high: Decimal | None = None
    high_open: bool = False
    integer: bool | None = None
    step: Decimal | None = None
    not_multiples: frozenset[Decimal] = frozenset()
    excluded: frozenset[Decimal] = frozenset()

    def above(self, bound: Decimal, *, open_: bool) -> NumberSet | None:
        """Return the numbers of at least the bound (more than the bound, if open); None if there are none."""
        if self.low is not None and (bound < self.low or (bound == self.low and (self.low_open or not open_))):
            return self
        return replace(self, low=bound, low_open=open_)._checked()

    def below(self, bound: Decimal, *, open_: bool) -> NumberSet | None:
        """Return the numbers of at most the bound (less than the bound, if open); None if there are none."""
        if self.high is not None and (bound > self.high or (bound == self.high and (self.high_open or not open_))):
            return self
        return replace(self, high=bound, high_open=open_)._checked()

    def whole(self, wanted: bool) -> NumberSet | None:
        """Return the numbers without (with) a fractional part; None if there are none."""
        if self.integer is not None:
            return self if self.integer is wanted else None
        return replace(self, integer=wanted)._checked()

    def multiples(self, of: Decimal) -> NumberSet | None:
        """Return the multiples in the set; None if there are none."""
        return replace(self, step=of if self.step is None else _common(self.step, of))._checked()

    def non_multiples(self, of: Decimal) -> NumberSet | None:
        """Return the numbers that are not multiples; None if there are none."""
        return replace(self, not_multiples=self.not_multiples | {of})._checked()

    def without(self, numbers: frozenset[Decimal]) -> NumberSet | None:
        """Return the set without the numbers; None if nothing is left."""
        return replace(self, excluded=self.excluded | numbers)._checked()

    def holds(self, number: int | float) -> bool:
        """Return whether the number is in the set."""
        if self.integer is not None and is_integer(number) is not self.integer:
            return False
        return self._holds(decimal_of(number))

    def points(self, limit: int) -> list[Decimal] | None:
        """Return the numbers in order, if they are multiples of a step and at most `limit`; else None."""
        step = self._lattice()
        if step is None or self.low is None or self.high is None:
            return None
        first = math.ceil(Fraction(self.low) / Fraction(step))
        last = math.floor(Fraction(self.high) / Fraction(step))
        if last - first >= limit:
            return None
        numbers = (_times(step, count) for count in range(first, last + 1))
        return [number for number in numbers if self._holds(number)]

    def language(self) -> Regex:
        """Return the JSON texts of the set: plain decimals, or any number if unbounded. Raises RegexTooComplex."""
        points = self.points(MAX_LISTED_NUMBERS)
        if points is not None:
            return literals([plain(point) for point in points]) if points else EMPTY
        if self.integer is True:
            return self._multiples()
        if self.integer is None and (self.not_multiples or (self.step is not None and _is_whole(self.step))):
            # Remainders tell whole numbers apart. A number with a fraction is a multiple of no whole number.
            whole = replace(self, integer=True)._multiples()
            zeros = optional(concat(literal("."), repeat(literal("0"), 1)))
            fraction = self._with_fraction()
            return alternate(concat(whole, zeros), EMPTY if fraction is None else fraction.language())
        pieces = alternate(*(_decimals(*piece) for piece in self._intervals()))
        if self.step is not None:
            multiples = multiple_of(self.step)
            pieces = multiples if pieces is NUMBER_TEXT else intersect(pieces, multiples)
        if self.integer is False:
            pieces = _fractional() if pieces is NUMBER_TEXT else intersect(pieces, _fractional())
        for number in sorted(self.not_multiples):
            pieces = intersect(pieces, complement(multiple_of(number)))
        return pieces

    def _multiples(self) -> Regex:
        """Return the texts of whole numbers. Raises RegexTooComplex."""
        step = self._lattice()
        assert step is not None
        excluded = _least([Fraction(number).numerator for number in self.not_multiples])
        if any(step % one == 0 for one in excluded):
            return EMPTY
        return alternate(*(_integers(int(step), *piece, excluded) for piece in self._intervals()))

    def _with_fraction(self) -> NumberSet | None:
        """Return the numbers that are not whole, with the excluded steps that some of them are multiples of."""
        some = frozenset(number for number in self.not_multiples if not _is_whole(number))
        return replace(self, integer=False, not_multiples=some)._checked()

    def _lattice(self) -> Decimal | None:
        if self.integer is not True:
            return self.step
        return Decimal(1) if self.step is None else _common(self.step, Decimal(1))

    def _holds(self, number: Decimal) -> bool:
        if self.low is not None and (number < self.low or (number == self.low and self.low_open)):
            return False
        if self.high is not None and (number > self.high or (number == self.high and self.high_open)):
            return False
        if self.step is not None and not is_multiple(number, self.step):
            return False
        return number not in self.excluded and not any(is_multiple(number, of) for of in self.not_multiples)

    def _intervals(self) -> Iterator[tuple[Decimal | None, bool, Decimal | None, bool]]:
        """Yield the parts of the interval between the excluded numbers."""
        low, low_open = self.low, self.low_open
        inside = replace(self, excluded=frozenset())
        for number in sorted(number for number in self.excluded if inside._holds(number)):
            if low is None or low < number:
                yield low, low_open, number, True
            low, low_open = number, True
        if low is None or self.high is None or low < self.high or (low == self.high and not low_open):
            yield low, low_open, self.high, self.high_open

    def _checked(self) -> NumberSet | None:
        """Return the set, or None if it is empty by its bounds, step or listed numbers."""
        if self.low is not None and self.high is not None:
            if self.low > self.high or (self.low == self.high and (self.low_open or self.high_open)):
                return None
            if self.low == self.high and (not self._holds(self.low) or (self.integer is False and _is_whole(self.low))):
                return None
            if self.points(MAX_LISTED_NUMBERS) == []:
                return None
        if self.integer is False and self.step is not None and _is_whole(self.step):
            return None
        lattice = self._lattice()
        if lattice is not None and any(is_multiple(lattice, of) for of in self.not_multiples):
            return None
        return self


ANY_NUMBER = NumberSet()


def is_multiple(number: Decimal, of: Decimal) -> bool:
    """Return whether the number is an exact whole multiple."""
    return (Fraction(number) / Fraction(of)).denominator == 1


def plain(number: Decimal) -> str:
    """Return the decimal without exponent and without trailing zeros."""
    text = format(number, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _is_whole(number: Decimal) -> bool:
    return Fraction(number).denominator == 1


def _times(step: Decimal, count: int) -> Decimal:
    """Return step * count exactly; the arithmetic of Decimal rounds to 28 digits."""
    sign, digits, exponent = step.as_tuple()
    assert isinstance(exponent, int)
    product = int("".join(map(str, digits))) * count * (-1 if sign else 1)
    return Decimal((1 if product < 0 else 0, tuple(map(int, str(abs(product)))), exponent))


def _common(left: Decimal, right: Decimal) -> Decimal:
    """Return the least common multiple."""
    one, two = Fraction(left), Fraction(right)
    scale = math.lcm(one.denominator, two.denominator)
    least = Fraction(math.lcm(int(one * scale), int(two * scale)), scale)
    digits = 0
    while (least * 10**digits).denominator != 1:
        digits += 1
    return _times(Decimal((0, (1,), -digits)), int(least * 10**digits))


def _least(numbers: list[int]) -> tuple[int, ...]:
    """Return the numbers in order, without those of which another one is a divisor."""
    return tuple(sorted(one for one in set(numbers) if not any(one != of and one % of == 0 for of in numbers)))


def _integers(
    step: int,
    low: Decimal | None,
    low_open: bool,
    high: Decimal | None,
    high_open: bool,
    excluded: tuple[int, ...],
) -> Regex:
    first = None if low is None else math.floor(low) + 1 if low_open else math.ceil(low)
    last = None if high is None else math.ceil(high) - 1 if high_open else math.floor(high)
    if first is not None and last is not None and first > last:
        return EMPTY
    return integer_range(first, last) if step == 1 and not excluded else multiples_between(step, first, last, excluded)


def _decimals(low: Decimal | None, low_open: bool, high: Decimal | None, high_open: bool) -> Regex:
    if low_open and low is not None:
        low = _next(low, math.inf)
    if high_open and high is not None:
        high = _next(high, -math.inf)
    if low is not None and high is not None and low > high:
        return EMPTY
    return NUMBER_TEXT if low is None and high is None else number_range(low, high)


@cache
def _fractional() -> Regex:
    """Return plain decimals that are not whole even as doubles: at most sixteen digits, the last not 0."""
    whole = ("[0-9]", *(f"[1-9][0-9]{{{more}}}" for more in range(1, 9)))
    options = (rf"{digits}\.[0-9]{{0,{14 - more}}}[1-9]" for more, digits in enumerate(whole))
    return parse_regex(f"-?({'|'.join(options)})", search=False)


def _next(bound: Decimal, towards: float) -> Decimal:
    """Return the nearest number beyond the bound, in one direction, that is beyond the bound as a double too."""
    if bound == 0:
        return TINIEST if towards > 0 else -TINIEST
    nearest = float(bound)
    if math.isinf(nearest):
        return bound + 1 if towards > 0 else bound - 1
    beyond = decimal_of(nearest)
    if (beyond > bound) if towards > 0 else (beyond < bound):
        return beyond
    neighbour = math.nextafter(nearest, towards)
    return bound if math.isinf(neighbour) else decimal_of(neighbour)
