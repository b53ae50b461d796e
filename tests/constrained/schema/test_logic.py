"""Choices, negations and conditions: exact results without an exponential number of branches."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from radixrt.constrained.schema import SchemaRefused, normalize
from radixrt.constrained.schema.limits import Budget, Limits
from radixrt.constrained.schema.normal_form.disjointness import is_discriminated
from radixrt.constrained.schema.normal_form.keywords.applicators import OneOf
from radixrt.constrained.schema.normal_form.solver import normal_form
from radixrt.explain.value_check import accepts
from tests.constrained.schema.text_checker import TextChecker


def check(schema: dict[str, Any], values: list[Any]) -> None:
    normal = normalize(schema)
    checker, validator = TextChecker(normal), jsonschema.Draft202012Validator(schema)
    for value in values:
        expected = validator.is_valid(value)
        assert accepts(normal, value) is expected, value
        assert checker.accepts(value) is expected, value


@pytest.mark.parametrize("outer", [{}, {"type": "string"}])
def test_one_of_thousands_of_values(outer: dict[str, Any]) -> None:
    options = [{"const": f"v{number}", "title": str(number)} for number in range(5000)]
    normal = normalize({"oneOf": options, **outer})
    assert accepts(normal, "v4999")
    assert not accepts(normal, "v5000")


def test_one_of_thousands_of_tagged_objects() -> None:
    normal = normalize({"oneOf": [{"properties": {"k": {"const": n}}, "required": ["k"], "type": "object"} for n in
                                  range(4500)]})  # fmt: skip
    assert accepts(normal, {"k": 4499, "x": 1})
    assert not accepts(normal, {"k": 4500})


SHAPES = [{}, {"a": 1}, {"a": "x"}, {"b": 1}, {"a": 1, "b": 1}, {"a": 1, "b": "x"}, {"c": None}, {"a": 1, "c": 1}]
SCALARS = [None, True, 0, 1, 1.5, 6, 7, "", "x", "xx", [], [1], *SHAPES]


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
        {"oneOf": [{"type": "string"}, {"maxLength": 1}]},
        {"oneOf": [True, {"required": ["a"]}]},
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"oneOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"required": ["b"]}]},
        {"not": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}},
        {"oneOf": [{"const": 0, "title": "none"}, {"enum": ["x", "xx"], "maxLength": 1}, {"const": {"a": 1}}]},
        {"oneOf": [{"enum": [0, 1]}, {"enum": [1, 6]}]},
        {"oneOf": [{"$ref": "#/$defs/x"}, {"const": 7}], "$defs": {"x": {"enum": ["x", 1.5]}}, "type": "number"},
        {"not": {"oneOf": [{"const": 0}, {"const": "x"}]}},
        {"oneOf": [{"const": {"a": 1}, "properties": {"a": {}}}, {"const": 1}], "unevaluatedProperties": False},
        {"anyOf": [{"type": "string", "maxLength": 1}, {"required": ["a"]}, {"const": [1]}]},
        {"not": {"anyOf": [{"type": "integer"}, {"type": "object"}]}},
        {"not": {"enum": [0, "x", [1], {"a": 1}, None, True]}},
        {"not": {"const": {"a": 1, "b": 1}}},
        {"allOf": [{"multipleOf": 2}, {"multipleOf": 3}]},
        {"if": {"type": "object"}, "then": {"required": ["a"]}, "else": {"type": "string"}},
        {"if": {"required": ["a"]}, "then": {"properties": {"a": {"type": "integer"}}}},
        {"not": {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"type": "string"}}},
        {"dependentSchemas": {"a": {"required": ["b"]}}},
        {"dependentRequired": {"a": ["b"], "b": ["a"]}},
        {"not": {"dependentRequired": {"a": ["b"]}}},
        {"not": {"properties": {"a": {"type": "integer"}}}},
        {"not": {"required": ["a", "b"]}},
        {"not": {"propertyNames": {"enum": ["a", "b"]}}},
        {"not": {"type": "object", "minProperties": 1}},
        {"not": {"not": {"type": ["string", "integer"]}}},
        {"enum": [1, "x", {"a": 1}, [1]], "not": {"type": "string"}},
        {"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}], "unevaluatedProperties": False},
        {"oneOf": [{"properties": {"a": {}}, "required": ["a"]}, {"required": ["c"]}], "unevaluatedProperties": False},
        {
            "if": {"required": ["a"], "properties": {"a": {}}},
            "else": {"required": ["b"]},
            "unevaluatedProperties": False,
        },
        {"not": {"properties": {"a": {}}, "unevaluatedProperties": False}},
        {"allOf": [{"properties": {"a": {}}, "unevaluatedProperties": {}}], "unevaluatedProperties": False},
    ],
)
def test_against_the_specification(schema: dict[str, Any]) -> None:
    check(schema, SCALARS)


def size(schema: Any) -> int:
    return normalize(schema).productions().size


def test_conditions_that_exclude_one_another_do_not_multiply() -> None:
    def chain(length: int) -> dict[str, Any]:
        conditions = [
            {
                "if": {"properties": {"kind": {"const": f"k{number:02}"}}},
                "then": {"required": [f"f{number:02}"], "properties": {f"f{number:02}": {"type": "string"}}},
            }
            for number in range(length)
        ]
        kinds = {"enum": [f"k{number:02}" for number in range(length)]}
        return {"type": "object", "properties": {"kind": kinds}, "required": ["kind"], "allOf": conditions}

    assert size(chain(24)) < 6 * size(chain(8))


def test_options_told_apart_by_a_tag_keep_their_own_rules() -> None:
    options = [
        {"properties": {"tag": {"const": number}, "v": {"type": "string"}}, "required": ["tag"]} for number in range(40)
    ]
    tagged = {"oneOf": [{"type": "object", **option} for option in options]}
    assert size(tagged) < 41 * size(tagged["oneOf"][0])
    check(tagged, [{"tag": 3, "v": "x"}, {"tag": 3, "v": 1}, {"tag": 41}, {}])


def test_tags_of_schemas_that_refer_to_one_another_are_looked_for_once() -> None:
    """The references double at each of 26 levels."""
    twice = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(26)}
    last = {"type": "object", "properties": {"t": {"const": "b"}}, "required": ["t"]}
    outer = {"type": "object", "properties": {"t": {"enum": ["a", "b"]}}, "required": ["t"]}
    schema = {**outer, "oneOf": [{"properties": {"t": {"const": "a"}}}, {"$ref": "#/$defs/a0"}]}
    normal = normalize({**schema, "$defs": {**twice, "a26": last}})
    assert [accepts(normal, {"t": tag}) for tag in "abc"] == [True, True, False]


def test_a_pattern_with_one_text_is_a_tag() -> None:
    """Comparing forty options in pairs takes tens of milliseconds."""
    patterns = [{"type": "string", "pattern": f"^k{number}$"} for number in range(5)]
    for tags, expected in ((patterns, True), ([{"pattern": each["pattern"]} for each in patterns], False)):
        options = [{"type": "object", "properties": {"tag": tag}, "required": ["tag"]} for tag in tags]
        graph = normal_form({"oneOf": options}, Budget(Limits()))
        (assertion,) = graph.assertions(graph.document.root)
        assert isinstance(assertion, OneOf)
        assert is_discriminated(graph, assertion) is expected
        check({"oneOf": options}, [{"tag": "k3"}, {"tag": "k5"}, {"tag": 1}, {}])


def test_options_with_a_member_of_their_own_do_not_multiply() -> None:
    options = [
        {"type": "object", "properties": {f"k{n:02}": {"type": "null"}}, "required": [f"k{n:02}"]} for n in range(20)
    ]
    assert size({"oneOf": options}) < 21 * size({"oneOf": options[:5]})
    check({"oneOf": options}, [{"k03": None}, {"k03": None, "k04": 1}, {"k03": None, "k04": None}, {"k03": 1}, {}])


def test_a_tag_that_only_the_outer_schema_requires_tells_options_apart() -> None:
    def tagged(number: int) -> dict[str, Any]:
        kind: Any = {"enum": [f"k{number}", "both"]} if number in (3, 4) else {"const": f"k{number}"}
        return {"properties": {"kind": kind, f"v{number}": {"type": "string"}}}

    schema = {"type": "object", "required": ["kind"], "oneOf": [tagged(number) for number in range(40)]}
    check(schema, [{"kind": "k3"}, {"kind": "k3", "v3": 1}, {"kind": "k3", "v4": 1}, {"kind": "both"}, {}])
    check(schema, [{"kind": "both", "v3": 1}, {"kind": "both", "v3": "x"}, {"kind": "k9", "v9": "x"}])
    normalize(schema, limits=Limits(nodes=300))  # comparing the options in pairs takes 780 nodes


def test_choices_that_really_multiply_are_refused_with_their_place() -> None:
    choices = [{"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(16)]
    with pytest.raises(SchemaRefused, match=r"'allOf' at '/properties/p'.*more than 4000 alternatives"):
        normalize({"properties": {"p": {"type": "object", "allOf": choices}}, "type": "object"})


def test_recursion_through_choices() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}}}
    schema = {
        "$ref": "#/$defs/tree",
        "$defs": {"tree": {"anyOf": [{"type": "null"}, {**tree, "required": ["left"], "additionalProperties": False}]}},
    }
    leaf: Any = {"left": None}
    check(schema, [None, leaf, {"left": leaf, "right": leaf}, {"right": None}, {"left": {"left": 1}}])


def test_the_same_subschema_twice_is_worked_out_once() -> None:
    schema: Any = {"type": "string"}
    for _ in range(25):
        schema = {"anyOf": [schema, {"allOf": [schema]}]}
    assert size(schema) < 40
