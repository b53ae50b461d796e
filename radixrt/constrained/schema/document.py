"""A schema document: its draft, its subschemas by place, and what its references point to.

The document is walked once, without recursion, which checks every keyword's value and finds the resources (`$id`)
and anchors in it. References are resolved within the document and to the official metaschemas; nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from radixrt.constrained.schema.dialects import (
    ASSERTIONS,
    DEPENDENCIES,
    POSITIONS,
    SCHEMA,
    SCHEMA_LIST,
    SCHEMA_MAP,
    SCHEMA_OR_LIST,
    UNSTATED,
    Dialect,
    dialect_of_uri,
)
from radixrt.constrained.schema.errors import MalformedSchema, Unsupported
from radixrt.constrained.schema.limits import Limits, over_limit
from radixrt.errors import shown


class Resource:
    """A schema with a URI of its own: the document's root, or a subschema with `$id`.

    Attributes:
        uri: absolute URI without fragment; "" where the document has none.
        root: the schema.
        dialect: its draft.
        pointer: where in the document it stands.
        anchors: plain-name fragments and the schemas that they name, with their pointers.
        dynamic_anchors: those of `anchors` that `$dynamicRef` may land on from elsewhere.
        recursive_anchor: `$recursiveAnchor: true` stands at the root.
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
        """Whether having passed through this resource can change what a later reference means."""
        return bool(self.dynamic_anchors) or self.recursive_anchor


class Located:
    """A subschema at its place. Interned per document, so that identity is equality.

    Attributes:
        schema: a dict or a bool.
        pointer: JSON pointer in the document ("" for the root).
        resource: what its references are relative to.
        scope: the resources with dynamic anchors that were passed through on the way here, outermost first.
    """

    __slots__ = ("assertions", "pointer", "resource", "schema", "scope", "tags")

    def __init__(self, schema: Any, pointer: str, resource: Resource, scope: tuple[Resource, ...]) -> None:
        self.schema = schema
        self.pointer = pointer
        self.resource = resource
        self.scope = scope
        self.assertions: Any = None  # kept by Graph.assertions
        self.tags: Any = None  # kept by disjoint.discriminated

    def __repr__(self) -> str:
        return f"Located({self.pointer or '/'})"


def escape(token: str) -> str:
    """A property name or keyword as a token of a JSON pointer."""
    return token.replace("~", "~0").replace("/", "~1") if "~" in token or "/" in token else token


