"""Closed objects: `unevaluatedProperties: false` beside all schemas that apply to an object together."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import pytest

from radixrt.constrained.schema import EmptySchema, normalize
from tests.constrained.schema.sampling import Sampler
from tests.constrained.schema.text_checker import TextChecker


def texts(schema: Any, **options: Any) -> TextChecker:
    return TextChecker(normalize(schema, **options))


def test_closed_objects() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {}}}, "c": {}}}
    checker = texts(schema, closed=True)
    assert checker.accepts({"a": {"b": 1}, "c": 1})
    assert not checker.accepts({"a": {"x": 1}, "c": 1})
    assert not checker.accepts({"c": 1, "d": 1})
    assert texts(schema | {"additionalProperties": {}}, closed=True).accepts({"c": 1, "d": 1})
    with pytest.raises(EmptySchema, match=r"objects are closed .* declare each required property"):
        normalize(schema | {"required": ["d"]}, closed=True)


def test_an_object_that_declares_no_members_stays_free() -> None:
    for schema in (
        {"type": "object"},
        {"minProperties": 1},
        {"required": ["free"]},
        {"propertyNames": {"minLength": 1}},
    ):
        assert texts(schema, closed=True).accepts({"free": 1, "more": 2})
    either = texts({"type": "object", "anyOf": [{"properties": {"a": {"type": "null"}}, "required": ["a"]},
                                                {"required": ["free"]}]}, closed=True)  # fmt: skip
    assert either.accepts({"free": 1, "more": 2})
    assert not either.accepts({"a": None, "more": 2})


PERSON = {"type": "object", "properties": {"name": {"type": "null"}}, "required": ["name"]}
DEFINED = {"$defs": {"person": PERSON, "aged": {"properties": {"age": {"type": "null"}}, "required": ["age"]}}}
REF, AGED = {"$ref": "#/$defs/person"}, {"$ref": "#/$defs/aged"}
TAGGED = [{"properties": {"kind": {"const": kind}, kind: {"type": "null"}}, "required": ["kind"]} for kind in "ab"]
CLOSED_AS_ONE: list[dict[str, Any]] = [
    {"allOf": [REF, AGED]},
    {**REF, "properties": {"age": {"type": "null"}}},
    {"allOf": [REF, {"allOf": [AGED, {"properties": {"a": {"type": "null"}}}]}]},
    {"type": "object", "properties": {"name": {"type": "null"}}, "anyOf": [AGED, {"required": ["name"]}]},
    {"type": "object", "anyOf": [AGED, {"properties": {"a": {"type": "null"}}}, REF]},
    {"type": "object", "oneOf": [AGED, REF]},
    {"type": "object", "oneOf": TAGGED, "properties": {"age": {"type": "null"}}},
    {"type": "object", "anyOf": TAGGED},
    {"type": "object", "oneOf": [{**REF, "required": ["name", "x"]}, {**AGED, "required": ["age", "x"]}],
     "properties": {"x": {"type": "null"}}},
    {"if": REF, "then": AGED, "else": {"properties": {"a": {"type": "null"}}}, "type": "object"},
    {**REF, "dependentSchemas": {"name": AGED}, "patternProperties": {"^x": {"type": "null"}}},
    {"allOf": [REF, {"properties": {"age": {"type": "null"}}, "additionalProperties": {"type": "null"}}]},
    {"allOf": [REF, {"not": {"properties": {"a": {"type": "null"}}, "required": ["a"]}}]},
    {"type": "object", "const": {"name": None}, "properties": {"name": {}}},
    {"enum": [{"name": None}, {"name": None, "more": 1}, None], "properties": {"name": {}}},
    {"type": "object", "anyOf": [{"properties": {name: {"type": "null"}}} for name in ("a", "b", "x", "age", "name")]},
    {"type": "object", "anyOf": [{"properties": {name: {"type": "null"}, "x": {"type": "null"}}}
                                 for name in ("a", "b", "x", "age", "name", "more", "kind")]},
    {"type": "object", "anyOf": [{**PERSON, "additionalProperties": False}, AGED,
                                 {"properties": {"a": {"type": "null"}}, "required": ["a"],
                                  "additionalProperties": {"type": "null"}}]},
    {"anyOf": [{**PERSON, "additionalProperties": False}, {"$ref": "#/$defs/aged", "additionalProperties": False}]},
]  # fmt: skip


@pytest.mark.parametrize("schema", CLOSED_AS_ONE, ids=lambda schema: str(schema)[:50])
def test_closing_is_unevaluated_properties_beside_the_whole(schema: dict[str, Any]) -> None:
    """All objects over some names are judged as jsonschema judges them with the keyword added, at two depths."""
    names = {"name": None, "age": None, "a": None, "b": None, "x": None, "kind": "a", "more": 1}
    values = [dict(chosen) for n in range(5) for chosen in itertools.combinations(names.items(), n)]
    values += [{**value, "kind": "b"} for value in values if "kind" in value]
    closed = {**schema, **DEFINED, "unevaluatedProperties": False}
    outer = {"type": "object", "properties": {"p": schema}, **DEFINED}
    judge = jsonschema.Draft202012Validator(closed)
    root, member = texts({**schema, **DEFINED}, closed=True), texts(outer, closed=True)
    accepted = 0
    for value in [None, *values]:
        expected = judge.is_valid(value)
        accepted += expected
        assert root.accepts(value) is expected, value
        assert member.accepts({"p": value}) is expected, value
        assert not member.accepts({"p": value, "q": 1})
    assert 0 < accepted < len(values)


def test_what_a_closed_schema_generates_is_valid() -> None:
    made = 0
    for schema in CLOSED_AS_ONE:
        judge = jsonschema.Draft202012Validator({**schema, **DEFINED, "unevaluatedProperties": False})
        productions = normalize({**schema, **DEFINED}, closed=True).productions()
        for seed in range(10):
            value = json.loads(Sampler(productions, seed).text())
            judge.validate(value)
            made += len(value) if isinstance(value, dict) else 0
    assert made > 100


def test_members_of_several_schemas_are_closed_as_one() -> None:
    parts = [{"properties": {"p": {"type": "object", "properties": {name: {"type": "null"}}}}} for name in "ab"]
    checker = texts({"type": "object", "allOf": parts}, closed=True)
    assert checker.accepts({"p": {"a": None, "b": None}})
    assert not checker.accepts({"p": {"a": None, "c": None}})
