"""Bounds on the parts of a text that a schema leaves free."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from radixrt.constrained.recognizer import Recognizer
from radixrt.constrained.schema import normalize
from radixrt.constrained.schema.emit.free_parts import (
    MAX_DIGITS,
    MAX_KEY_CHARS,
    MAX_READABLE_DIGITS,
    MAX_STRING_CHARS,
    MAX_UNDECLARED,
)

OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}}
ANY = {"type": "object"}


def accepts(schema: Any, text: str, *, bounded: bool = True, max_digits: int | None = None) -> bool:
    recognizer = Recognizer(normalize(schema, bounded=bounded, max_digits=max_digits).productions())
    state = recognizer.advance(recognizer.start(), text)
    return state is not None and recognizer.is_complete(state)


def members(number: int, *, first: str = "k") -> str:
    """The text of an object with so many undeclared members."""
    return json.dumps({f"{first}{i}": i for i in range(number)}, separators=(",", ":"))


@pytest.mark.parametrize("required", [[], ["a"]])
@pytest.mark.parametrize("counted", [{}, {"maxProperties": 100}])
def test_undeclared_members_of_an_object_that_declares_others(required: list[str], counted: Any) -> None:
    schema = {**OPEN, "required": required, **counted}
    for number, taken in [(0, True), (1, True), (MAX_UNDECLARED, True), (MAX_UNDECLARED + 1, False)]:
        after = f'{{"a":1{"," if number else ""}{members(number)[1:]}'
        assert accepts(schema, after) is taken, number
        assert accepts(schema, after, bounded=False)
        assert accepts(schema, members(number)) is (taken and not required)


def test_members_of_which_a_keyword_says_something_are_not_counted() -> None:
    many = members(MAX_UNDECLARED + 5)
    for schema in (
        ANY,
        {**OPEN, "additionalProperties": {"type": "integer"}},
        {"additionalProperties": {"minimum": 0}},
    ):
        assert accepts(schema, many)
    assert accepts({**OPEN, "maxProperties": 3}, members(3))
    assert not accepts({**OPEN, "maxProperties": 3}, members(4))
    low = {**OPEN, "patternProperties": {"^k": {"type": "integer"}}}
    assert accepts(low, many)


@pytest.mark.parametrize("schema", [ANY, OPEN, {"additionalProperties": {"type": "integer"}}])
def test_names_that_nothing_speaks_of_are_bounded(schema: Any) -> None:
    assert accepts(schema, json.dumps({"é" * MAX_KEY_CHARS: 1}, separators=(",", ":"), ensure_ascii=False))
    longer = json.dumps({"k" * (MAX_KEY_CHARS + 1): 1}, separators=(",", ":"))
    assert not accepts(schema, longer)
    assert accepts(schema, longer, bounded=False)


def test_names_and_strings_that_the_schema_speaks_of_are_as_long_as_it_says() -> None:
    name = "k" * (MAX_KEY_CHARS + 1)
    assert accepts({"properties": {name: {"type": "null"}}}, f'{{"{name}":null}}')
    assert accepts({"type": "object", "propertyNames": {"minLength": MAX_KEY_CHARS + 1}}, f'{{"{name}":null}}')
    assert accepts({"type": "string"}, json.dumps("x" * (MAX_STRING_CHARS + 1)))


def test_free_strings_are_bounded() -> None:
    for length, taken in [(MAX_STRING_CHARS, True), (MAX_STRING_CHARS + 1, False)]:
        for text in (f'{{"k":"{"x" * length}"}}', f'{{"k":[["{"x" * length}"]]}}'):
            assert accepts(ANY, text) is taken
            assert accepts(ANY, text, bounded=False)


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("bound", [{}, {"minimum": 0}, {"exclusiveMinimum": 1.5}])
def test_digits_are_bounded_where_no_bound_does_it(kind: str, bound: Any) -> None:
    schema = {"type": kind, **bound}
    digits = "7" * MAX_DIGITS
    assert accepts(schema, digits)
    assert not accepts(schema, digits + "77")
    assert accepts(schema, digits + "77", bounded=False)
    if kind == "number":
        assert accepts(schema, f"2.{digits}")
        assert not accepts(schema, f"2.{digits}7")


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("bound", [{}, {"minimum": 0}, {"exclusiveMinimum": 1.5}])
@pytest.mark.parametrize("most", [None, 1, 15, 100, MAX_READABLE_DIGITS])
def test_digits_end_where_the_caller_says_and_always(kind: str, bound: Any, most: int | None) -> None:
    schema = {"type": kind, **bound}
    digits = "7" * (most or MAX_READABLE_DIGITS)
    for bounded in (False, True) if most else (False,):
        assert accepts(schema, "7" + digits, bounded=bounded, max_digits=most)
        assert not accepts(schema, "77" + digits, bounded=bounded, max_digits=most)
        if kind == "number":
            assert accepts(schema, f"2.{digits}", bounded=bounded, max_digits=most)
            assert not accepts(schema, f"2.{digits}7", bounded=bounded, max_digits=most)


@pytest.mark.parametrize("bounded", [True, False])
def test_every_number_of_the_grammar_is_a_finite_double(bounded: bool) -> None:
    largest = next(k for k in range(400, 0, -1) if accepts({"type": "number"}, "9" * k, bounded=bounded))
    assert math.isfinite(float("9" * largest))
    scaled = [k for k in range(1, 400) if accepts({"type": "number"}, "9" * k + "e99", bounded=bounded)]
    assert scaled
    assert math.isfinite(float("9" * scaled[-1] + "e99"))
    assert accepts({"type": "number"}, "9" * scaled[-1] + "." + "9" * 40 + "e-99", bounded=bounded)


def test_a_number_beyond_the_bound_can_still_be_required() -> None:
    low = 10 ** (MAX_DIGITS + 5)
    assert accepts({"type": "integer", "minimum": low}, str(low + 1))
    assert accepts({"const": low}, str(low))
    assert accepts({"type": "integer", "multipleOf": 7}, "7" * (MAX_DIGITS + 1))
    assert not accepts({"type": "integer", "multipleOf": 7}, "7" * (MAX_DIGITS + 2))
    assert accepts({"type": "integer", "multipleOf": 10 ** (MAX_DIGITS + 5), "minimum": 1}, f"{low}")
    assert accepts({"multipleOf": 0.3}, "3" * (2 * MAX_DIGITS))  # multiples of fractions are as they are