class Document:
    """One schema document.

    Args:
        schema: the parsed schema, a dict or a bool; it must not change while this lives.
        limits: bounds on depth and on the number of subschemas.

    Raises:
        MalformedSchema: the document is not a schema of its draft.
        Unsupported: `$schema` names no known draft, or a limit is exceeded.
    """

    def __init__(self, schema: Any, limits: Limits) -> None:
        self.limits = limits
        self.annotations: list[tuple[str, str]] = []
        self._resources: dict[str, Resource] = {}
        self._by_schema: dict[int, Resource] = {}
        self._walked: set[int] = set()
        self._located: dict[tuple[int, int, tuple[Resource, ...]], Located] = {}
        self._legacy_ids: dict[str, tuple[Any, str]] = {}
        self._subschemas = 0
        self._synthetic = Resource("", True, UNSTATED, "")
        self.dialect = self._stated_dialect(schema, "", UNSTATED)
        identifier = schema.get(self.dialect.id_keyword) if isinstance(schema, dict) else None
        uri = urldefrag(identifier).url if isinstance(identifier, str) else ""
        self.resource = self._add_resource(uri, schema, self.dialect, "")
        self._walk(schema, "", self.resource)
        scope = (self.resource,) if self.resource.is_dynamic else ()
        self.root = self._intern(schema, "", self.resource, scope)

    def child(self, parent: Located, schema: Any, *tokens: str) -> Located:
        """The subschema of a located schema, tokens being the way from the one to the other."""
        pointer = f"{parent.pointer}/{'/'.join(map(escape, tokens))}"
        resource = self._by_schema.get(id(schema), parent.resource) if isinstance(schema, dict) else parent.resource
        return self._intern(schema, pointer, resource, self._entered(parent.scope, parent.resource, resource))

    def synthetic(self, schema: dict[str, Any], near: Located) -> Located:
        """A schema without references that was not in the document, reported at the place of another one."""
        return self._intern(schema, near.pointer, self._synthetic, ())

    def resolve(self, at: Located, reference: str, keyword: str = "$ref") -> Located:
        """What a reference points to.

        Raises:
            Unsupported: it points out of the document, or to nothing.
        """
        base, fragment = self._target(at, reference, keyword)
        resource, schema, pointer = base, base.root, base.pointer
        if fragment.startswith("/"):
            resource, schema, pointer = self._follow(base, fragment, at, reference, keyword)
        elif fragment:
            if fragment not in base.anchors:
                raise _unresolved(at, keyword, reference, f"there is no anchor {shown(fragment)}")
            schema, pointer = base.anchors[fragment]
        resource = self._by_schema.get(id(schema), resource)
        if isinstance(schema, dict) and id(schema) not in self._walked:
            self._walk(schema, pointer, resource)
        elif not isinstance(schema, dict | bool):
            raise _unresolved(at, keyword, reference, "what stands there is not a schema")
        return self._intern(schema, pointer, resource, self._entered(at.scope, at.resource, resource))

    def resolve_dynamic(self, at: Located, reference: str) -> Located:
        """`$dynamicRef`: the outermost resource of the dynamic scope with that dynamic anchor, if the plain target has one."""
        target = self.resolve(at, reference, "$dynamicRef")
        name = urldefrag(reference).fragment
        if name and name in target.resource.dynamic_anchors and target.resource.anchors[name][0] is target.schema:
            for resource in at.scope:
                if name in resource.dynamic_anchors:
                    schema, pointer = resource.anchors[name]
                    scope = self._entered(at.scope, at.resource, resource)
                    return self._intern(schema, pointer, resource, scope)
        return target

    def resolve_recursive(self, at: Located) -> Located:
        """`$recursiveRef: "#"`: the outermost resource of the dynamic scope with `$recursiveAnchor`, if this one has it."""
        target = self.resolve(at, "#", "$recursiveRef")
        if target.resource.recursive_anchor:
            for resource in at.scope:
                if resource.recursive_anchor:
                    return self._intern(resource.root, resource.pointer, resource, at.scope)
        return target

    def _intern(self, schema: Any, pointer: str, resource: Resource, scope: tuple[Resource, ...]) -> Located:
        place = (id(schema), id(resource), scope) if isinstance(schema, dict) else (int(schema), 0, ())
        found = self._located.get(place)
        if found is None:
            found = self._located[place] = Located(schema, pointer, resource, scope)
        return found

    @staticmethod
    def _entered(scope: tuple[Resource, ...], before: Resource, after: Resource) -> tuple[Resource, ...]:
        if after is before or not after.is_dynamic or after in scope:
            return scope
        return (*scope, after)

    def _stated_dialect(self, schema: Any, pointer: str, default: Dialect) -> Dialect:
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

    def _add_resource(self, uri: str, schema: Any, dialect: Dialect, pointer: str) -> Resource:
        resource = Resource(uri, schema, dialect, pointer)
        self._resources.setdefault(uri, resource)
        if isinstance(schema, dict):
            self._by_schema[id(schema)] = resource
        return resource

    def _walk(self, schema: Any, pointer: str, resource: Resource) -> None:
        """Check every subschema below and enter what it names."""
        pending: list[tuple[Any, str, Resource, int]] = [(schema, pointer, resource, 0)]
        limits = self.limits
        while pending:
            schema, pointer, resource, depth = pending.pop()
            if schema is True or schema is False:
                continue
            if not isinstance(schema, dict):
                raise MalformedSchema(pointer, f"a schema is an object, true or false, not {shown(schema)}")
            self._subschemas += 1
            if depth > limits.depth:
                raise over_limit(pointer, "schema", f"the schema is nested more than {limits.depth} levels deep")
            if self._subschemas > limits.subschemas:
                raise over_limit(pointer, "schema", f"the schema has more than {limits.subschemas} subschemas")
            self._walked.add(id(schema))
            dialect = resource.dialect
            if dialect.ref_alone and "$ref" in schema:
                pending.extend((*below, resource, depth + 1) for below in _subschemas(schema, pointer, dialect))
                self._note_ignored(schema, pointer)
                self._check(schema, pointer, dialect, {"$ref"})
                continue
            if dialect.id_keyword in schema:
                resource = self._identify(schema, pointer, resource)
                dialect = resource.dialect
            self._enter_anchors(schema, pointer, resource)
            self._check(schema, pointer, dialect, None)
            pending.extend((*below, resource, depth + 1) for below in _subschemas(schema, pointer, dialect))

    def _identify(self, schema: dict[str, Any], pointer: str, resource: Resource) -> Resource:
        """The resource that a schema with `$id` is in: a new one, unless the id is only an anchor or it is the root."""
        identifier = schema[resource.dialect.id_keyword]
        if not isinstance(identifier, str):
            raise MalformedSchema(
                f"{pointer}/{resource.dialect.id_keyword}", f"it must be a string, not {shown(identifier)}"
            )
        if id(schema) in self._by_schema and self._by_schema[id(schema)].pointer == pointer:
            return self._by_schema[id(schema)]
        url, fragment = urldefrag(identifier)
        if resource.dialect.anchors_in_id and fragment and not url:
            resource.anchors.setdefault(fragment, (schema, pointer))
            return resource
        dialect = self._stated_dialect(schema, pointer, resource.dialect)
        return self._add_resource(_join(resource.uri, url), schema, dialect, pointer)

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
            self._legacy_ids.setdefault(identifier.removesuffix("#"), (schema, pointer))

    def _check(self, schema: dict[str, Any], pointer: str, dialect: Dialect, only: set[str] | None) -> None:
        for keyword, value in schema.items():
            if only is not None and keyword not in only:
                continue
            if keyword not in dialect.keywords:
                if keyword in ASSERTIONS and keyword != "id":
                    self.annotations.append((pointer, keyword))
                elif type(keyword) is not str:
                    raise MalformedSchema(pointer, f"the key {shown(keyword)} is not a string")
                continue
            check = dialect.checks.get(keyword)
            if check is not None:
                problem = check(value)
                if problem is not None:
                    raise MalformedSchema(f"{pointer}/{escape(keyword)}", problem)

    def _note_ignored(self, schema: dict[str, Any], pointer: str) -> None:
        ignored = (keyword for keyword in schema if keyword in ASSERTIONS)
        silent = {"$ref", "$id", "id", "definitions", "$defs", "$anchor"}
        self.annotations.extend((pointer, keyword) for keyword in ignored if keyword not in silent)

    def _target(self, at: Located, reference: str, keyword: str) -> tuple[Resource, str]:
        """The resource that a reference names, and the fragment in it."""
        url, fragment = urldefrag(reference)
        try:
            fragment = unquote(fragment, errors="strict")
        except UnicodeDecodeError:
            raise _unresolved(at, keyword, reference, "its percent-encoding is not UTF-8") from None
        if not url:
            return at.resource, fragment
        uri = _join(at.resource.uri, url)
        found = self._resources.get(uri)
        if found is None and url in self._legacy_ids:
            schema, pointer = self._legacy_ids[url]
            found = Resource(uri, schema, at.resource.dialect, pointer)
        if found is None and (content := _metaschema(uri)) is not None:
            dialect = self._stated_dialect(content, uri, UNSTATED)
            found = self._add_resource(uri, content, dialect, uri)
            self._walk(content, uri, found)
        if found is None:
            raise _unresolved(at, keyword, reference, "it points out of this document, and nothing is fetched")
        return found, fragment

    def _follow(
        self, base: Resource, fragment: str, at: Located, reference: str, keyword: str
    ) -> tuple[Resource, Any, str]:
        """The value at a JSON pointer, with the resource that it is in."""
        resource, value, pointer = base, base.root, base.pointer
        kind: int | None = SCHEMA
        for token in fragment[1:].split("/"):
            token = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and token in value:
                value = value[token]
            elif isinstance(value, list) and token.isdigit() and int(token) < len(value):
                value = value[int(token)]
            else:
                raise _unresolved(at, keyword, reference, f"nothing stands there ({shown(token)} is missing)")
            pointer = f"{pointer}/{escape(token)}"
            kind = _kind_below(kind, token)
            if kind == SCHEMA_OR_LIST and isinstance(value, dict):
                kind = SCHEMA
            if kind == SCHEMA and isinstance(value, dict):
                resource = self._by_schema.get(id(value), resource)
        return resource, value, pointer


