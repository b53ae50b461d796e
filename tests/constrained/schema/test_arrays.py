"""Arrays: first items, counters, unique items."""

from __future__ import annotations

from itertools import product
from typing import Any

import jsonschema
import pytest

from radixrt.constrained.schema import EmptySchema, SchemaRefused, normalize
from radixrt.explain.value_check import accepts
from tests.constrained.schema.text_checker import TextChecker


def check(schema: dict[str, Any], alphabet: list[Any], longest: int) -> None:
    """Every array over the alphabet up to a length, against the specification."""
    schema = {"type": "array", **schema}
    checker, validator = TextChecker(normalize(schema)), jsonschema.Draft202012Validator(schema)
    for length in range(longest + 1):
        for items in product(alphabet, repeat=length):
            assert checker.accepts(list(items)) is validator.is_valid(list(items)), items


@pytest.mark.parametrize("low", [0, 1, 2, 4])
@pytest.mark.parametrize("high", [None, 1, 3, 5])
@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_first_items_and_bounds(low: int, high: int | None, prefix: int) -> None:
    if high is not None and low > high:
        return
    bounds = {"minItems": low} if high is None else {"minItems": low, "maxItems": high}
    first = {"prefixItems": [{"type": "null"}] * prefix} if prefix else {}
    check({**first, **bounds, "items": {"type": "boolean"}}, [None, True], 6)
    check({**first, **bounds, "items": False} if low <= prefix else {}, [None, True], 6)


def test_an_item_without_a_value_ends_the_array() -> None:
    check({"prefixItems": [{}, False, {}]}, [None, True], 3)
    check({"prefixItems": [{}, {"allOf": [{"const": 1}, {"const": 2}]}]}, [None, True], 3)


def test_many_optional_first_items() -> None:
    schema = {"type": "array", "prefixItems": [{"const": i} for i in range(60)], "items": False}
    checker = TextChecker(normalize(schema))
    assert checker.accepts(list(range(60)))
    assert checker.accepts(list(range(17)))
    assert not checker.accepts([*range(60), 60])


@pytest.mark.parametrize("low", [0, 1, 2])
@pytest.mark.parametrize("high", [None, 1, 2])
@pytest.mark.parametrize("bounds", [{}, {"minItems": 3}, {"maxItems": 3}, {"minItems": 2, "maxItems": 3}])
def test_counted_items(low: int, high: int | None, bounds: dict[str, int]) -> None:
    if high is not None and low > high:
        return
    count = {"minContains": low} if high is None else {"minContains": low, "maxContains": high}
    check({"contains": {"type": "null"}, **count, **bounds}, [None, True], 5)
    check({"prefixItems": [{"const": True}], "contains": {"type": "null"}, **count, **bounds}, [None, True], 5)
    check({"allOf": [{"contains": {"const": None}, **count}, {"contains": {"const": 1}}], **bounds}, [None, 1, 2], 4)


def test_an_item_that_must_exist_behind_the_first_ones() -> None:
    check({"not": {"prefixItems": [{}, {}], "items": {"type": "null"}}}, [None, True], 5)


def test_unevaluated_items() -> None:
    check({"prefixItems": [{}], "contains": {"const": None}, "unevaluatedItems": {"const": True}}, [None, True, 1], 4)
    either = {"anyOf": [{"prefixItems": [{"const": 1}]}, {"prefixItems": [{}, {"const": 2}]}]}
    check({**either, "unevaluatedItems": False}, [1, 2, 3], 3)
    check({"not": {"prefixItems": [{"const": 1}], "unevaluatedItems": {"const": 2}}}, [1, 2, 3], 3)


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"enum": [1, 1.0, "a", None]}},
        {"items": {"type": "boolean"}, "minItems": 1},
        {"items": {"type": ["null", "boolean"]}, "maxItems": 2},
        {"items": {"type": "integer", "minimum": 1, "maximum": 3}, "contains": {"const": 2}},
        {"prefixItems": [{"enum": [1, 2]}, {"enum": [2, 3]}], "items": False},
        {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
        {"maxItems": 1},
    ],
)
def test_unique_items_that_can_be_listed(schema: dict[str, Any]) -> None:
    alphabet = [1, 2, 3, "a", None, True, False]
    check({**schema, "uniqueItems": True}, alphabet, 3)


def test_items_that_must_not_be_unique() -> None:
    check({"items": {"enum": [1, 2, 3]}, "not": {"uniqueItems": True}}, [1, 2, 3], 4)


def test_equal_items_that_cannot_be_listed_are_left_to_guards() -> None:
    normal = normalize({"type": "array", "items": {"type": ["string", "number"]}, "not": {"uniqueItems": True}})
    (obligation,) = normal.obligations
    assert (obligation.kind, obligation.counts, obligation.ordered) == ("repeats", True, True)
    checker = TextChecker(normal)
    assert checker.accepts(["x", 1, "x", 2])
    assert not checker.accepts(["x", 1, "1"])
    assert not checker.accepts(["x"])
    limited = TextChecker(normalize({**TWICE, "maxItems": 3}))
    assert limited.accepts(["x", "y", "x"])
    assert not limited.accepts(["x", "y", "z"])


def test_values_of_many_listed_ones_that_must_repeat_are_left_to_guards() -> None:
    assert not normalize({"items": {"enum": [1, 2, 3]}, "not": {"uniqueItems": True}}).obligations
    normal = normalize({"items": {"enum": list(range(40))}, "not": {"uniqueItems": True}})
    assert [one.kind for one in normal.obligations] == ["repeats"]
    assert TextChecker(normal).accepts([7, 8, 7])


