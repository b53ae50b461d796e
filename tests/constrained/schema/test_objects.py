"""Objects as texts: order, optional members, undeclared names, counting, members that must exist."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixrt.constrained.recognizer import Recognizer
from radixrt.constrained.schema import EmptySchema, SchemaRefused, normalize
from radixrt.constrained.tags.structural_tag import read_structural_tag
from radixrt.constraint import StructuredOptions
from radixrt.errors import RequestError
from tests.constrained.schema.text_checker import TextChecker


def texts(schema: Any, **options: Any) -> TextChecker:
    return TextChecker(normalize(schema, **options))


def test_declared_members_come_in_the_order_of_the_document_then_the_others() -> None:
    checker = texts({"properties": {"b": {}, "a": {}}, "required": ["z", "a"], "type": "object"})
    assert checker.accepts_text('{"b":1,"a":1,"z":1}')
    assert checker.accepts_text('{"a":1,"z":1,"y":1,"x":1}')
    assert not checker.accepts_text('{"a":1,"b":1,"z":1}')
    assert not checker.accepts_text('{"y":1,"a":1,"z":1}')
    assert not checker.accepts_text('{"a":1,"z":1,"a":1}')


def test_a_choice_keeps_its_place_in_the_order() -> None:
    either = [{"properties": {"kind": {"const": kind}}, "required": [kind]} for kind in ("x", "y")]
    members = {"x": {}, "y": {}, "kind": {}}
    first = texts({"type": "object", "oneOf": either, "properties": members})
    assert first.accepts_text('{"kind":"x","x":1}')
    last = texts({"type": "object", "properties": members, "oneOf": either})
    assert last.accepts_text('{"x":1,"kind":"x"}')


@pytest.mark.parametrize("required", [[], ["a"], ["b"], ["c"], ["a", "c"], ["a", "b", "c"]])
def test_commas_are_right_whatever_is_left_out(required: list[str]) -> None:
    checker = texts(
        {
            "type": "object",
            "properties": {name: {"type": "null"} for name in "abc"},
            "required": required,
            "additionalProperties": False,
        }
    )
    for choice in range(8):
        names = [name for bit, name in enumerate("abc") if choice >> bit & 1]
        text = "{" + ",".join(f'"{name}":null' for name in names) + "}"
        assert checker.accepts_text(text) is (set(required) <= set(names))
    for wrong in ('{,"a":null}', '{"a":null,}', '{"a":null"b":null}', '{"a":null,,"b":null}'):
        assert not checker.accepts_text(wrong)


def test_the_grammar_is_linear_in_the_number_of_optional_members() -> None:
    def size(count: int) -> int:
        members = {f"p{number:03}": {"type": "string"} for number in range(count)}
        return normalize({"type": "object", "properties": members}).productions().size

    assert size(400) < 4.2 * size(100)


def test_optional_members_before_a_required_one_need_no_rules() -> None:
    members = {name: {"type": "null"} for name in "abcdef"}
    closed = {"type": "object", "properties": members, "additionalProperties": False}
    assert list(normalize({**closed, "required": ["f"]}).productions().rules) == ["start"]
    assert len(normalize(closed).productions().rules) == len(members)


def test_equal_members_of_different_objects_are_written_once() -> None:
    def rows(kinds: int) -> int:
        names = {name: {"type": "string"} for name in "abcdefgh"}
        objects = [
            {"type": "object", "properties": {**names, "kind": {"const": kind}}, "required": ["kind"]}
            for kind in range(kinds)
        ]
        return len(normalize({"anyOf": objects}).productions().layout.order)

    assert rows(11) - rows(1) < 10 * len("abcdefgh")


def test_undeclared_names_are_told_apart_by_patterns() -> None:
    checker = texts(
        {
            "type": "object",
            "properties": {"x-a": {"minimum": 5}},
            "patternProperties": {"^x-": {"type": "integer"}, "9$": {"minimum": 10}},
            "additionalProperties": {"type": "string"},
        }
    )
    assert checker.accepts({"x-a": 5, "x-b": 1, "y": "", "x-9": 10})
    assert not checker.accepts({"x-a": 1})
    assert not checker.accepts({"x-a": 5.5})
    assert not checker.accepts({"x-9": 9})
    assert not checker.accepts({"x-b": ""})
    assert checker.accepts({"9": 10})
    assert not checker.accepts({"9": 9})
    assert not checker.accepts({"y": 1})


def test_names_that_can_be_listed_are_declared_ones() -> None:
    patterns = {"^(b|a)$": {"type": "null"}}
    checker = texts({"type": "object", "patternProperties": patterns, "additionalProperties": False})
    assert checker.accepts_text('{"a":null,"b":null}')
    assert not checker.accepts_text('{"a":null,"a":null}')
    names = texts({"type": "object", "propertyNames": {"enum": ["b", "a"]}, "minProperties": 2})
    assert names.accepts_text('{"b":1,"a":2}')
    assert not names.accepts({"b": 1})


@pytest.mark.parametrize(("low", "high"), [(0, 0), (0, 2), (1, 1), (2, 3), (3, 3), (1, 4)])
def test_declared_members_are_counted(low: int, high: int) -> None:
    schema = {
        "type": "object",
        "properties": {name: {"type": "null"} for name in "abcd"},
        "required": ["b"] if low else [],
        "additionalProperties": False,
        "minProperties": low,
        "maxProperties": high,
    }
    checker = texts(schema)
    for choice in range(16):
        names = [name for bit, name in enumerate("abcd") if choice >> bit & 1]
        expected = low <= len(names) <= high and (not low or "b" in names)
        assert checker.accepts_text("{" + ",".join(f'"{name}":null' for name in names) + "}") is expected


def test_undeclared_members_are_counted() -> None:
    assert texts({"type": "object", "minProperties": 1}).accepts({"a": 1})
    assert not texts({"type": "object", "minProperties": 1}).accepts({})
    checker = texts({"type": "object", "required": ["a"], "minProperties": 2, "maxProperties": 3})
    assert not checker.accepts({"a": 1})
    assert checker.accepts({"a": 1, "b": 1})
    assert not checker.accepts_text('{"a":1,"b":1,"c":1,"d":1}')
    checker = texts({"type": "object", "minProperties": 2})
    assert checker.accepts({"a": 1, "b": 1})
    assert not checker.accepts({"a": 1})
    assert not checker.accepts_text('{"a":1,"a":2}')
    few = {"type": "object", "propertyNames": {"maxLength": 1, "pattern": "^[a-z]*$"}}
    assert not texts({**few, "minProperties": 27}).accepts({})
    with pytest.raises(EmptySchema):
        normalize({**few, "minProperties": 28})
    with pytest.raises(EmptySchema):
        normalize({"type": "object", "propertyNames": {"pattern": "^[a-z]{2}$"}, "minProperties": 26 * 26 + 1})


def test_a_member_that_must_exist_cannot_be_replaced_by_a_later_one() -> None:
    schema = {"type": "object", "not": {"additionalProperties": {"type": "string"}}}
    checker = texts(schema)
    assert checker.accepts({"a": 1, "b": "x"})
    assert not checker.accepts({"a": "x"})
    assert not checker.accepts({})
    recognizer = Recognizer(normalize(schema).productions())
    last = recognizer.advance(recognizer.start(), '{"a":1')
    assert last is not None
    assert recognizer.must_end(last) is False
    assert not checker.accepts_text('{"a":1,"a":"x"}')


def test_two_members_that_must_exist() -> None:
    first = {"not": {"patternProperties": {"^a": {"type": "string"}}}}
    second = {"not": {"patternProperties": {"^b": {"type": "string"}}}}
    checker = texts({"type": "object", "allOf": [first, second]})
    assert checker.accepts({"a": 1, "b": 1})
    assert not checker.accepts({"a": 1})
    clash = {"not": {"patternProperties": {"a": {"type": "integer"}}}}
    either = texts({"type": "object", "allOf": [first, clash]})
    assert either.accepts({"a": None})
    assert either.accepts({"a": 1, "ba": ""})
    assert not either.accepts({"b": ""})
    assert not either.accepts({"a": ""})
    only_one = texts({"type": "object", "allOf": [first, clash], "maxProperties": 1})
    assert only_one.accepts({"a": None})
    assert not only_one.accepts({"a": ""})


@pytest.mark.parametrize(
    "schema",
    [
        {"minProperties": 2},
        {
            "allOf": [
                {"not": {"patternProperties": {one: {"type": kind}}}}
                for one, kind in (("^a", "string"), ("b$", "null"))
            ]
        },
        {"allOf": [{"not": {"additionalProperties": {"type": kind}}} for kind in ("string", "integer")]},
    ],
)
def test_without_guards_a_schema_that_relies_on_them_is_refused(schema: dict[str, Any]) -> None:
    """Members between tags have none; the JSON within a structural tag has them."""
    schema = {"type": "object", **schema}
    assert normalize(schema).obligations
    with pytest.raises(SchemaRefused, match="between tags"):
        normalize(schema, guarded=False)
    form = {"type": "json_schema", "json_schema": schema}
    tag = {"type": "structural_tag", "format": form}
    assert read_structural_tag(json.dumps(tag), StructuredOptions()).obligations
    form["style"] = "qwen_xml"
    with pytest.raises(RequestError, match="between tags"):
        read_structural_tag(json.dumps(tag), StructuredOptions())


def test_without_guards_a_member_that_must_exist_cannot_be_replaced() -> None:
    schema = {"type": "object", "not": {"additionalProperties": {"type": "string"}}}
    recognizer = Recognizer(normalize(schema, guarded=False).productions())
    assert recognizer.advance(recognizer.start(), '{"b":"x","a":1') is not None
    assert recognizer.advance(recognizer.start(), '{"a":1,"a":"x"}') is None


def test_members_without_a_possible_value_are_left_out() -> None:
    checker = texts({"type": "object", "properties": {"a": {"$ref": "#/$defs/endless"}}, "$defs": ENDLESS})
    assert checker.accepts({})
    assert not checker.accepts({"a": {}})
    with pytest.raises(EmptySchema, match=r"'a'.*'/properties/a/allOf/1'"):
        normalize({"type": "object", "properties": {"a": {"allOf": [{"const": 1}, {"const": 2}]}}, "required": ["a"]})
    with pytest.raises(EmptySchema, match="never come to an end"):
        normalize({"$ref": "#/$defs/endless", "$defs": ENDLESS})


ENDLESS = {"endless": {"type": "object", "properties": {"next": {"$ref": "#/$defs/endless"}}, "required": ["next"]}}


def test_whitespace_between_tokens() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "null"}}, "b": {"const": {"x": [1, {}]}}},
        "additionalProperties": False,
    }
    productions = normalize(schema).productions(2)
    recognizer = Recognizer(productions)

    def accepted(text: str) -> bool:
        state = recognizer.advance(recognizer.start(), text)
        return state is not None and recognizer.is_complete(state)

    for text in ("{}", "{ }", '{"a":[],"b":{"x":[1,{}]}}', '{ "a": [ null,\n\tnull ] , "b": 1'.replace(" ,", ",")[:24]):
        assert accepted(text) is (text.count("{") == text.count("}"))
    assert accepted('{\n "a": [ null,\n null\n ],\n "b": {\n "x": [ 1, {} ]\n }\n }')
    assert not accepted('{   "a":[]}')
    assert not accepted('{"a" :[]}')
    assert not accepted(' {"a":[]}')