def _subschemas(schema: dict[str, Any], pointer: str, dialect: Dialect) -> Iterator[tuple[Any, str]]:
    """The subschemas directly below a schema, with their pointers."""
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


def _kind_below(kind: int | None, token: str) -> int | None:
    """What stands at a pointer token below something of a kind: SCHEMA, a container of schemas, or None if unknown."""
    if kind == SCHEMA:
        return POSITIONS.get(token)
    if kind in (SCHEMA_MAP, SCHEMA_LIST, DEPENDENCIES):
        return SCHEMA
    return SCHEMA if kind is not None and token.isdigit() else None


def _join(base: str, url: str) -> str:
    return urljoin(base, url) if base else url


def _unresolved(at: Located, keyword: str, reference: str, reason: str) -> Unsupported:
    fix = "Put what it should point to under '$defs' of this schema and refer to it there."
    return Unsupported(at.pointer, keyword, f"{shown(reference)} cannot be resolved: {reason}", fix)


@cache
def _metaschema(uri: str) -> Any:
    """The content of an official metaschema, or None."""
    if "json-schema.org/" not in uri:
        return None
    from jsonschema_specifications import REGISTRY  # here, because few schemas need it and it takes milliseconds

    resource = REGISTRY.get(uri) or REGISTRY.get(uri + "#")
    return None if resource is None else resource.contents
