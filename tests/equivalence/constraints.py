"""Schemas and texts for generation tests: typical requests, and difficult ones."""

from __future__ import annotations

from typing import Any

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}

SCHEMAS: dict[str, Any] = {
    "person": PERSON,
    "open object": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    "anything": True,
    "json object": {"type": "object"},
    "nested": {
        "type": "object",
        "properties": {"one": PERSON, "many": {"type": "array", "items": PERSON, "minItems": 1, "maxItems": 2}},
        "required": ["one", "many"],
        "additionalProperties": False,
    },
    "tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "number"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["value", "children"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "strings": {
        "type": "object",
        "properties": {
            "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,6}$"},
            "path": {"type": "string", "pattern": "\\.(png|jpg)$", "maxLength": 40},
            "quote": {"type": "string", "minLength": 3, "maxLength": 9},
            "day": {"type": "string", "format": "date"},
            "at": {"type": "string", "format": "date-time"},
            "key": {"type": "string", "format": "uuid"},
        },
        "required": ["id", "path", "quote", "day", "at", "key"],
        "additionalProperties": False,
    },
    "unicode": {"enum": ["naïve", "日本語", "🙂🙃", 'say "hi"\n', "tab\tand \\"]},
    "numbers": {
        "type": "array",
        "prefixItems": [
            {"type": "integer", "exclusiveMinimum": -5, "maximum": 1234},
            {"type": "number", "minimum": 0.25, "exclusiveMaximum": 1},
            {"type": "integer", "multipleOf": 7, "minimum": 70},
            {"type": "number", "multipleOf": 0.5, "minimum": -2, "maximum": 2},
            {"type": "number"},
        ],
        "items": False,
        "minItems": 5,
    },
    "union": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}},
                "required": ["kind", "x"],
            },
            {"type": "object", "properties": {"kind": {"const": "b"}, "y": {"type": "string"}}, "required": ["kind"]},
            {"type": "null"},
        ]
    },
    "exclusive": {
        "oneOf": [{"type": "integer", "minimum": 10}, {"type": "integer", "maximum": 20}, {"type": "boolean"}],
    },
    "conditional": {
        "type": "object",
        "properties": {"kind": {"enum": ["file", "url"]}, "path": {"type": "string"}, "url": {"type": "string"}},
        "required": ["kind"],
        "if": {"properties": {"kind": {"const": "file"}}},
        "then": {"required": ["path"]},
        "else": {"required": ["url"]},
        "additionalProperties": False,
    },
    "inherited": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"a": {"minimum": 3}, "b": {"type": "string", "maxLength": 5}}, "required": ["b"]},
        ],
        "unevaluatedProperties": False,
    },
    "not": {"type": "string", "maxLength": 6, "not": {"enum": ["", "no"]}},
    "map": {
        "type": "object",
        "patternProperties": {"^x-": {"type": "boolean"}},
        "propertyNames": {"maxLength": 8},
        "additionalProperties": {"type": "integer"},
        "minProperties": 1,
        "maxProperties": 4,
    },
    "contains": {"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 100}, "maxItems": 4},
    "unique": {"type": "array", "items": {"enum": ["r", "g", "b"]}, "uniqueItems": True, "minItems": 2},
    "dependent": {
        "type": "object",
        "properties": {"card": {"type": "integer"}, "address": {"type": "string", "maxLength": 9}},
        "dependentRequired": {"card": ["address"]},
        "additionalProperties": False,
    },
    "long constant": {
        "const": {"text": "a constant text that takes more than a few tokens to write", "list": [1, 2, [3.5]]}
    },
}

REGEXES = [
    r"[a-z]+@[a-z]+\.(com|org)",
    r"\d{4}-\d{2}",
    r"(yes|no|maybe)( [a-z]{1,9}){0,3}\.",
    r"(?:ab|cd)*ef",
    r"[^\n]{5,60}",
]

EBNFS = [
    'root ::= expr\nexpr ::= term (("+" | "-") term)*\nterm ::= [0-9]+ | "(" expr ")"',
    'root ::= "select " name (", " name)* " from " name\nname ::= [a-z]{1,8}',
]
