"""The index of a schema document: resources, anchors and located subschemas, and the check of every keyword."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urldefrag, urljoin

from radixrt.constrained.schema.document.dialects import (
    ASSERTIONS,
    COMMENTS,
    DEPENDENCIES,
    POSITIONS,
    SCHEMA,
    SCHEMA_LIST,
    SCHEMA_MAP,
    UNSTATED,
    Dialect,
    dialect_of_uri,
)
from radixrt.constrained.schema.document.misspelt import near_keyword
from radixrt.constrained.schema.errors import MalformedSchema, Unsupported
from radixrt.constrained.schema.limits import Limits, over_limit
from radixrt.constrained.schema.values import TYPE_BITS
from radixrt.errors import shown


class Resource:
    """A schema with a URI: the document's root, or a subschema with `$id`.

    Attributes:
        uri: absolute URI without fragment; "" where the document has none.
        root: the schema.
        dialect: the draft of the resource.
        pointer: its JSON pointer in the document.
        anchors: plain-name fragments and the schemas that they name, with their pointers.
        dynamic_anchors: the names in `anchors` that come from `$dynamicAnchor`.
        recursive_anchor: the root has `$recursiveAnchor: true`.
    """

    __slots__ = ("anchors", "dialect", "dynamic_anchors", "pointer", "recursive_anchor", "root", "uri")

    def __init__(self, uri: str, root: Any, dialect: Dialect, pointer: str) -> None:
        self.uri = uri
        self.root = root
        self.dialect = dialect
        self.pointer = pointer
        self.anchors: dict[str, tuple[Any, str]] = {}
        self.dynamic_anchors: set[str] = set()
        self.recursive_anchor = False

    @property
    def is_dynamic(self) -> bool:
        """True if the dynamic scope, of which this resource becomes a part, can change the target of a reference."""
        return bool(self.dynamic_anchors) or self.recursive_anchor


class Located:
    """A subschema with its place. Interned by the document: equality is identity.

    Attributes:
        schema: a dict or a bool.
        pointer: JSON pointer in the document ("" for the root).
        resource: the base of its references.
        scope: the resources with dynamic anchors on the path to the schema, outermost first.
    """

    __slots__ = ("pointer", "resource", "schema", "scope")

    def __init__(self, schema: Any, pointer: str, resource: Resource, scope: tuple[Resource, ...]) -> None:
        self.schema = schema
        self.pointer = pointer
        self.resource = resource
        self.scope = scope

    def __repr__(self) -> str:
        return f"Located({self.pointer or '/'})"


_NAMING = frozenset(("$anchor", "$dynamicAnchor", "$recursiveAnchor", "id"))
"""Keywords other than `$id` that give a schema a name."""


_TYPE_ALONE = COMMENTS | {"type"}
"""Keywords of the most frequent subschemas, which need no further look."""


def _is_type(value: Any) -> bool:
    return type(value) is str and value in TYPE_BITS


def escape(token: str) -> str:
    """Return a property name or keyword as a token of a JSON pointer."""
    return token.replace("~", "~0").replace("/", "~1") if "~" in token or "/" in token else token


class Index:
    """The named parts of one document.

    Attributes:
        resources: the resources by URI.
        by_schema: resources by the identity of their root schema.
        walked: (identity of the schema, identity of its resource) of each schema that has been checked.
        legacy_ids: schemas by `id`, for documents that do not state their draft.
        annotations: known keywords (pointer of their schema, name) without meaning at their place.
        misspelt: unknown keywords (pointer of their schema, name, the known keyword that they resemble).
    """

    def __init__(self, limits: Limits) -> None:
        self.resources: dict[str, Resource] = {}
        self.by_schema: dict[int, Resource] = {}
        self.walked: set[tuple[int, int]] = set()
        self.legacy_ids: dict[str, tuple[Any, str]] = {}
        self.annotations: list[tuple[str, str]] = []
        self.misspelt: list[tuple[str, str, str]] = []
        self._limits = limits
        self._subschemas = 0

    def stated_dialect(self, schema: Any, pointer: str, default: Dialect) -> Dialect:
        """Return the draft that a schema names, or the default. Raises MalformedSchema, Unsupported."""
        uri = schema.get("$schema") if isinstance(schema, dict) else None
        if uri is None:
            return default
        if not isinstance(uri, str):
            raise MalformedSchema(f"{pointer}/$schema", f"it must be a string, not {shown(uri)}")
        dialect = dialect_of_uri(uri)
        if dialect is None:
            known = "drafts 4, 6, 7, 2019-09 and 2020-12 are known"
            fix = "Name one of those, or leave '$schema' out."
            raise Unsupported(pointer, "$schema", f"{shown(uri)} is not a known draft; {known}", fix, droppable=False)
        return dialect

    def add_resource(self, uri: str, schema: Any, dialect: Dialect, pointer: str) -> Resource:
        """Add a schema with its own URI; the first of equal URIs counts."""
        resource = Resource(uri, schema, dialect, pointer)
        self.resources.setdefault(uri, resource)
        if isinstance(schema, dict):
            self.by_schema[id(schema)] = resource
        return resource

    def walk(self, schema: Any, pointer: str, resource: Resource) -> None:
        """Check a schema and every subschema, iteratively, and index their resources and anchors.

        Raises:
            MalformedSchema: a keyword violates its draft.
            Unsupported: a limit is exceeded.
        """
        pending: list[tuple[Any, str, Resource, int]] = [(schema, pointer, resource, 0)]
        limits = self._limits
        while pending:
            schema, pointer, resource, depth = pending.pop()
            if schema is True or schema is False:
                continue
            if not isinstance(schema, dict):
                raise MalformedSchema(pointer, f"a schema is an object, true or false, not {shown(schema)}")
            if (id(schema), id(resource)) in self.walked:
                continue  # a caller may use one object in several places
            self.walked.add((id(schema), id(resource)))
            self._subschemas += 1
            if depth > limits.depth:
                raise over_limit(pointer, "schema", f"the schema is nested more than {limits.depth} levels deep")
            if self._subschemas > limits.subschemas:
                raise over_limit(pointer, "schema", f"the schema has more than {limits.subschemas} subschemas")
            # A shortcut for the most frequent schemas, such as {"type": "string"}.
            if schema.keys() <= _TYPE_ALONE and _is_type(schema.get("type", "null")):
                continue
            # In drafts 4 to 7, all keywords beside $ref are ignored.
            dialect = resource.dialect
            if dialect.ref_alone and "$ref" in schema:
                pending.extend((*below, resource, depth + 1) for below in _subschemas(schema, pointer, dialect))
                self._note_ignored(schema, pointer)
                self._check(schema, pointer, dialect, {"$ref"})
                continue
            # An id may begin a resource with another draft, which decides how the other keywords are read.
            if dialect.id_keyword in schema:
                resource = self._identify(schema, pointer, resource)
                dialect = resource.dialect
            if not _NAMING.isdisjoint(schema):
                self._enter_anchors(schema, pointer, resource)
            self._check(schema, pointer, dialect, None)
            pending.extend((*below, resource, depth + 1) for below in _subschemas(schema, pointer, dialect))

    def _identify(self, schema: dict[str, Any], pointer: str, resource: Resource) -> Resource:
        """Return the resource of a schema with `$id`: a new resource, unless the id is an anchor or the root's id."""
        identifier = schema[resource.dialect.id_keyword]
        if not isinstance(identifier, str):
            raise MalformedSchema(
                f"{pointer}/{resource.dialect.id_keyword}", f"it must be a string, not {shown(identifier)}"
            )
        if id(schema) in self.by_schema and self.by_schema[id(schema)].pointer == pointer:
            return self.by_schema[id(schema)]
        url, fragment = urldefrag(identifier)
        if not url:  # an anchor in drafts 4 to 7
            resource.anchors.setdefault(fragment, (schema, pointer))
            return resource
        dialect = self.stated_dialect(schema, pointer, resource.dialect)
        return self.add_resource(join_uri(resource.uri, url), schema, dialect, pointer)

    def _enter_anchors(self, schema: dict[str, Any], pointer: str, resource: Resource) -> None:
        keywords = resource.dialect.keywords
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = schema.get(keyword)
            if isinstance(name, str) and keyword in keywords:
                resource.anchors.setdefault(name, (schema, pointer))
                if keyword == "$dynamicAnchor":
                    resource.dynamic_anchors.add(name)
        if schema.get("$recursiveAnchor") is True and "$recursiveAnchor" in keywords and resource.root is schema:
            resource.recursive_anchor = True
        identifier = schema.get("id")
        if isinstance(identifier, str) and resource.dialect is UNSTATED:
            self.legacy_ids.setdefault(identifier.removesuffix("#"), (schema, pointer))

    def _check(self, schema: dict[str, Any], pointer: str, dialect: Dialect, only: set[str] | None) -> None:
        known, checks = dialect.keywords, dialect.checks
        for keyword, value in schema.items():
            if only is not None and keyword not in only:
                continue
            if keyword not in known:
                if keyword in ASSERTIONS and keyword != "id":
                    self.annotations.append((pointer, keyword))
                elif type(keyword) is not str:
                    raise MalformedSchema(pointer, f"the key {shown(keyword)} is not a string")
                elif keyword not in COMMENTS and keyword not in ASSERTIONS and (meant := near_keyword(keyword)):
                    self.misspelt.append((pointer, keyword, meant))
                continue
            check = checks.get(keyword)
            if check is not None:
                problem = check(value)
                if problem is not None:
                    raise MalformedSchema(f"{pointer}/{escape(keyword)}", problem)

    def _note_ignored(self, schema: dict[str, Any], pointer: str) -> None:
        ignored = (keyword for keyword in schema if keyword in ASSERTIONS)
        silent = {"$ref", "$id", "id", "definitions", "$defs", "$anchor"}
        self.annotations.extend((pointer, keyword) for keyword in ignored if keyword not in silent)