TWICE: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "not": {"uniqueItems": True}}


def test_items_that_must_repeat_in_one_of_several_arrays_are_refused() -> None:
    repeated = {"anyOf": [TWICE, {"type": "array", "items": {"type": "integer"}}]}
    schema = {"type": "object", "properties": {"a": repeated}}
    with pytest.raises(SchemaRefused, match="'uniqueItems' at '/properties/a/anyOf/0/not'"):
        normalize(schema)
    left_out = normalize(schema, on_unsupported="ignore")
    assert [(refusal.pointer, refusal.keyword) for refusal in left_out.ignored] == [
        ("/properties/a/anyOf/0/not", "uniqueItems"),
    ]


def test_items_that_are_not_listed_are_left_to_guards() -> None:
    normal = normalize({"type": "array", "items": {"type": ["string", "number"]}, "uniqueItems": True, "minItems": 2})
    (obligation,) = normal.obligations
    assert (obligation.kind, obligation.counts, obligation.finite, obligation.ordered) == ("items", True, False, True)
    checker = TextChecker(normal)
    assert checker.accepts(["x", 1, "y", 1.5])
    assert not checker.accepts(["x", 1, "x"])
    # Equal numbers have one text.
    assert checker.accepts_text('["x",1.5]')
    assert not any(checker.accepts_text(f'["x",{text}]') for text in ("1.50", "15e-1", "-0", "1.0"))


def test_other_arrays_with_the_same_items_have_no_obligation() -> None:
    items = {"type": "array", "items": {"type": "string"}}
    schema = {"type": "object", "properties": {"a": items, "b": items | {"uniqueItems": True}, "c": items}}
    checker = TextChecker(normalize(schema | {"additionalProperties": False}))
    assert checker.accepts({"a": ["x", "x"], "b": ["x", "y"], "c": ["x", "x"]})
    assert not checker.accepts({"b": ["x", "x"]})


def test_sets_of_many_listed_values() -> None:
    items = {"enum": list(range(64))}
    normal = normalize({"type": "array", "items": items, "uniqueItems": True, "minItems": 2})
    assert normal.productions().size < 500
    assert normal.productions().shortest["start"] == len("[0,1]")
    checker = TextChecker(normal)
    assert checker.accepts(list(range(63, -1, -1)))
    assert not checker.accepts([*range(64), 0])
    assert not checker.accepts([7])
    assert not normal.obligations
    assert normalize({"type": "array", "items": {"enum": list(range(65))}, "uniqueItems": True}).obligations
    with pytest.raises(EmptySchema):
        normalize({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3})
    normal = normalize({"type": "array", "items": items, "uniqueItems": True, "maxItems": 2})
    assert accepts(normal, [3, 4])
    assert not accepts(normal, [3, 3])
    no_item = {"type": "object", "properties": {"a": False}, "required": ["a"]}
    check({"items": no_item, "uniqueItems": True}, [None, {}, {"a": 1}], 2)


def test_a_huge_minimum_is_not_unrolled() -> None:
    productions = normalize({"type": "array", "items": {"type": "null"}, "minItems": 10**9}).productions()
    assert productions.size < 20
    assert productions.shortest["start"] == 5 * 10**9 + 1
    with pytest.raises(SchemaRefused, match="keeping count"):
        normalize({"type": "array", "contains": {"type": "null"}, "minItems": 10**9})


def test_an_item_that_comes_first_and_again_is_written_once() -> None:
    point = {"type": "object", "properties": {"x": {"type": "string"}, "y": {"type": "null"}}, "required": ["x", "y"]}
    for high, rules in ((None, 2), (3, 2), (1, 1)):
        bounds = {} if high is None else {"maxItems": high}
        schema = {"type": "array", "items": {**point, "additionalProperties": False}, **bounds}
        normal = normalize(schema)
        assert len(normal.productions().rules) == rules
        value: Any = {"x": "a", "y": None}
        check(schema, [value, {"x": "a"}], min(high or 3, 3))


def test_a_counter_that_goes_far() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 10}, "minContains": 500}
    productions = normalize(schema).productions()
    assert productions.size < 40
    checker = TextChecker(normalize(schema))
    assert checker.accepts([1, *[10] * 250, 2, *[11] * 250, 3, 99])
    assert not checker.accepts([1, *[10] * 250, 2, *[11] * 249, 3])
    few = TextChecker(normalize({**schema, "minContains": 0, "maxContains": 300}))
    assert few.accepts([*[10] * 300, *[1] * 1000])
    assert not few.accepts([*[10] * 150, 1, *[10] * 151])
    assert few.accepts([])


@pytest.mark.parametrize("low", [0, 1, 2, 10])
@pytest.mark.parametrize("high", [None, 1, 3])
def test_counted_items_with_bounds_on_all_items(low: int, high: int | None) -> None:
    if high is not None and low > high:
        return
    count = {"minContains": low} if high is None else {"minContains": low, "maxContains": high}
    for bounds in ({}, {"minItems": 2}, {"maxItems": 4}, {"minItems": 1, "maxItems": 3}):
        if low <= bounds.get("maxItems", low):
            check({"items": {"enum": [1, "a"]}, "contains": {"const": 1}, **count, **bounds}, [1, "a", None], 5)
