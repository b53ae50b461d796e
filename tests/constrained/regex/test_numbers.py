"""Number languages against arithmetic on every short number text, and on random long ones."""

from __future__ import annotations

import random
from decimal import Decimal
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.constrained.backends.lark import to_rust
from radixrt.constrained.regex import (
    RegexTooComplex,
    enumerate_strings,
    integer_range,
    intersect,
    is_empty,
    is_subset,
    matches,
    multiple_of,
    number_range,
    parse_regex,
    shortest_length,
    shortest_string,
)
from radixrt.constrained.regex.automaton import Dfa

_SHORT = ["".join(text) for size in range(1, 6) for text in product("-.0159", repeat=size)]
_PLAIN = parse_regex(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?", search=False)
_DECIMALS = [text for text in _SHORT if matches(_PLAIN, text)]
_bounds = st.none() | st.integers(-2000, 2000) | st.integers(-(10**30), 10**30)
_decimals = st.builds(
    lambda digits, places: Decimal(digits).scaleb(-places), st.integers(-9999, 9999), st.integers(-2, 5)
)


def _minus_zero(text: str) -> bool:
    return text.startswith("-") and not Decimal(text)


@settings(max_examples=300, deadline=None)
@given(_bounds, _bounds, st.lists(st.integers(-2500, 2500) | st.integers(-(10**31), 10**31), max_size=50))
def test_integer_range(low: int | None, high: int | None, values: list[int]) -> None:
    regex = integer_range(low, high)
    near = [bound + step for bound in (low, high) if bound is not None for step in (-1, 0, 1)]
    for value in [*values, *near, 0]:
        inside = (low is None or value >= low) and (high is None or value <= high)
        assert matches(regex, str(value)) == inside, value
        assert not matches(regex, f"0{value}")
        assert not matches(regex, f"{value}.")
    assert not matches(regex, "-0")
    assert not matches(regex, "")
    assert is_empty(regex) == (low is not None and high is not None and low > high)


def test_small_integer_ranges_exactly() -> None:
    for low in range(-25, 130, 7):
        for high in range(low - 1, 135, 5):
            expected = sorted(map(str, range(low, high + 1)), key=lambda text: (len(text), text))
            assert enumerate_strings(integer_range(low, high), 200) == expected


@settings(max_examples=300, deadline=None)
@given(st.none() | _decimals, st.none() | _decimals, st.booleans(), st.booleans(), st.lists(_decimals, max_size=30))
def test_number_range(
    low: Decimal | None, high: Decimal | None, above: bool, below: bool, values: list[Decimal]
) -> None:
    regex = number_range(low, high, exclusive_low=above, exclusive_high=below)

    def inside(value: Decimal) -> bool:
        over = low is None or value > low or (value == low and not above)
        return over and (high is None or value < high or (value == high and not below))

    near = [
        bound + step for bound in (low, high) if bound is not None for step in (Decimal("-0.001"), 0, Decimal("0.001"))
    ]
    texts = [f"{value:f}" for value in [*values, *near]]
    for text in [*_DECIMALS, *texts, *[text + "0" for text in texts if "." in text]]:
        if low is not None or high is not None:
            assert matches(regex, text) == (inside(Decimal(text)) and not _minus_zero(text)), text


def test_a_bounded_number_is_never_anything_but_a_plain_decimal() -> None:
    for low, high in ((0, None), (None, Decimal("0.5")), (-1, 1), (Decimal("-1.5"), Decimal("-1.25"))):
        regex = number_range(low, high)
        assert is_subset(regex, _PLAIN)
        assert not regex.has_boolean


def test_an_unbounded_number_may_have_an_exponent() -> None:
    regex = number_range(None, None)
    for text in ("0", "-0", "1.50", "1e5", "-1.5E+10", "0e-0"):
        assert matches(regex, text)
    for text in ("01", "1.", ".5", "+1", "1e", "--1", "", "NaN", "1e5.0"):
        assert not matches(regex, text)


_DIVISORS = ["1", "2", "3", "5", "6", "7", "8", "10", "11", "15", "64", "100", "0.5", "0.25", "0.01", "0.1", "0.3"]


@pytest.mark.parametrize(
    "text", [*_DIVISORS, "0.0075", "2.5", "1.5", "12345", "1e2", "0.001", "0.00001", "99.99", "1000"]
)
def test_multiple_of(text: str) -> None:
    k = Decimal(text)
    regex, integers = multiple_of(k), multiple_of(k, integer=True)
    multiples = [f"{k * times:f}" for times in (0, 1, 2, 3, 7, 10, 99, 1000, 123456, -1, -5)]
    others = [f"{k * times + step:f}" for times in (0, 1, 9) for step in (Decimal("0.0001"), Decimal(1))]
    for number in [*_DECIMALS, *multiples, *others, *[f"{number}.0" for number in multiples if "." not in number]]:
        expected = Decimal(number) % k == 0 and not _minus_zero(number)
        assert matches(regex, number) == expected, number
        assert matches(integers, number) == (expected and "." not in number), number
    shortest = shortest_string(integers)
    assert shortest == "0"
    assert shortest_length(intersect(integers, integer_range(1, None))) == min(
        len(str(number)) for number in range(1, 200_000) if number % k == 0
    )


def test_multiples_that_the_last_digits_tell_are_plain_expressions() -> None:
    for text in ("1", "2", "5", "10", "25", "100", "0.01", "0.5", "0.25"):
        assert not multiple_of(Decimal(text)).has_boolean
    assert to_rust(multiple_of(Decimal(5), integer=True)) == r"0|\x2D?(?:5|[1-9][0-9]*[05])"


def test_a_finite_range_of_multiples_is_written_out() -> None:
    assert enumerate_strings(intersect(multiple_of(Decimal(3)), integer_range(0, 10)), 10) == ["0", "3", "6", "9"]


def test_bounds_of_thousands_of_digits_are_refused() -> None:
    for make in (lambda: integer_range(None, 10**20_000), lambda: number_range(Decimal("1e100000"), None)):
        with pytest.raises(RegexTooComplex):
            make()
    with pytest.raises(RegexTooComplex):
        multiple_of(Decimal("1e-5000"))
    with pytest.raises(ValueError, match="above 0"):
        multiple_of(Decimal(0))


def test_size_grows_with_digits_not_with_the_range() -> None:
    assert len(to_rust(integer_range(-(10**18) + 7, 10**18 - 3))) < 2500
    assert len(to_rust(number_range(Decimal("0.123456789"), Decimal("98765.4321")))) < 2500


@pytest.mark.parametrize(
    ("divisor", "states"), [(7, 12), (400, 20), (1024, 200), (3600, 60), (86_400, 170), (997, 1010)]
)
def test_carries_with_the_same_continuations_are_one_state(divisor: int, states: int) -> None:
    regex = multiple_of(divisor, integer=True)
    found = Dfa.of(regex, states)
    assert found is not None
    chosen = random.Random(divisor)
    for _ in range(300):
        number = chosen.randrange(10 ** chosen.randrange(1, 14))
        for one in (number, number // divisor * divisor, -number):
            assert matches(regex, str(one)) is (one % divisor == 0)
