"""`member_kinds`: the JSON types that a member of an object may have, read from the object's schema.

The grammar of calls and the reader of calls both ask this question, of the same schema, and so agree about texts
without a mark of their type. The answer may hold types that no valid value has, and lacks none that one has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from radixrt.constrained.tags.argument_styles import KINDS, Kind, kind_of

MAX_DEPTH = 24
"""Deepest nesting of references and combinations that is followed; behind it, a value may have any type."""

_TYPES: dict[str, Kind] = {**{kind: kind for kind in KINDS}, "integer": "number"}
_OLD = re.compile(r"draft-0[3467]")

Kinds = frozenset[Kind]
Reading = Callable[[dict[str, Any]], Kinds]


def member_kinds(schema: Any, name: str) -> Kinds:
    """Return the types that the member of a name may have in objects of a schema.

    Args:
        schema: the decoded schema; anything malformed allows all types.
    """

    def of_member(part: dict[str, Any]) -> Kinds:
        properties, others = part.get("properties"), part.get("additionalProperties")
        if isinstance(properties, dict) and name in properties:
            return read(properties[name], of_value, 0)
        if isinstance(others, dict) and not part.get("patternProperties"):
            return read(others, of_value, 0)
        return KINDS

    def read(part: Any, reading: Reading, depth: int) -> Kinds:
        return _read(schema, part, reading, depth)

    return read(schema, of_member, 0)


def of_value(part: dict[str, Any]) -> Kinds:
    """Return the types that the keywords of one schema object allow, without its combinations of other schemas."""
    found = KINDS
    given = part.get("type")
    names: list[Any] = given if isinstance(given, list) else [given]
    if all(isinstance(one, str) and one in _TYPES for one in names):
        nullable: set[Kind] = {"null"} if part.get("nullable") is True else set()
        found = frozenset(_TYPES[one] for one in names) | nullable
    if isinstance(part.get("enum"), list) and part.get("nullable") is not True:
        found &= frozenset(map(kind_of, part["enum"]))
    if "const" in part:
        found &= {kind_of(part["const"])}
    return found


def _read(root: Any, part: Any, reading: Reading, depth: int) -> Kinds:
    """Return what a schema allows: the reading of its own keywords, and of each schema that it is combined with."""
    if part is False:
        return frozenset()
    if not isinstance(part, dict) or depth > MAX_DEPTH:
        return KINDS

    def inner(parts: Iterable[Any]) -> Iterable[Kinds]:
        return (_read(root, one, reading, depth + 1) for one in parts)

    found = KINDS
    reference = part.get("$ref")
    if isinstance(reference, str):
        target = _resolved(root, reference)
        if target is not None:
            found &= _read(root, target, reading, depth + 1)
        if isinstance(root, dict) and _OLD.search(str(root.get("$schema"))):
            return found  # older drafts ignore everything beside a reference
    found &= reading(part)
    if isinstance(part.get("allOf"), list):
        for kinds in inner(part["allOf"]):
            found &= kinds
    for keyword in ("anyOf", "oneOf"):
        if isinstance(part.get(keyword), list) and part[keyword]:
            found &= frozenset[Kind]().union(*inner(part[keyword]))
    return found


def _resolved(root: Any, reference: str) -> Any:
    """Return the schema at a JSON pointer of the document; None for any other reference."""
    if not reference.startswith("#") or (len(reference) > 1 and reference[1] != "/") or _has_ids(root):
        return None
    found = root
    for key in reference[2:].split("/") if len(reference) > 1 else ():
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            return None
    return found


def _has_ids(root: Any) -> bool:
    """Return whether the document has an inner `$id`, which changes what references mean."""
    if not isinstance(root, dict):
        return False
    definitions = [root.get(name) for name in ("$defs", "definitions", "properties")]
    return any(
        isinstance(one, dict) and ("$id" in one or "id" in one)
        for group in definitions
        if isinstance(group, dict)
        for one in group.values()
    )
