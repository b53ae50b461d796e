"""Unknown keywords near known ones are remarked on; annotations are not."""

from __future__ import annotations

import json

import pytest

from radixrt.constrained.compile.compiler import parse_constraint
from radixrt.constrained.schema.document.misspelt import near_keyword
from radixrt.constraint import Constraint
from tests.constrained.vocabularies import small_vocabulary

MISSPELT = {
    "requred": "required",
    "requires": "required",
    "additionalPropertes": "additionalProperties",
    "additional_properties": "additionalProperties",
    "unevaluatedPropertys": "unevaluatedProperties",
    "minlength": "minLength",
    "maxItem": "maxItems",
    "minimun": "minimum",
    "one_of": "oneOf",
    "anyof": "anyOf",
    "types": "type",
    "item": "items",
    "ref": "$ref",
    "definition": "definitions",
    "multiple_of": "multipleOf",
    "foramt": "format",
    "pattrn": "pattern",
}
ANNOTATIONS = [
    "title",
    "description",
    "default",
    "example",
    "examples",
    "nullable",
    "discriminator",
    "xml",
    "externalDocs",
    "enumNames",
    "enumDescriptions",
    "markdownDescription",
    "defaultSnippets",
    "errorMessage",
    "propertyOrder",
    "order",
    "note",
    "notes",
    "cost",
    "unit",
    "content",
    "optional",
    "property",
    "options",
    "contentEncoding",
    "contentMediaType",
    "x-required",
    "x-enum-varnames",
    "_format",
    "readOnly",
    "deprecated",
    "$comment",
    "$schema",
    "tsType",
    "meta",
]


@pytest.mark.parametrize(("name", "meant"), MISSPELT.items())
def test_names_near_a_keyword(name: str, meant: str) -> None:
    assert near_keyword(name) == meant


@pytest.mark.parametrize("name", ANNOTATIONS)
def test_annotations_are_silent(name: str) -> None:
    assert near_keyword(name) is None


def test_the_report_of_an_answer_names_them() -> None:
    schema = {
        "type": "object",
        "requred": ["a"],
        "properties": {"a": {"type": "string", "maxlength": 3}, "requred": {}},
    }
    constraint = Constraint(kind="json_schema", source=json.dumps(schema))
    assert list(parse_constraint(constraint, small_vocabulary("byte_level")).ignored) == [
        ": requred (unknown; required is a keyword)",
        "/properties/a: maxlength (unknown; maxLength is a keyword)",
    ]


def test_the_report_of_tags_names_them() -> None:
    tag = {
        "type": "structural_tag",
        "format": {"type": "json_schema", "json_schema": {"minlength": 1, "type": "string"}},
    }
    constraint = Constraint(kind="structural_tag", source=json.dumps(tag))
    (remark,) = parse_constraint(constraint, small_vocabulary("byte_level")).ignored
    assert remark.endswith("minlength (unknown; minLength is a keyword)")
