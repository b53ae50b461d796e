"""`Document`: a schema document, its draft, the located subschemas and the resolved references.

References are resolved within the document and to the official metaschemas; nothing is fetched.
"""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import unquote, urldefrag

from radixrt.constrained.schema.document.dialects import (
    COMMENTS,
    DEPENDENCIES,
    POSITIONS,
    SCHEMA,
    SCHEMA_LIST,
    SCHEMA_MAP,
    SCHEMA_OR_LIST,
    UNSTATED,
)
from radixrt.constrained.schema.document.index import Index, Located, Resource, escape, join_uri
from radixrt.constrained.schema.errors import MalformedSchema, Unsupported
from radixrt.constrained.schema.limits import Limits
from radixrt.errors import shown

SHARED = COMMENTS | {"type", "minLength", "maxLength", "minimum", "maximum"}
MAX_SHARED_NUMBER = 10**12


class Document:
    """One schema document.

    Args:
        schema: the parsed schema, which must not change during the lifetime of the document.
        limits: bounds on depth and on the number of subschemas.

    Raises:
        MalformedSchema: the document is not a schema of its draft.
        Unsupported: `$schema` names no known draft, or a limit is exceeded.
    """

    def __init__(self, schema: Any, limits: Limits) -> None:
        if not isinstance(schema, dict | bool):
            raise MalformedSchema("", f"a schema is an object, true or false, not {shown(schema)}")
        self._index = Index(limits)
        self._located: dict[object, Located] = {}
        self._resolved: dict[tuple[str, int, tuple[Resource, ...]], Located] = {}
        self._synthetic = Resource("", True, UNSTATED, "")
        self.dialect = self._index.stated_dialect(schema, "", UNSTATED)
        identifier = schema.get(self.dialect.id_keyword) if isinstance(schema, dict) else None
        uri = urldefrag(identifier).url if isinstance(identifier, str) else ""
        self.resource = self._index.add_resource(uri, schema, self.dialect, "")
        self._index.walk(schema, "", self.resource)
        scope = (self.resource,) if self.resource.is_dynamic else ()
        self.root = self._intern(schema, "", self.resource, scope)

    @property
    def annotations(self) -> list[tuple[str, str]]:
        """Keywords (pointer of their schema, name) that have no meaning at their place."""
        return self._index.annotations

    @property
    def misspelt(self) -> list[tuple[str, str, str]]:
        """Unknown keywords (pointer of their schema, name, the known keyword that they resemble)."""
        return self._index.misspelt

    def child(self, parent: Located, schema: Any, *tokens: str) -> Located:
        """Return a subschema of a located schema; the tokens are its JSON pointer relative to that schema."""
        resource, scope = parent.resource, parent.scope
        if isinstance(schema, dict):
            resource = self._index.by_schema.get(id(schema), resource)
            if resource is not parent.resource:
                scope = self._entered(scope, parent.resource, resource)
        identity = _identity(schema, resource, scope)
        found = self._located.get(identity)
        if found is None:
            pointer = f"{parent.pointer}/{'/'.join(map(escape, tokens))}"
            found = self._located[identity] = Located(schema, pointer, resource, scope)
        return found

    def synthetic(self, schema: dict[str, Any], near: Located) -> Located:
        """Return a located schema that is not part of the document; messages name the place of another schema."""
        return self._intern(schema, near.pointer, self._synthetic, ())

    def resolve(self, at: Located, reference: str, keyword: str = "$ref") -> Located:
        """Return the target of a reference.

        Raises:
            Unsupported: the target is outside the document or does not exist.
        """
        key = (reference, id(at.resource), at.scope)
        found = self._resolved.get(key)
        if found is None:
            found = self._resolved[key] = self._resolve(at, reference, keyword)
        return found

    def _resolve(self, at: Located, reference: str, keyword: str) -> Located:
        base, fragment = self._target(at, reference, keyword)
        resource, schema, pointer = base, base.root, base.pointer
        if fragment.startswith("/"):
            resource, schema, pointer = self._follow(base, fragment, at, reference, keyword)
        elif fragment:
            if fragment not in base.anchors:
                raise _unresolved(at, keyword, reference, f"there is no anchor {shown(fragment)}")
            schema, pointer = base.anchors[fragment]
        resource = self._index.by_schema.get(id(schema), resource)
        if isinstance(schema, dict) and (id(schema), id(resource)) not in self._index.walked:
            self._index.walk(schema, pointer, resource)
        elif not isinstance(schema, dict | bool):
            raise _unresolved(at, keyword, reference, "what stands there is not a schema")
        return self._intern(schema, pointer, resource, self._entered(at.scope, at.resource, resource))

    def resolve_dynamic(self, at: Located, reference: str) -> Located:
        """Return the target of a `$dynamicRef`: the outermost dynamic anchor of that name in the dynamic scope.

        If the static target of a reference is no dynamic anchor, the target is final. Raises Unsupported.
        """
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
        """Return the target of `$recursiveRef: "#"`: the outermost such resource in the dynamic scope.

        The target without `$recursiveAnchor` is the schema's own resource. Raises Unsupported.
        """
        target = self.resolve(at, "#", "$recursiveRef")
        if target.resource.recursive_anchor:
            for resource in at.scope:
                if resource.recursive_anchor:
                    return self._intern(resource.root, resource.pointer, resource, at.scope)
        return target

    def _intern(self, schema: Any, pointer: str, resource: Resource, scope: tuple[Resource, ...]) -> Located:
        identity = _identity(schema, resource, scope)
        found = self._located.get(identity)
        if found is None:
            found = self._located[identity] = Located(schema, pointer, resource, scope)
        return found

    @staticmethod
    def _entered(scope: tuple[Resource, ...], before: Resource, after: Resource) -> tuple[Resource, ...]:
        if after is before or not after.is_dynamic or after in scope:
            return scope
        return (*scope, after)

    def _target(self, at: Located, reference: str, keyword: str) -> tuple[Resource, str]:
        """Return the resource and the fragment that a reference names. Raises Unsupported."""
        if reference.startswith("#") and "%" not in reference and reference.isprintable():
            return at.resource, reference[1:]
        url, fragment = urldefrag(reference)
        try:
            fragment = unquote(fragment, errors="strict")
        except UnicodeDecodeError:
            raise _unresolved(at, keyword, reference, "its percent-encoding is not UTF-8") from None
        if not url:
            return at.resource, fragment
        uri = join_uri(at.resource.uri, url)
        found = self._index.resources.get(uri)
        if found is None and url in self._index.legacy_ids:
            schema, pointer = self._index.legacy_ids[url]
            found = Resource(uri, schema, at.resource.dialect, pointer)
        if found is None and (content := _metaschema(uri)) is not None:
            dialect = self._index.stated_dialect(content, uri, UNSTATED)
            found = self._index.add_resource(uri, content, dialect, uri)
            self._index.walk(content, uri, found)
        if found is None:
            raise _unresolved(at, keyword, reference, "it points out of this document, and nothing is fetched")
        return found, fragment

    def _follow(
        self, base: Resource, fragment: str, at: Located, reference: str, keyword: str
    ) -> tuple[Resource, Any, str]:
        """Return the resource of the value at a JSON pointer, the value, and its pointer. Raises Unsupported."""
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
                resource = self._index.by_schema.get(id(value), resource)
        return resource, value, pointer


