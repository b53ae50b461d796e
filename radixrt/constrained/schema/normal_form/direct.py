"""Expansions without the solver, for schemas whose keywords are independent.

Most schemas of a document are of one of two kinds. A schema without subschemas, such as a string with a pattern, means
the same in every document, so its expansion is remembered by its content. A schema of a plain object or array has one
alternative for each of its types, and the keywords state each alternative directly. The expansions equal the solver's.
"""

from __future__ import annotations

from dataclasses import replace

from radixrt.constrained.regex import FORMATS
from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.nodes import (
    ANY_ARRAY,
    ANY_OBJECT,
    NONE,
    ArrayShape,
    Expansion,
    Formulas,
    Is,
    ItemRule,
    Node,
    ObjectShape,
)
from radixrt.constrained.schema.normal_form.numbers import ANY_NUMBER
from radixrt.constrained.schema.normal_form.strings import ANY_STRING, KeySet, RemainingKeys
from radixrt.constrained.schema.values import ALL, ARRAY, BOOLEAN, NULL, NUMBER, OBJECT, STRING

Content = tuple[str, ...]
"""The keywords of a schema without subschemas, with their values."""
MAX_CONTENTS = 4096
MAX_CONTENT_CHARS = 2000
_SCALAR = frozenset(
    ("type", "enum", "const", "format", "pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum")
) | {"exclusiveMaximum", "multipleOf"}
_CONTAINER = frozenset(
    ("type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "uniqueItems")
)
_WITHOUT_ASSERTION = frozenset(("$id", "id", "$anchor", "$defs", "definitions"))
_BOTH = frozenset((False, True))
_expansions: dict[Content, Expansion] = {}
"""Expansions of schemas without subschemas, of all documents."""


def single_schema(graph: Graph, node: Node) -> Located | None:
    """Return the schema of a node that consists of a single schema with keywords; None for any other node."""
    if len(node.formulas) != 1 or graph.reader.skips_keywords:
        return None
    formula = node.formulas[0]
    if not isinstance(formula, Is) or not formula.positive or not isinstance(formula.located.schema, dict):
        return None
    return formula.located


def scalar_content(graph: Graph, located: Located) -> Content | None:
    """Return the content of a schema without subschemas; None for others, and where the content is long.

    Notes a `format` that is not enforced, as reading the schema would.
    """
    schema, dialect = located.schema, located.resource.dialect
    content: list[str] = []
    size = 0
    for keyword, value in schema.items():
        if keyword in _SCALAR:
            if keyword not in dialect.keywords:
                continue
            if keyword == "format" and not (graph.reader.formats == "assert" and value in FORMATS):
                graph.reader.annotations[located.pointer, keyword] = None
                continue
            if isinstance(value, list) and len(value) > MAX_CONTENT_CHARS:
                return None
            content.append(f"{keyword}={value!r}")
            size += len(content[-1])
        elif keyword in dialect.keywords and keyword not in _WITHOUT_ASSERTION:
            return None
    if dialect.nullable and schema.get("nullable") is True:
        content.append("nullable")
    return tuple(content) if content and size <= MAX_CONTENT_CHARS else None


def known_expansion(content: Content) -> Expansion | None:
    """Return the expansion that is remembered for a content."""
    return _expansions.get(content)


def remember(graph: Graph, content: Content, expansion: Expansion) -> None:
    """Remember the expansion of a content, unless values in it cannot be written, which names their places."""
    if graph.reader.unwritable:
        return
    if len(_expansions) >= MAX_CONTENTS:
        _expansions.clear()
    _expansions[content] = expansion


def container_expansion(graph: Graph, located: Located) -> Expansion | None:
    """Return the expansion of a plain object or array; None where only the solver knows it.

    Raises:
        Unsupported: a keyword of a subschema cannot be enforced.
    """
    schema, known = located.schema, located.resource.dialect.keywords
    for keyword in schema:
        if keyword in known and keyword not in _CONTAINER and keyword not in _WITHOUT_ASSERTION:
            return None
    types, integer = located.resource.dialect.types(schema) if "type" in schema else (ALL, False)
    if not types:
        return None
    objects: ObjectShape | None = None
    arrays: ArrayShape | None = None
    if types & OBJECT:
        objects = _objects(graph, located)
        if objects is None:
            return None
    if types & ARRAY:
        arrays = _arrays(graph, located)
        if arrays is None:
            return None
    numbers = None if not types & NUMBER else ANY_NUMBER.whole(True) if integer else ANY_NUMBER
    return Expansion(
        null=bool(types & NULL),
        booleans=_BOTH if types & BOOLEAN else frozenset(),
        numbers=() if numbers is None else (numbers,),
        strings=(ANY_STRING,) if types & STRING else (),
        arrays=() if arrays is None else (arrays,),
        objects=() if objects is None else (objects,),
    )


def _objects(graph: Graph, located: Located) -> ObjectShape | None:
    """Return the objects of a schema; None where members conflict or the graph closes the object."""
    schema, reader = located.schema, graph.reader
    declared = reader.members(located)
    required = reader.required_names(located)
    is_closed = "additionalProperties" in schema
    if (graph.closing is not None and declared and not is_closed) or any(name not in declared for name in required):
        return None
    members = tuple([(name, graph.formulas(member)) for name, member in declared.items()])
    if required and any((formulas is NONE or len(formulas) > 1) and name in required for name, formulas in members):
        return None  # a required member may have no possible value; the solver reports the reason
    rules: tuple[tuple[KeySet, Formulas], ...] = ()
    if is_closed:
        formulas = graph.formulas(reader.child(located, "additionalProperties"))
        rules = ((RemainingKeys(frozenset(declared)), formulas),) if formulas else ()
    return ObjectShape(members=members, required=required, rules=rules) if members or rules else ANY_OBJECT


def _arrays(graph: Graph, located: Located) -> ArrayShape | None:
    """Return the arrays of a schema; None where its keywords leave no array, or none with items."""
    schema = located.schema
    low, high = int(schema.get("minItems", 0)), schema.get("maxItems")
    items = schema.get("items", True)
    if isinstance(items, list) or (high is not None and low > high):
        return None
    rules: tuple[ItemRule, ...] = ()
    if "items" in schema:
        formulas = graph.formulas(graph.reader.child(located, "items"))
        if formulas is NONE:
            return None
        rules = (ItemRule(0, None, formulas),) if formulas else ()
    found = ArrayShape(low, None if high is None else int(high), rules)
    if schema.get("uniqueItems"):
        return replace(found, unique=True, unique_source=(located.pointer, "uniqueItems", ""))
    return ANY_ARRAY if found == ANY_ARRAY else found
