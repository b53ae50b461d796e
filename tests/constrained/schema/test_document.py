"""Drafts, references and anchors, and refusals before normalization."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.constrained.schema import Limits, MalformedSchema, SchemaRefused, normalize
from radixrt.explain import value_check

DRAFTS = {
    "4": "http://json-schema.org/draft-04/schema#",
    "6": "http://json-schema.org/draft-06/schema",
    "7": "https://json-schema.org/draft-07/schema#",
    "2019-09": "https://json-schema.org/draft/2019-09/schema",
    "2020-12": "https://json-schema.org/draft/2020-12/schema",
}


def accepts(schema: Any, value: Any) -> bool:
    return value_check.accepts(normalize(schema), value)


@pytest.mark.parametrize(("name", "uri"), DRAFTS.items())
def test_the_draft_is_the_one_that_the_document_states(name: str, uri: str) -> None:
    assert normalize({"$schema": uri}).draft == name


def test_without_a_stated_draft_old_idioms_are_understood() -> None:
    assert normalize({}).draft == "2020-12 (not stated)"
    pair = {"type": "array", "items": [{"type": "null"}], "additionalItems": False}
    assert accepts(pair, [None])
    assert not accepts(pair, [None, None])
    assert not accepts({"type": "number", "minimum": 1, "exclusiveMinimum": True}, 1)
    assert not accepts({"dependencies": {"a": ["b"]}}, {"a": 1})
    assert accepts({"type": "string", "nullable": True}, None)


def test_a_stated_draft_is_kept_to() -> None:
    assert accepts({"$schema": DRAFTS["4"], "const": 1}, 2)
    assert normalize({"$schema": DRAFTS["4"], "const": 1}).annotations == [("", "const")]
    assert not accepts({"$schema": DRAFTS["2020-12"], "type": "string", "nullable": True}, None)
    with pytest.raises(MalformedSchema, match="prefixItems"):
        normalize({"$schema": DRAFTS["2020-12"], "items": [{}]})


def test_up_to_draft_7_nothing_counts_beside_a_reference() -> None:
    schema = {"$ref": "#/definitions/a", "maxLength": 1, "definitions": {"a": {"type": "string"}}}
    assert not accepts(schema, "ab")
    old = normalize({"$schema": DRAFTS["7"], **schema})
    assert value_check.accepts(old, "ab")
    assert ("", "maxLength") in old.annotations


@pytest.mark.parametrize(
    "reference",
    [
        "#/$defs/a~1b~0%25",
        "#there",
        "http://example.com/root.json#there",
        "other.json",
        "other.json#/$defs/deep",
        "#/x/y/0",
    ],
)
def test_references_within_the_document(reference: str) -> None:
    schema = {
        "$id": "http://example.com/root.json",
        "$ref": reference,
        "$defs": {
            "a/b~%": {"const": 1},
            "anchored": {"$anchor": "there", "const": 1},
            "other": {"$id": "other.json", "const": 1, "$defs": {"deep": {"const": 1}}},
        },
        "x": {"y": [{"const": 1}]},
    }
    assert accepts(schema, 1)
    assert not accepts(schema, 2)


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("http://example.com/other.json", "points out of this document"),
        ("#/$defs/none", "'none' is missing"),
        ("#nowhere", "no anchor 'nowhere'"),
        ("#/$defs/list/enum", "not a schema"),
        ("#/%ff", "not UTF-8"),
    ],
)
def test_references_that_cannot_be_resolved_are_refused_with_their_place(reference: str, reason: str) -> None:
    with pytest.raises(SchemaRefused, match=reason) as caught:
        normalize({"properties": {"p": {"$ref": reference}}, "$defs": {"list": {"enum": [1]}}})
    assert caught.value.errors[0].pointer == "/properties/p"
    assert caught.value.errors[0].keyword == "$ref"


def test_a_reference_to_an_official_metaschema() -> None:
    found = normalize({"$ref": "http://json-schema.org/draft-07/schema#"})
    assert value_check.accepts(found, {"type": "string", "minLength": 1})
    assert not value_check.accepts(found, {"type": "strin"})
    assert not value_check.accepts(found, {"required": ["a", "a"]})


def test_dynamic_references_land_in_the_outermost_resource() -> None:
    schema = {
        "$id": "http://example.com/strict",
        "$dynamicAnchor": "node",
        "$ref": "tree",
        "unevaluatedProperties": False,
        "$defs": {
            "tree": {
                "$id": "tree",
                "$dynamicAnchor": "node",
                "type": "object",
                "properties": {"children": {"type": "array", "items": {"$dynamicRef": "#node"}}},
            }
        },
    }
    assert accepts(schema, {"children": [{"children": []}]})
    assert not accepts(schema, {"children": [{"other": []}]})


def test_recursive_references_land_in_the_outermost_resource() -> None:
    schema = {
        "$schema": DRAFTS["2019-09"],
        "$id": "http://example.com/strict",
        "$recursiveAnchor": True,
        "$ref": "tree",
        "unevaluatedProperties": False,
        "$defs": {
            "tree": {
                "$id": "tree",
                "$recursiveAnchor": True,
                "properties": {"child": {"$recursiveRef": "#"}},
            }
        },
    }
    assert accepts(schema, {"child": {"child": 1}})
    assert not accepts(schema, {"child": {"other": 1}})


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ([1], "the root"),
        ("x", "the root"),
        ({"properties": {"a": 3}}, "'/properties/a'"),
        ({"properties": []}, "'/properties'"),
        ({"type": "strin"}, "'/type'"),
        ({"minLength": -1}, "'/minLength'"),
        ({"minimum": float("nan")}, "'/minimum'"),
        ({"const": float("inf")}, "'/const'"),
        ({"const": 10**5000}, "'/const'"),
        ({"const": object()}, "'/const'"),
        ({"enum": (1, 2)}, "'/enum'"),
        ({"required": True}, "'/required'"),
        ({"allOf": {}}, "'/allOf'"),
        ({"dependencies": {"a/b": "c"}}, "'/dependencies/a~1b'"),
        ({"properties": {1: {}}}, "'/properties'"),
        ({1: 2}, "the root"),
        ({"$schema": 4}, "'/$schema'"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(schema: Any, place: str) -> None:
    with pytest.raises(MalformedSchema, match="malformed") as caught:
        normalize(schema)
    assert place in caught.value.message


@pytest.mark.parametrize("uri", ["http://json-schema.org/draft-03/schema#", "http://example.com/mine"])
def test_other_dialects_are_refused(uri: str) -> None:
    with pytest.raises(SchemaRefused, match="not a known draft"):
        normalize({"$schema": uri})


def test_depth_and_size_have_limits() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"properties": {"a": deep}}
    with pytest.raises(SchemaRefused, match="nested more than 128 levels"):
        normalize(deep)
    with pytest.raises(SchemaRefused, match="more than 3 subschemas"):
        normalize({"allOf": [{}, {}, {}]}, limits=Limits(subschemas=3))
    chain = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(500)}
    with pytest.raises(SchemaRefused, match="nested in one another"):
        normalize({"$ref": "#/$defs/a0", "$defs": {**chain, "a500": {}}})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}},
    ],
)
def test_a_reference_that_leads_back_to_itself_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaRefused, match="leads back to itself"):
        normalize(schema)
