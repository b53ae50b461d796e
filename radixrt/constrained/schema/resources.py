"""The parts of a schema document: resources, which have a URI of their own, and located subschemas."""

from __future__ import annotations

from typing import Any

from radixrt.constrained.schema.dialects import Dialect


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
