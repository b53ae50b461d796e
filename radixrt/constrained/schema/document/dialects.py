"""The drafts of JSON Schema: their keywords, the keywords that hold subschemas, and checks of keyword values.

A document names its draft in `$schema`. Without one it is read as draft 2020-12 that also understands the idioms of
the older drafts where they cannot mean anything else (`items` as an array, `additionalItems`, `dependencies`, boolean
`exclusiveMinimum`, `nullable` of OpenAPI).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from radixrt.constrained.schema.values import TYPE_BITS, is_integer, is_number
from radixrt.errors import shown

Check = Callable[[Any], str | None]
"""Returns the problem with a keyword's value, or None."""

SCHEMA, SCHEMA_LIST, SCHEMA_MAP, SCHEMA_OR_LIST, DEPENDENCIES = range(5)

POSITIONS = {
    "additionalItems": SCHEMA,
    "additionalProperties": SCHEMA,
    "allOf": SCHEMA_LIST,
    "anyOf": SCHEMA_LIST,
    "contains": SCHEMA,
    "definitions": SCHEMA_MAP,
    "$defs": SCHEMA_MAP,
    "dependencies": DEPENDENCIES,
    "dependentSchemas": SCHEMA_MAP,
    "else": SCHEMA,
    "if": SCHEMA,
    "items": SCHEMA_OR_LIST,
    "not": SCHEMA,
    "oneOf": SCHEMA_LIST,
    "patternProperties": SCHEMA_MAP,
    "prefixItems": SCHEMA_LIST,
    "properties": SCHEMA_MAP,
    "propertyNames": SCHEMA,
    "then": SCHEMA,
    "unevaluatedItems": SCHEMA,
    "unevaluatedProperties": SCHEMA,
}
"""Keywords whose values are or hold subschemas."""

