"""Random schemas with the keywords of real ones, and instances that have a chance to satisfy them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = ["a", "b", "c", "kind"]
WORDS = ["", "a", "b", "ab", "ba", "x-1", "abc", "é", '"', "\n"]
NUMBERS = [0, 1, 2, 3, -1, 7, 10, 0.5, 1.5, -2.5, 1.0]
PATTERNS = ["a", "^a", "b$", "^[ab]+$", "^x-", "^.{2}$", "^(a|b)$"]

names = st.sampled_from(NAMES)
words = st.sampled_from(WORDS)
numbers = st.sampled_from(NUMBERS)
scalars = st.one_of(st.none(), st.booleans(), numbers, words)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(names, st.sampled_from(["x-1", "ab", "d"])), inner, max_size=4),
    ),
    max_leaves=6,
)
types = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """One schema object with some keywords, subschemas from inner."""
    few = st.lists(inner, min_size=1, max_size=3)
    small = st.integers(0, 3)
    members = st.dictionaries(names, inner, max_size=3)
    every = {
        "type": st.one_of(types, st.lists(types, min_size=1, max_size=3, unique=True)),
        "enum": st.lists(values, min_size=1, max_size=4),
        "const": values,
        "minLength": small,
        "maxLength": small,
        "pattern": st.sampled_from(PATTERNS),
        "minimum": numbers,
        "maximum": numbers,
        "exclusiveMinimum": numbers,
        "exclusiveMaximum": numbers,
        "multipleOf": st.sampled_from([1, 2, 3, 0.5, 1.5]),
        "items": inner,
        "prefixItems": few,
        "contains": inner,
        "minContains": small,
        "maxContains": small,
        "minItems": small,
        "maxItems": small,
        "uniqueItems": st.booleans(),
        "unevaluatedItems": inner,
        "properties": members,
        "patternProperties": st.dictionaries(st.sampled_from(PATTERNS), inner, max_size=2),
        "additionalProperties": st.one_of(st.booleans(), inner),
        "propertyNames": inner,
        "required": st.lists(names, max_size=2, unique=True),
        "minProperties": small,
        "maxProperties": small,
        "dependentRequired": st.dictionaries(names, st.lists(names, max_size=2, unique=True), max_size=2),
        "dependentSchemas": st.dictionaries(names, inner, max_size=2),
        "unevaluatedProperties": st.one_of(st.booleans(), inner),
        "allOf": few,
        "anyOf": few,
        "oneOf": few,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two"]),
    }
    return st.lists(st.sampled_from(sorted(every)), min_size=1, max_size=4, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({keyword: every[keyword] for keyword in chosen})
    )


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object as programs write it."""
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(names, inner, min_size=1, max_size=4)},
        optional={
            "required": st.lists(names, max_size=3, unique=True),
            "additionalProperties": st.one_of(st.booleans(), inner),
            "minProperties": st.integers(0, 2),
            "maxProperties": st.integers(0, 4),
        },
    )


schemas = st.recursive(
    st.one_of(st.booleans(), st.fixed_dictionaries({"type": types}), st.fixed_dictionaries({"const": scalars})),
    lambda inner: st.one_of(keywords(inner), keywords(inner), objects(inner)),
    max_leaves=8,
)
"""Schemas that may refer to `#/$defs/one` and `#/$defs/two`."""

documents = st.builds(
    lambda root, one, two: {
        **(root if isinstance(root, dict) else {"allOf": [root]}),
        "$defs": {"one": one, "two": two},
    },
    schemas,
    schemas,
    schemas,
)


def has_endless_reference(document: dict[str, Any]) -> bool:
    """Return whether a chain of subschemas for one and the same value leads back to itself.

    The specification leaves such schemas undefined. The `jsonschema` package follows the chain until Python's stack
    ends, at a depth that depends on its caller; the normalizer refuses the schema once it comes to the chain.
    """
    finished: dict[int, bool] = {}

    def is_endless(schema: Any) -> bool:
        if not isinstance(schema, dict):
            return False
        if id(schema) not in finished:
            finished[id(schema)] = True  # until every subschema below has been followed
            finished[id(schema)] = any(is_endless(below) for below in _in_place(document, schema))
        return finished[id(schema)]

    pending: list[Any] = [document]
    while pending:
        part = pending.pop()
        if is_endless(part):
            return True
        pending.extend(part.values() if isinstance(part, dict) else part if isinstance(part, list) else ())
    return False


def _in_place(document: dict[str, Any], schema: dict[str, Any]) -> list[Any]:
    """Return the subschemas that apply to the same value."""
    found = [schema[keyword] for keyword in ("not", "if", "then", "else") if keyword in schema]
    for keyword in ("allOf", "anyOf", "oneOf"):
        found.extend(schema.get(keyword, ()))
    found.extend(schema.get("dependentSchemas", {}).values())
    if "$ref" in schema:
        found.append(document["$defs"][schema["$ref"].rpartition("/")[2]])
    return found
