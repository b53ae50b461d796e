"""A lower bound on the automaton of a set of numbers, from the residues of its integers.

Whether a large integer is in a set of multiples and non-multiples depends on its residue alone. Two sequences of digits
that differ modulo the period of the set, without its factors 2 and 5, can be completed such that only one of the two is
in the set; so an automaton has a state for each residue. Counting residues takes microseconds, whereas an automaton
with too many states is found only by creating all its states.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from fractions import Fraction

from radixrt.constrained.schema.normal_form.numbers import NumberSet

MAX_PERIOD = 1_000_000
"""A longer period is not looked for."""


def fewest_states(sets: Sequence[NumberSet]) -> int:
    """Return a lower bound on the states of an automaton for the texts of all numbers in any of the sets."""
    unbounded = [one for one in sets if one.high is None and one.integer is not False]
    moduli = [_modulus(number) for one in unbounded for number in (*_steps(one), *one.not_multiples)]
    period = math.lcm(*moduli)
    if period == 1 or period > MAX_PERIOD:
        return 1
    every = (1 << period) - 1
    residues = 0
    for one in unbounded:
        found = every
        for number in _steps(one):
            found &= _multiples(_modulus(number), period)
        for number in one.not_multiples:
            found &= ~_multiples(_modulus(number), period)
        residues |= found
    for prime in _primes(period):
        while period % prime == 0 and _repeats(residues, period, period // prime):
            period //= prime
            residues &= (1 << period) - 1
    for factor in (2, 5):
        while period % factor == 0:
            period //= factor
    return period


def _steps(numbers: NumberSet) -> tuple[Decimal, ...]:
    return () if numbers.step is None else (numbers.step,)


def _modulus(of: Decimal) -> int:
    """Return the least positive integer multiple. An integer is a multiple if and only if this number divides it."""
    return Fraction(of).numerator


def _multiples(modulus: int, period: int) -> int:
    """Return the multiples below a period, which is a multiple itself, as bits."""
    return ((1 << period) - 1) // ((1 << modulus) - 1)


def _repeats(residues: int, period: int, shorter: int) -> bool:
    """Return True if the bits below `period` are those below `shorter`, again and again."""
    return residues >> shorter == residues & ((1 << (period - shorter)) - 1)


def _primes(number: int) -> Iterator[int]:
    """Yield the prime factors, each once."""
    factor = 2
    while number > 1:
        if factor * factor > number:
            factor = number
        if number % factor == 0:
            yield factor
            while number % factor == 0:
                number //= factor
        factor += 1