COMMENTS = frozenset(("title", "description", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly"))
"""Annotations that any schema may have and that are never checked."""


def _string(value: Any) -> str | None:
    return None if isinstance(value, str) else f"it must be a string, not {shown(value)}"


def _boolean(value: Any) -> str | None:
    return None if isinstance(value, bool) else f"it must be true or false, not {shown(value)}"


def _count(value: Any) -> str | None:
    if is_integer(value) and value >= 0:
        return None
    return f"it must be a whole number of at least 0, not {shown(value)}"


def _number(value: Any) -> str | None:
    if not is_number(value):
        return f"it must be a number, not {shown(value)}"
    if type(value) is int and value.bit_length() > 10_000:
        return "it has thousands of digits"
    return None


def _number_or_boolean(value: Any) -> str | None:
    return None if isinstance(value, bool) else _number(value)


def _positive(value: Any) -> str | None:
    problem = _number(value)
    if problem is None and value <= 0:
        problem = f"it must be greater than 0, not {shown(value)}"
    return problem


def _names(value: Any) -> str | None:
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return None
    if isinstance(value, bool):
        return "it must be a list of property names; true and false were for draft 3"
    return f"it must be a list of property names, not {shown(value)}"


def _types(value: Any) -> str | None:
    for name in value if isinstance(value, list) else [value]:
        if not isinstance(name, str) or name not in TYPE_BITS:
            return f"{shown(name)} is no type; the types are {', '.join(TYPE_BITS)}"
    return None


def _values(value: Any) -> str | None:
    return None if isinstance(value, list) else f"it must be a list of values, not {shown(value)}"


def _name_lists(value: Any) -> str | None:
    if not isinstance(value, dict):
        return f"it must be an object, not {shown(value)}"
    return next((problem for problem in map(_names, value.values()) if problem), None)


CHECKS: dict[str, Check] = {
    "$anchor": _string,
    "$dynamicAnchor": _string,
    "$dynamicRef": _string,
    "$id": _string,
    "$recursiveAnchor": _boolean,
    "$recursiveRef": _string,
    "$ref": _string,
    "dependentRequired": _name_lists,
    "enum": _values,
    "exclusiveMaximum": _number,
    "exclusiveMinimum": _number,
    "format": _string,
    "id": _string,
    "maxContains": _count,
    "maxItems": _count,
    "maxLength": _count,
    "maxProperties": _count,
    "maximum": _number,
    "minContains": _count,
    "minItems": _count,
    "minLength": _count,
    "minProperties": _count,
    "minimum": _number,
    "multipleOf": _positive,
    "pattern": _string,
    "required": _names,
    "type": _types,
    "uniqueItems": _boolean,
}
"""Checks of the values of keywords without subschemas."""

ASSERTIONS = frozenset(POSITIONS) | frozenset(CHECKS) | {"const"}
_OLD_EXCLUSIVE: dict[str, Check] = {"exclusiveMinimum": _number_or_boolean, "exclusiveMaximum": _number_or_boolean}


@dataclass(frozen=True)
class Dialect:
    """One draft.

    Attributes:
        name: the value of `NormalSchema.draft`.
        keywords: the keywords of the draft, apart from annotations.
        checks: checks of the values of keywords without subschemas.
        id_keyword: the keyword that names a schema's URI.
        ref_alone: keywords next to `$ref` are ignored (up to draft 7).
        items_list: `items` may be a list.
        contains_evaluates: `contains` counts as evaluation for `unevaluatedItems`.
        nullable: `nullable: true` next to `type` adds null, as in OpenAPI 3.0.
    """

    name: str
    keywords: frozenset[str]
    checks: dict[str, Check]
    id_keyword: str
    ref_alone: bool = False
    items_list: bool = True
    contains_evaluates: bool = True
    nullable: bool = False

    def types(self, schema: dict[str, Any]) -> tuple[int, bool]:
        """Return the types that a schema names in `type`, as bits, and whether numbers are whole."""
        named = schema["type"]
        names = set(named if isinstance(named, list) else [named])
        if self.nullable and schema.get("nullable") is True:
            names.add("null")
        types = 0
        for name in names:
            types |= TYPE_BITS[name]
        return types, "integer" in names and "number" not in names


_IN_2020 = frozenset({"prefixItems", "$dynamicRef", "$dynamicAnchor"})
_IN_2019 = frozenset(
    {
        "$anchor",
        "$defs",
        "dependentRequired",
        "dependentSchemas",
        "maxContains",
        "minContains",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_ONLY_2019 = frozenset({"$recursiveRef", "$recursiveAnchor"})
_IN_7 = frozenset({"if", "then", "else"})
_IN_6 = frozenset({"const", "contains", "propertyNames", "$id"})
_UP_TO_2019 = frozenset({"additionalItems"})
_UP_TO_7 = frozenset({"dependencies"})

DRAFT_2020 = Dialect(
    "2020-12", ASSERTIONS - _ONLY_2019 - _UP_TO_2019 - _UP_TO_7 - {"id"}, CHECKS, "$id", items_list=False
)
DRAFT_2019 = Dialect("2019-09", ASSERTIONS - _IN_2020 - _UP_TO_7 - {"id"}, CHECKS, "$id", contains_evaluates=False)
_KEYWORDS_7 = ASSERTIONS - _IN_2020 - _IN_2019 - _ONLY_2019 - {"id"}
DRAFT_7 = Dialect("7", _KEYWORDS_7, CHECKS, "$id", ref_alone=True)
DRAFT_6 = Dialect("6", _KEYWORDS_7 - _IN_7, CHECKS, "$id", ref_alone=True)
DRAFT_4 = Dialect(
    "4",
    (_KEYWORDS_7 | {"id"}) - _IN_7 - _IN_6,
    CHECKS | _OLD_EXCLUSIVE,
    "id",
    ref_alone=True,
)
UNSTATED = Dialect(
    "2020-12 (not stated)", ASSERTIONS - _ONLY_2019 - {"id"}, CHECKS | _OLD_EXCLUSIVE, "$id", nullable=True
)

_BY_URI = {
    "https://json-schema.org/draft/2020-12/schema": DRAFT_2020,
    "https://json-schema.org/draft/2019-09/schema": DRAFT_2019,
    "http://json-schema.org/draft-07/schema": DRAFT_7,
    "http://json-schema.org/draft-06/schema": DRAFT_6,
    "http://json-schema.org/draft-04/schema": DRAFT_4,
    "http://json-schema.org/schema": UNSTATED,
}


def dialect_of_uri(uri: str) -> Dialect | None:
    """Return the draft that a `$schema` value names; None if the draft is unknown."""
    uri = uri.strip().removesuffix("#")
    found = _BY_URI.get(uri)
    if found is None and uri.startswith("https:"):
        found = _BY_URI.get("http:" + uri.removeprefix("https:"))
    if found is None and uri.startswith("http:"):
        found = _BY_URI.get("https:" + uri.removeprefix("http:"))
    return found
