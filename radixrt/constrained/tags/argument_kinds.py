"""`ValuePlace`: a place in a schema, which knows the JSON types that a value there may have.

The grammar of calls and the reader of calls both ask for them, of the same schema, and so agree about texts without a
mark of their type. The answer may hold types that no valid value has, and lacks none that one has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from radixrt.constrained.tags.argument_styles import KINDS, Kind, kind_of

MAX_DEPTH = 24
"""Deepest nesting of references and combinations that is followed; behind it, a value may have any type."""
MAX_PARTS = 256
"""Most schema objects that a place may combine; beyond, a value may have any type."""

_TYPES: dict[str, Kind] = {**{kind: kind for kind in KINDS}, "integer": "number"}
_TELLING = frozenset(
    ("type", "nullable", "enum", "const", "properties", "additionalProperties", "patternProperties")
) | {"items", "prefixItems", "additionalItems"}
"""Keywords that say something about the types of a value, its members or its items."""
_OLD = re.compile(r"draft-0[3467]")

Kinds = frozenset[Kind]


class _Root:
    """The document that references of a schema resolve in; compared by identity."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.has_ids = _has_ids(schema)
        self.ignores_siblings = isinstance(schema, dict) and bool(_OLD.search(str(schema.get("$schema"))))


class _Leaf:
    """A schema object; compared by the identity of its keywords, which may hold anything."""

    size = 1

    def __init__(self, part: dict[str, Any]) -> None:
        self.part = part
        self.kinds = of_value(part)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Leaf) and other.part is self.part

    def __hash__(self) -> int:
        return id(self.part)


@dataclass(frozen=True)
class _Combination:
    parts: frozenset[_Tree]

    @cached_property
    def size(self) -> int:
        return 1 + sum(one.size for one in self.parts)


@dataclass(frozen=True)
class _All(_Combination):
    """A value satisfies all of the parts."""

    @cached_property
    def kinds(self) -> Kinds:
        return KINDS.intersection(*(one.kinds for one in self.parts))


@dataclass(frozen=True)
class _Any(_Combination):
    """A value satisfies one of the parts."""

    @cached_property
    def kinds(self) -> Kinds:
        return frozenset[Kind]().union(*(one.kinds for one in self.parts))


_Tree = _Leaf | _All | _Any
_ANYTHING = _All(frozenset())


def _all(parts: Iterable[_Tree]) -> _Tree:
    flat: list[_Tree] = []
    for one in parts:
        flat += one.parts if isinstance(one, _All) else [one]
    found = frozenset(flat)
    return next(iter(found)) if len(found) == 1 else _small(_All(found))


def _any(parts: Iterable[_Tree]) -> _Tree:
    found = frozenset(parts)
    return next(iter(found)) if len(found) == 1 else _small(_Any(found))


def _small(tree: _Tree) -> _Tree:
    return tree if tree.size <= MAX_PARTS else _ANYTHING


@dataclass(frozen=True)
class ValuePlace:
    """A place in a schema. Places of which a schema says the same are equal."""

    _root: _Root
    _tree: _Tree

    @staticmethod
    def of(schema: Any) -> ValuePlace:
        """Return the place of the whole value.

        Args:
            schema: the decoded schema; anything malformed allows all types.
        """
        root = _Root(schema)
        return ValuePlace(root, _tree(root, schema))

    @property
    def kinds(self) -> Kinds:
        """The types that a value at this place may have."""
        return self._tree.kinds

    def member(self, name: str) -> ValuePlace:
        """Return the place of a member of an object at this place."""

        def inside(part: dict[str, Any]) -> _Tree:
            properties, others = part.get("properties"), part.get("additionalProperties")
            if isinstance(properties, dict) and name in properties:
                return _tree(self._root, properties[name])
            if isinstance(others, dict) and not part.get("patternProperties"):
                return _tree(self._root, others)
            return _ANYTHING

        return self._inside(inside)

    @cached_property
    def item(self) -> ValuePlace:
        """The place of each item of an array at this place."""

        def inside(part: dict[str, Any]) -> _Tree:
            items, prefix, others = part.get("items"), part.get("prefixItems"), part.get("additionalItems")
            if isinstance(items, list):
                items, prefix = others, items
            if not isinstance(prefix, list):
                return _tree(self._root, items)
            return _any(_tree(self._root, one) for one in [*prefix, items])

        return self._inside(inside)

    @property
    def anywhere(self) -> ValuePlace:
        """A place of which the schema says nothing."""
        return ValuePlace(self._root, _ANYTHING)

    def _inside(self, inside: Callable[[dict[str, Any]], _Tree]) -> ValuePlace:
        return ValuePlace(self._root, _mapped(self._tree, inside))


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


def _tree(root: _Root, part: Any) -> _Tree:
    """Return a schema as the schema objects that it combines."""
    known: dict[int, _Tree] = {}

    def read(part: Any, depth: int) -> _Tree:
        if part is False:
            return _Any(frozenset())
        if not isinstance(part, dict) or depth > MAX_DEPTH:
            return _ANYTHING
        if id(part) not in known:
            known[id(part)] = _ANYTHING  # while the part is read, so that a reference to itself ends
            known[id(part)] = _all(combined(part, depth + 1))
        return known[id(part)]

    def combined(part: dict[str, Any], depth: int) -> Iterator[_Tree]:
        reference = part.get("$ref")
        if isinstance(reference, str):
            target = _resolved(root, reference)
            if target is not None:
                yield read(target, depth)
            if root.ignores_siblings:
                return
        if not _TELLING.isdisjoint(part):
            yield _Leaf(part)
        if isinstance(part.get("allOf"), list):
            yield from (read(one, depth) for one in part["allOf"])
        for keyword in ("anyOf", "oneOf"):
            if isinstance(part.get(keyword), list) and part[keyword]:
                yield _any([read(one, depth) for one in part[keyword]])

    return read(part, 0)


def _mapped(tree: _Tree, inside: Callable[[dict[str, Any]], _Tree]) -> _Tree:
    """Return the tree with each schema object replaced by what the object says of a part of the value."""
    if isinstance(tree, _Leaf):
        return inside(tree.part)
    inner = [_mapped(one, inside) for one in tree.parts]
    return _all(inner) if isinstance(tree, _All) else _any(inner)


def _resolved(root: _Root, reference: str) -> Any:
    """Return the schema at a JSON pointer of the document; None for any other reference."""
    if not reference.startswith("#") or (len(reference) > 1 and reference[1] != "/") or root.has_ids:
        return None
    found = root.schema
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
