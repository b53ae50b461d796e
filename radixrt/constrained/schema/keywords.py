"""From the keywords of one schema object to its assertions, as its draft reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from radixrt.constrained.regex import FORMATS
from radixrt.constrained.schema.array_assertions import (
    ContainsAssertion,
    ItemCountAssertion,
    ItemsAssertion,
    PrefixItemsAssertion,
    UnevaluatedItemsAssertion,
    UniqueItemsAssertion,
)
from radixrt.constrained.schema.assertion import Assertion
from radixrt.constrained.schema.formats import wide_language
from radixrt.constrained.schema.keys import Matching, Rest
from radixrt.constrained.schema.logic_assertions import (
    AllOfAssertion,
    AnyOfAssertion,
    FalseAssertion,
    IfAssertion,
    NotAssertion,
    OneOfAssertion,
    RefAssertion,
)
from radixrt.constrained.schema.object_assertions import (
    DependentNamesAssertion,
    DependentSchemaAssertion,
    KeysAssertion,
    MemberCountAssertion,
    PropertiesAssertion,
    PropertyNamesAssertion,
    RequiredAssertion,
    UnevaluatedPropertiesAssertion,
)
from radixrt.constrained.schema.resources import Located
from radixrt.constrained.schema.scalar_assertions import (
    BoundAssertion,
    EnumAssertion,
    LengthAssertion,
    MultipleAssertion,
    StringAssertion,
    TypeAssertion,
)
from radixrt.constrained.schema.strings import StringTest
from radixrt.constrained.schema.values import decimal_of

if TYPE_CHECKING:
    from radixrt.constrained.schema.graph import Graph

Builder = Callable[["Graph", Located, str, Any], Iterator[Assertion]]


def assertions_of(graph: Graph, located: Located) -> tuple[Assertion, ...]:
    """The assertions of a schema: types and single values first, then in the document's order, waiting ones last."""
    schema = located.schema
    if schema is True:
        return ()
    if schema is False:
        return (FalseAssertion(graph, located),)
    dialect = located.resource.dialect
    if dialect.ref_alone and "$ref" in schema:
        schema = {"$ref": schema["$ref"]}
    found: list[Assertion] = []
    for keyword in ("type", "enum", "const"):
        if keyword in schema and keyword in dialect.keywords and (located.pointer, keyword) not in graph.ignored:
            found.extend(_BUILDERS[keyword](graph, located, keyword, schema[keyword]))
    for keyword, value in schema.items():
        builder = _LATER.get(keyword)
        if builder is not None and keyword in dialect.keywords and (located.pointer, keyword) not in graph.ignored:
            found.extend(builder(graph, located, keyword, value))
    _join(found)
    if found and any(assertion.waits for assertion in found):
        found.sort(key=lambda assertion: assertion.waits)
    return tuple(found)


def _join(assertions: list[Assertion]) -> None:
    """Tell `properties` and `required` of one schema of each other."""
    properties = next((one for one in assertions if isinstance(one, PropertiesAssertion)), None)
    required = next((one for one in assertions if isinstance(one, RequiredAssertion)), None)
    if properties is not None and required is not None:
        properties.required = frozenset(required.names)
        required.declared = {name: properties.members[name] for name in required.names if name in properties.members}


