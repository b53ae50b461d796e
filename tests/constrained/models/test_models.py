"""What pydantic and zod emit is enforced, or stands here by name with the reason.

Answers are random walks through the masks, closed after a few tokens: jsonschema takes each of them, and pydantic too
unless the schema that it emits says less than its type. Invalid values are refused.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from pydantic import TypeAdapter

from radixrt.constrained.schema import SchemaRefused, normalize
from radixrt.explain.value_check import accepts
from tests.constrained.models.pydantic_types import types
from tests.constrained.models.shares import ZOD, pydantic_problem, schema_problem

TYPES = dict(types())
SCHEMAS: dict[str, Any] = json.loads(ZOD.read_text(encoding="utf-8"))
SAYS_LESS = {
    "decimal": "a decimal of pydantic's schema is any string",
    "decimal digits": "no keyword counts digits",
    "http": "the format uri has other schemes",
    "base64": "the format base64 says nothing about the bytes, which a Base64Str reads as UTF-8",
    "json": "no keyword describes the text in a string",
    "dict of patterned keys": "patternProperties says nothing about other names",
    **{f"{kind} keys": f"no keyword says that names are texts of {kind}" for kind in ("int", "float", "bool")},
    "naive": "the format date-time has a zone",
    **dict.fromkeys(
        ("AnyHttpUrl", "FileUrl", "WebsocketUrl", "FtpUrl", "PostgresDsn", "RedisDsn", "KafkaDsn"),
        "no keyword says which schemes are allowed",
    ),
    "base64url": "as base64",
    "bounded bytes": "maxLength counts characters, not bytes",
    "longer than a day": "no keyword compares durations",
}
"""Types of which pydantic's schema admits values that pydantic refuses. The schema itself is enforced; a type that is
given to the engine is narrowed."""
REFUSED = {
    "pattern posix": "pattern: [:alpha:] is a class in Rust alone, and no text is read alike by all programs",
    "pattern operation": "pattern: && is an intersection in Rust alone, and no text is read alike by all programs",
}
"""Refused schemas, with the keyword and the reason."""
VALUES = [
    None,
    True,
    0,
    1,
    -1,
    3.5,
    4096,
    10**7 + 1,
    "",
    "a",
    "abc",
    "2024-01-31",
    "red",
    [],
    [1],
    ["a"],
    [1, "a"],
    [None],
    {},
    {"a": 1},
    {"a": "x"},
    {"kind": "cat", "lives": 3},
    {"kind": "dog"},
    {"x-a": 1},
    {"b": "s", "a": 1},
    {"the-a": 2},
]


def _check(name: str, problem: str | None) -> None:
    if name in REFUSED:
        assert problem is not None, f"{name} is enforced now: remove it from REFUSED"
        assert problem.startswith(f"refused: '{REFUSED[name].partition(':')[0]}'")
    else:
        assert problem is None, problem


@pytest.mark.parametrize("name", TYPES)
def test_pydantic(name: str) -> None:
    problem = pydantic_problem(TYPES[name])
    if name in SAYS_LESS:
        assert problem is not None, f"{name} is enforced now: remove it from SAYS_LESS"
        assert problem.startswith("answer")
        problem = schema_problem(TypeAdapter(TYPES[name]).json_schema())
    _check(name, problem)


@pytest.mark.parametrize("name", TYPES)
def test_a_type_given_to_an_engine(name: str) -> None:
    problem = pydantic_problem(TYPES[name], to_engine=True)
    if name == "json":
        assert problem is not None
        assert problem.endswith("use its type itself")
    else:
        _check(name, problem)


@pytest.mark.parametrize("name", SCHEMAS)
def test_zod(name: str) -> None:
    _check(name, schema_problem(SCHEMAS[name]))


def test_invalid_values_are_refused() -> None:
    schemas = {name: TypeAdapter(kind).json_schema() for name, kind in TYPES.items()} | SCHEMAS
    judged = 0
    for name, schema in schemas.items():
        if "\\p{" in json.dumps(schema) or "\\\\p{" in json.dumps(schema) or "\\\\z" in json.dumps(schema):
            continue  # jsonschema reads patterns by Python's re
        try:
            normal = normalize(schema)
        except SchemaRefused:
            continue
        validator = jsonschema.Draft202012Validator(schema)
        for value in VALUES:
            if not validator.is_valid(value):
                judged += 1
                assert not accepts(normal, value), (name, value)
    assert judged > 3_000