def _subschemas(schema: dict[str, Any], pointer: str, dialect: Dialect) -> Iterator[tuple[Any, str]]:
    """Yield the direct subschemas of a schema, with their pointers. Raises MalformedSchema."""
    for keyword, value in schema.items():
        kind = POSITIONS.get(keyword)
        if kind is None or (keyword not in dialect.keywords and keyword not in ("$defs", "definitions")):
            continue
        below = f"{pointer}/{keyword}"
        if kind == SCHEMA:
            yield value, below
        elif kind == SCHEMA_LIST or (kind not in (SCHEMA_MAP, DEPENDENCIES) and isinstance(value, list)):
            if kind != SCHEMA_LIST and not dialect.items_list:
                raise MalformedSchema(below, "a list of schemas is written 'prefixItems' in draft 2020-12")
            if not isinstance(value, list):
                raise MalformedSchema(below, f"it must be a list of schemas, not {shown(value)}")
            for index, item in enumerate(value):
                yield item, f"{below}/{index}"
        elif kind in (SCHEMA_MAP, DEPENDENCIES):
            if not isinstance(value, dict):
                raise MalformedSchema(below, f"it must be an object of schemas, not {shown(value)}")
            for name, member in value.items():
                if type(name) is not str:
                    raise MalformedSchema(below, f"the key {shown(name)} is not a string")
                if kind == DEPENDENCIES and isinstance(member, list):
                    if not all(isinstance(needed, str) for needed in member):
                        raise MalformedSchema(
                            f"{below}/{escape(name)}", "it must be a schema or a list of property names"
                        )
                elif kind == DEPENDENCIES and isinstance(member, str):
                    raise MalformedSchema(f"{below}/{escape(name)}", "write the property name in a list")
                else:
                    yield member, f"{below}/{escape(name)}"
        else:
            yield value, below


def join_uri(base: str, url: str) -> str:
    """Resolve a URI reference against a base, which may be empty."""
    return urljoin(base, url) if base else url
