"""The kinds of values that places in a schema allow."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.constrained.tags.argument_kinds import ValuePlace
from radixrt.constrained.tags.argument_styles import KINDS

NODE: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "left": {"$ref": "#/$defs/node"}, "right": {"$ref": "#/$defs/node"}},
    "additionalProperties": {"type": ["integer", "null"]},
}


def place(schema: Any, *path: str | None) -> ValuePlace:
    """The place behind names of members; None is an item of an array."""
    found = ValuePlace.of(schema)
    for name in path:
        found = found.item if name is None else found.member(name)
    return found


@pytest.mark.parametrize(
    ("schema", "path", "kinds"),
    [
        ({"properties": {"a": {"type": "string"}}}, ["a"], {"string"}),
        ({"properties": {"a": {"type": ["integer", "null"]}}}, ["a"], {"number", "null"}),
        ({"properties": {"a": {"enum": ["x", 1, []]}}}, ["a"], {"string", "number", "array"}),
        ({"properties": {"a": {"const": {}}}}, ["a"], {"object"}),
        ({"properties": {}, "additionalProperties": {"type": "boolean"}}, ["b"], {"boolean"}),
        ({"additionalProperties": {"type": "boolean"}, "patternProperties": {"x": {}}}, ["b"], set(KINDS)),
        ({"properties": {"a": False}}, ["a"], set()),
        ({"properties": 5}, ["a"], set(KINDS)),
        (True, ["a", None], set(KINDS)),
        (
            {"allOf": [{"properties": {"a": {"type": ["string", "array"]}}}, {"properties": {"a": {"type": "array"}}}]},
            ["a"],
            {"array"},
        ),
        (
            {"anyOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"a": {"type": "array"}}}]},
            ["a"],
            {"string", "array"},
        ),
        ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, ["left", "right", "name"], {"string"}),
        ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, ["left", "other"], {"number", "null"}),
        ({"items": {"type": "string"}, "prefixItems": [{"type": "number"}]}, [None], {"string", "number"}),
        ({"items": [{"type": "number"}], "additionalItems": {"type": "null"}}, [None], {"number", "null"}),
        ({"items": {"properties": {"a": {"type": "string"}}}}, [None, "a"], {"string"}),
    ],
)
def test_kinds_at_a_place(schema: Any, path: list[str | None], kinds: set[str]) -> None:
    assert place(schema, *path).kinds == kinds


def test_places_of_a_recursive_schema_are_few() -> None:
    whole = place({"$ref": "#/$defs/node", "$defs": {"node": NODE}})
    assert whole.member("left") == whole.member("right") == whole.member("left").member("right")
    assert whole.member("left").member("name") != whole.member("left")


@pytest.mark.parametrize("keyword", ["anyOf", "allOf"])
def test_combinations_without_end_are_read_quickly(keyword: str) -> None:
    loop = {"$ref": "#/$defs/n", "$defs": {"n": {keyword: [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/n"}]}}}
    assert place(loop).kinds == KINDS
    wide = {f"d{i}": {keyword: [{"title": title, "$ref": f"#/$defs/d{i + 1}"} for title in "ab"]} for i in range(40)}
    assert place({"$ref": "#/$defs/d0", "$defs": wide}).kinds == KINDS
    grows = {"properties": {"a": {keyword: [{"$ref": "#/$defs/n", "title": str(i)} for i in range(3)]}}}
    found = place({"$ref": "#/$defs/n", "$defs": {"n": grows}})
    for _ in range(50):
        found = found.member("a")
    assert found.kinds == KINDS
