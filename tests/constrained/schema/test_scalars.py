"""Sets of numbers and strings: narrowing, and the texts of the narrowed sets."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.constrained.schema import EmptySchema, SchemaRefused, normalize
from radixrt.constrained.schema.normal_form.numbers import NumberSet, is_multiple
from radixrt.constrained.schema.values import decimal_of, key, number_texts
from radixrt.explain.value_check import accepts
from tests.constrained.schema.sampling import Sampler
from tests.constrained.schema.text_checker import TextChecker

numbers = st.one_of(
    st.integers(-50, 50),
    st.integers(-(10**20), 10**20),
    st.floats(-50, 50, allow_nan=False).map(lambda x: round(x, 2)),
    st.floats(allow_nan=False, allow_infinity=False),
)
STEPS = [
    ("minimum", lambda s, b: s.above(b, open_=False), lambda x, b: x >= b),
    ("exclusiveMinimum", lambda s, b: s.above(b, open_=True), lambda x, b: x > b),
    ("maximum", lambda s, b: s.below(b, open_=False), lambda x, b: x <= b),
    ("exclusiveMaximum", lambda s, b: s.below(b, open_=True), lambda x, b: x < b),
    ("not", lambda s, b: s.without(frozenset({b})), lambda x, b: x != b),
    ("whole", lambda s, b: s.whole(True), lambda x, b: x == x.to_integral_value()),
    ("fraction", lambda s, b: s.whole(False), lambda x, b: x != x.to_integral_value()),
]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), numbers), max_size=5), st.lists(numbers, min_size=5, max_size=5))
def test_narrowing_numbers_keeps_exactly_those_that_pass(steps: list[Any], candidates: list[Any]) -> None:
    found: NumberSet | None = NumberSet()
    for (_, narrow, _), bound in steps:
        found = narrow(found, decimal_of(bound)) if found is not None else None
    for number in candidates:
        expected = all(test(decimal_of(number), decimal_of(bound)) for (_, _, test), bound in steps)
        assert (found is not None and found.holds(number)) is expected


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": 0.1, "maximum": 0.3},
        {"exclusiveMinimum": 0},
        {"exclusiveMinimum": 0.1, "exclusiveMaximum": 0.2},
        {"exclusiveMaximum": 0},
        {"exclusiveMinimum": 1e200},
        {"exclusiveMinimum": -1e-7, "exclusiveMaximum": 1e-7},
        {"type": "integer", "minimum": -3, "maximum": 300},
        {"type": "integer", "exclusiveMinimum": 2.5},
        {"type": "integer", "multipleOf": 7, "minimum": 10},
        {"multipleOf": 0.25, "minimum": 0.5},
        {"multipleOf": 1.5, "minimum": 1, "maximum": 10},
        {"not": {"enum": [0, 1, 2.5]}, "type": "number", "minimum": 0},
        {"not": {"type": "integer"}, "type": "number"},
        {"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer"},
    ],
)
def test_every_text_is_on_the_right_side_of_open_and_closed_bounds_when_read_as_a_double(schema: Any) -> None:
    import jsonschema

    schema = {"type": "number", **schema}
    normal = normalize(schema)
    validator = jsonschema.Draft202012Validator(schema)
    sampler = Sampler(normal.productions(), 1)
    for _ in range(200):
        text = sampler.text()
        assert validator.is_valid(json.loads(text)), text
        assert accepts(normal, json.loads(text)), text


@settings(max_examples=100, deadline=None)
@given(numbers, numbers, st.booleans())
def test_every_number_between_the_bounds_has_a_text(low: Any, number: Any, whole: bool) -> None:
    schema = {"type": "integer" if whole else "number", "minimum": low, "maximum": low + 100}
    try:
        normal = normalize(schema)
    except (EmptySchema, SchemaRefused):  # bounds of hundreds of digits are refused
        return
    assert TextChecker(normal).accepts(number) is accepts(normal, number)


def test_multiples_are_exact() -> None:
    cents = normalize({"type": "number", "multipleOf": 0.01})
    assert accepts(cents, 19.99)
    assert accepts(cents, 4.02)
    assert not accepts(cents, 0.005)
    assert TextChecker(cents).accepts_text("19.99")
    assert is_multiple(Decimal("1e300"), Decimal("1e-8"))
    with pytest.raises(SchemaRefused, match="'multipleOf'"):
        normalize({"type": "number", "multipleOf": 1e-300})
    with pytest.raises(SchemaRefused, match="'multipleOf' at '/items'"):
        normalize({"type": "array", "items": {"multipleOf": 0.0099991, "minimum": 0, "maximum": 1000}})


def test_what_excludes_itself_is_seen_at_once() -> None:
    for schema in (
        {"type": "number", "minimum": 2, "maximum": 1},
        {"type": "number", "minimum": 1, "exclusiveMaximum": 1},
        {"type": "integer", "minimum": 1.1, "maximum": 1.9},
        {"type": "integer", "multipleOf": 5, "minimum": 1, "maximum": 4},
        {"type": "integer", "multipleOf": 4, "not": {"multipleOf": 2}},
        {"type": "string", "minLength": 2, "maxLength": 1},
        {"type": "string", "pattern": "^a", "not": {"pattern": "^a"}},
        {"type": "string", "pattern": "^a{3}$", "maxLength": 2},
        {"type": "string", "enum": ["a"], "minLength": 2},
        {"type": "string", "const": 1},
        {"enum": []},
        False,
    ):
        with pytest.raises(EmptySchema):
            normalize(schema)


def test_strings() -> None:
    schema = {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^a", "not": {"pattern": "b$"}}
    checker = TextChecker(normalize(schema))
    assert checker.accepts("ac")
    assert checker.accepts('a"\n')
    assert checker.accepts("aé🙂")
    for wrong in ("a", "ab", "ca", "acccc"):
        assert not checker.accepts(wrong)
    left_out = TextChecker(normalize({"type": "string", "not": {"enum": ["a", "b"]}}))
    assert left_out.accepts("c")
    assert not left_out.accepts("a")


def test_formats_are_asserted_or_only_annotate() -> None:
    schema = {"type": "string", "format": "date"}
    assert not accepts(normalize(schema), "2024-02-30")
    assert normalize(schema).annotations == []
    loose = normalize(schema, formats="annotate")
    assert accepts(loose, "x")
    assert loose.annotations == [("", "format")]
    assert normalize({"properties": {"a": {"format": "color"}}}).annotations == [("/properties/a", "format")]


def test_a_format_that_must_not_hold_leaves_only_what_is_surely_not_of_it() -> None:
    checker = TextChecker(normalize({"type": "string", "not": {"format": "email"}}))
    assert checker.accepts("nobody")
    assert not checker.accepts("a@b.example")
    assert TextChecker(normalize({"type": "string", "not": {"format": "date"}})).accepts("2024-02-30")
    with pytest.raises(SchemaRefused, match="is not certain"):
        normalize({"type": "string", "not": {"format": "regex"}})
    with pytest.raises(SchemaRefused, match="is not certain"):
        normalize({"enum": ["a@b@c"], "not": {"format": "email"}})


def test_patterns_are_found_anywhere_in_the_string_and_refused_if_they_are_none() -> None:
    assert accepts(normalize({"pattern": "b"}), "abc")
    assert not accepts(normalize({"pattern": "b"}), "ac")
    for pattern in ("(", "a{2,1}", r"(.*)\1"):
        with pytest.raises(SchemaRefused, match="'pattern' at '/properties/p'") as caught:
            normalize({"properties": {"p": {"pattern": pattern}}})
        assert caught.value.errors[0].keyword == "pattern"


def test_numbers_are_equal_by_value_and_written_in_every_usual_way() -> None:
    assert key(1) == key(1.0)
    assert key(True) != key(1)
    assert key([1, {"a": None}]) == key([1.0, {"a": None}])
    assert number_texts(1.0) == ["1", "1.0"]
    assert number_texts(1e22) == ["10000000000000000000000", "1e+22"]
    assert number_texts(-0.0) == ["0"]
    checker = TextChecker(normalize({"enum": [1.0, 0.1]}))
    for text in ("1", "1.0", "0.1"):
        assert checker.accepts_text(text)
    assert accepts(normalize({"type": "integer"}), 1.0)


def test_text_without_a_meaning_in_utf8_is_refused() -> None:
    for schema in ({"const": "\ud800"}, {"type": "object", "properties": {"\udc00": {}}}, {"const": ["\ud800"]}):
        with pytest.raises(SchemaRefused, match="surrogate"):
            normalize(schema)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"const": "\ud800"}, ("", "const")),
        ({"enum": ["a", "\ud800"]}, ("", "enum")),
        ({"type": "array", "items": {"const": {"x": ["\udc00"]}}}, ("/items", "const")),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"const": 1}, {"const": "\ud800"}]}}},
            ("/$defs/a/anyOf/1", "const"),
        ),
    ],
)
def test_a_value_without_a_meaning_in_utf8_is_refused_where_it_is_listed(schema: Any, place: tuple[str, str]) -> None:
    with pytest.raises(SchemaRefused, match="surrogate") as refused:
        normalize(schema)
    assert [(one.pointer, one.keyword) for one in refused.value.errors] == [place]
    ignored = normalize(schema, on_unsupported="ignore").ignored
    assert [(one.pointer, one.keyword) for one in ignored] == [place]


def test_a_value_without_a_meaning_in_utf8_does_not_matter_where_it_cannot_be_written() -> None:
    checker = TextChecker(normalize({"type": "integer", "enum": [1, "\ud800"], "not": {"const": "\udc00"}}))
    assert checker.accepts_text("1")


def test_long_lists_of_values() -> None:
    words = [f"value {number}" for number in range(5000)]
    checker = TextChecker(normalize({"enum": words}))
    assert checker.accepts("value 4321")
    assert not checker.accepts("value 5000")
    with pytest.raises(SchemaRefused, match="100000 values"):
        normalize({"enum": list(range(100_000))})