def _identity(schema: Any, resource: Resource, scope: tuple[Resource, ...]) -> object:
    """Return the key by which a document interns a subschema."""
    if not isinstance(schema, dict):
        return schema
    content = _shared_content(schema)
    return (id(schema), id(resource), scope) if content is None else (content, id(resource.dialect))


def _shared_content(schema: dict[str, Any]) -> tuple[str, ...] | None:
    """Return the content of a small schema without subschemas, by which equal schemas share work; None for others.

    Keywords that may be refused are not shared, because a refusal names each of their places.
    """
    if not schema.keys() <= SHARED:
        return None
    content: list[str] = []
    for keyword, value in schema.items():
        if keyword not in COMMENTS:
            if isinstance(value, int) and abs(value) > MAX_SHARED_NUMBER:
                return None
            content.append(f"{keyword}={value!r}")
    content.sort()
    return tuple(content)


def _kind_below(kind: int | None, token: str) -> int | None:
    """Return the kind of the value at a token below a value of some kind: SCHEMA, a container, or None if unknown."""
    if kind == SCHEMA:
        return POSITIONS.get(token)
    if kind in (SCHEMA_MAP, SCHEMA_LIST, DEPENDENCIES):
        return SCHEMA
    return SCHEMA if kind is not None and token.isdigit() else None


def _unresolved(at: Located, keyword: str, reference: str, reason: str) -> Unsupported:
    fix = "Put what it should point to under '$defs' of this schema and refer to it there."
    return Unsupported(at.pointer, keyword, f"{shown(reference)} cannot be resolved: {reason}", fix)


@cache
def _metaschema(uri: str) -> Any:
    """Return the content of an official metaschema, or None."""
    if "json-schema.org/" not in uri:
        return None
    # Imported late: few schemas refer to a metaschema, and the import takes milliseconds.
    from jsonschema_specifications import REGISTRY

    resource = REGISTRY.get(uri) or REGISTRY.get(uri + "#")
    return None if resource is None else resource.contents