def _type(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    names = list(value) if isinstance(value, list) else [value]
    if located.resource.dialect.nullable and located.schema.get("nullable") is True:
        names.append("null")
    yield TypeAssertion(graph, located, names)


def _enum(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    yield EnumAssertion(graph, located, keyword, value if keyword == "enum" else [value])


def _length(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    yield LengthAssertion(graph, located, keyword, int(value))


def _pattern(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    language = graph.pattern(value, located, keyword)
    yield StringAssertion(
        graph, located, keyword, StringTest(language, True, (located.pointer, keyword, value)), language
    )


def _format(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    if graph.formats != "assert" or value not in FORMATS:
        graph.annotate(located.pointer, keyword)
        return
    test = StringTest(FORMATS[value], True, (located.pointer, keyword, value))
    yield StringAssertion(graph, located, keyword, test, wide_language(value))


def _bound(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    if isinstance(value, bool):
        return  # draft 4: read together with `minimum` or `maximum`
    lower = keyword.lower().endswith("minimum")
    open_ = keyword.startswith("exclusive")
    open_ = open_ or located.schema.get("exclusiveMinimum" if lower else "exclusiveMaximum") is True
    yield BoundAssertion(graph, located, keyword, decimal_of(value), lower=lower, open_=open_)


def _multiple(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    yield MultipleAssertion(graph, located, decimal_of(value))


def _prefix_items(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    child = graph.document.child
    items = [child(located, item, keyword, str(index)) for index, item in enumerate(value)]
    yield PrefixItemsAssertion(graph, located, keyword, items)


def _items(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    if isinstance(value, list):
        yield from _prefix_items(graph, located, keyword, value)
        return
    start = 0
    if "prefixItems" in located.resource.dialect.keywords:
        start = len(located.schema.get("prefixItems", ()))
    yield ItemsAssertion(graph, located, keyword, start, graph.document.child(located, value, keyword))


def _additional_items(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    items = located.schema.get("items")
    if isinstance(items, list):
        yield ItemsAssertion(graph, located, keyword, len(items), graph.document.child(located, value, keyword))


def _contains(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    known = located.resource.dialect.keywords
    low = int(located.schema.get("minContains", 1)) if "minContains" in known else 1
    high = located.schema.get("maxContains") if "maxContains" in known else None
    item = graph.document.child(located, value, keyword)
    yield ContainsAssertion(graph, located, item, low, None if high is None else int(high))


def _item_count(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    yield ItemCountAssertion(graph, located, keyword, int(value))


def _unique(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    if value:
        yield UniqueItemsAssertion(graph, located)


def _unevaluated_items(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    yield UnevaluatedItemsAssertion(graph, located, graph.document.child(located, value, keyword))


def _properties(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    child = graph.document.child
    members = {name: child(located, member, keyword, name) for name, member in value.items()}
    yield PropertiesAssertion(graph, located, members)


def _tests(graph: Graph, located: Located) -> list[StringTest]:
    """The tests of the patterns of `patternProperties`."""
    pointer = f"{located.pointer}/patternProperties"
    patterns = located.schema.get("patternProperties", {})
    if (located.pointer, "patternProperties") in graph.ignored:
        return []
    return [
        StringTest(graph.pattern(pattern, located, "patternProperties"), True, (pointer, "patternProperties", pattern))
        for pattern in patterns
    ]


def _pattern_properties(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    for test, (pattern, member) in zip(_tests(graph, located), value.items()):
        below = graph.document.child(located, member, keyword, pattern)
        yield KeysAssertion(graph, located, keyword, Matching(test), below)


def _additional_properties(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    keys = Rest(frozenset(located.schema.get("properties", ())), tuple(_tests(graph, located)))
    yield KeysAssertion(graph, located, keyword, keys, graph.document.child(located, value, keyword))


def _property_names(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    yield PropertyNamesAssertion(graph, located, graph.document.child(located, value, keyword))


def _required(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    yield RequiredAssertion(graph, located, value)


def _member_count(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    yield MemberCountAssertion(graph, located, keyword, int(value))


def _dependent(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    for name, needed in value.items():
        if isinstance(needed, list):
            yield DependentNamesAssertion(graph, located, keyword, name, needed)
        else:
            then = graph.document.child(located, needed, keyword, name)
            yield DependentSchemaAssertion(graph, located, keyword, name, then)


def _unevaluated_properties(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    yield UnevaluatedPropertiesAssertion(graph, located, graph.document.child(located, value, keyword))


def _ref(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    yield RefAssertion(graph, located, keyword, value)


_OPTIONS = {"allOf": AllOfAssertion, "anyOf": AnyOfAssertion, "oneOf": OneOfAssertion}


def _options(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    child = graph.document.child
    options = [child(located, option, keyword, str(index)) for index, option in enumerate(value)]
    yield _OPTIONS[keyword](graph, located, options)


def _not(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    yield NotAssertion(graph, located, graph.document.child(located, value, keyword))


def _if(graph: Graph, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    child, schema = graph.document.child, located.schema
    yes = child(located, schema["then"], "then") if "then" in schema else None
    no = child(located, schema["else"], "else") if "else" in schema else None
    yield IfAssertion(graph, located, child(located, value, keyword), yes, no)


_LATER: dict[str, Builder] = {
    "$dynamicRef": _ref,
    "$recursiveRef": _ref,
    "$ref": _ref,
    "additionalItems": _additional_items,
    "additionalProperties": _additional_properties,
    "allOf": _options,
    "anyOf": _options,
    "contains": _contains,
    "dependencies": _dependent,
    "dependentRequired": _dependent,
    "dependentSchemas": _dependent,
    "exclusiveMaximum": _bound,
    "exclusiveMinimum": _bound,
    "format": _format,
    "if": _if,
    "items": _items,
    "maxItems": _item_count,
    "maxLength": _length,
    "maxProperties": _member_count,
    "maximum": _bound,
    "minItems": _item_count,
    "minLength": _length,
    "minProperties": _member_count,
    "minimum": _bound,
    "multipleOf": _multiple,
    "not": _not,
    "oneOf": _options,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "prefixItems": _prefix_items,
    "properties": _properties,
    "propertyNames": _property_names,
    "required": _required,
    "unevaluatedItems": _unevaluated_items,
    "unevaluatedProperties": _unevaluated_properties,
    "uniqueItems": _unique,
}
_BUILDERS: dict[str, Builder] = {"type": _type, "enum": _enum, "const": _enum}
