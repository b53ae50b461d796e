"""Strings divided into kinds, by the product of automata and piece by piece, against languages spelled out."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from radixrt.constrained import regex as rx
from radixrt.constrained.regex import is_empty, matches, product
from radixrt.constrained.regex.product import Division, Kind, Pieces, Product
from tests.constrained.regex.languages import ALL, Language, languages

LIMIT = 1000


def pattern(text: str) -> rx.Regex:
    """The strings in which a pattern matches somewhere."""
    return rx.parse_regex(text, search=True)


def kind_of(text: str, given: list[Language]) -> Kind:
    return frozenset(at for at, one in enumerate(given) if text in one.strings)


def check(division: Division, given: list[Language]) -> None:
    kinds = division.kinds
    assert {kind for text in ALL if (kind := kind_of(text, given))} <= set(kinds)
    assert not any(is_empty(division.strings_of(kind)) for kind in kinds)
    for count in range(1, len(kinds) + 1):
        for chosen in list(combinations(kinds, count))[:8]:
            strings, others = division.strings_of(*chosen), division.all_but(*chosen)
            for text in ALL:
                within = kind_of(text, given) in chosen
                assert matches(strings, text) is within
                assert matches(others, text) is not within


@settings(max_examples=60, deadline=None)
@given(st.lists(languages, min_size=1, max_size=3, unique_by=lambda one: one.regex))
def test_strings_of_each_kind(given: list[Language]) -> None:
    regexes = tuple(one.regex for one in given)
    pieces = Pieces.of(regexes, LIMIT)
    check(pieces, given)
    whole = Product.of(regexes)
    if whole is None:
        reject()
    check(whole, given)
    assert whole.kinds == pieces.kinds


def test_a_large_product_is_divided_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "MAX_STATES", 2)
    regexes = tuple(map(pattern, ("^a.{5}b$", "c{7}", "d$")))
    assert Product.of(regexes) is None
    division = product.divide(regexes, LIMIT)
    assert isinstance(division, Pieces)
    assert [sorted(kind) for kind in division.kinds] == [[0], [1, 2], [1], [2]]
    assert matches(division.strings_of(frozenset({1, 2})), "ccccccccd")
    assert not matches(division.all_but(*division.kinds), "ccccccccd")


def test_what_is_too_complex_together_is_divided_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_complex(*languages: rx.Regex) -> None:
        raise rx.RegexTooComplex("together")

    monkeypatch.setattr(Product, "of", too_complex)
    division = product.divide((pattern("^q"), pattern("r$")), LIMIT)
    assert isinstance(division, Pieces)
    assert matches(division.strings_of(frozenset({0, 1})), "qr")


def test_excluded_listed_strings_stay_a_complement() -> None:
    division = product.divide((pattern("^(?:name|id)$"), pattern("^x-")), LIMIT)
    assert isinstance(division, Product)
    rest = division.all_but(*division.kinds)
    assert rest.has_boolean
    assert [matches(rest, text) for text in ("name", "id", "x-1", "", "ids")] == [False, False, False, True, True]
