"""`normalized_schema`: the normal form as a JSON Schema of draft 2020-12."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from radixrt.constrained.schema import NormalSchema
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.nodes import (
    ANY_ARRAY,
    ANY_OBJECT,
    NONE,
    ArrayShape,
    Formulas,
    ItemCount,
    Node,
    ObjectShape,
)
from radixrt.constrained.schema.normal_form.numbers import NumberSet
from radixrt.constrained.schema.normal_form.strings import KeySet, MatchingKeys, StringSet

Schema = dict[str, Any] | bool
INLINE_DEPTH = 8
"""Maximum nesting of objects and arrays within one definition."""


def normalized_schema(normal: NormalSchema) -> dict[str, Any]:
    """Return the normal form as a schema, with definitions for recursive parts. Raises Unsupported."""
    normal.graph.budget.restart()
    return _SchemaEmitter(normal.graph).emit()


class _SchemaEmitter:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._definitions: dict[str, Schema] = {}
        self._open: list[Node] = []
        self._named: set[Node] = set()
        self._waiting: list[Node] = []

    def emit(self) -> dict[str, Any]:
        root = self._node(self._graph.root)
        while self._waiting:
            node = self._waiting.pop()
            self._definitions[f"n{node.index}"] = self._alternatives(node)
        schema: dict[str, Any] = dict(root) if isinstance(root, dict) else {"not": {}} if root is False else {}
        if self._definitions:
            schema["$defs"] = {name: self._definitions[name] for name in sorted(self._definitions)}
        return schema

    def _formulas(self, formulas: Formulas) -> Schema:
        return self._node(self._graph.node(formulas))

    def _node(self, node: Node) -> Schema:
        if not node.formulas:
            return True
        if node.formulas == NONE:
            return False
        expansion = self._graph.expand(node)
        if expansion.union is None and not (expansion.arrays or expansion.objects):
            return self._alternatives(node)
        if node in self._named or node in self._open or len(self._open) >= INLINE_DEPTH:
            if node not in self._named:
                self._named.add(node)
                self._waiting.append(node)
            return {"$ref": f"#/$defs/n{node.index}"}
        return self._alternatives(node)

    def _alternatives(self, node: Node) -> Schema:
        expansion = self._graph.expand(node)
        self._open.append(node)
        options: list[Schema] = [self._node(part) for part in expansion.union or ()]
        if expansion.values:
            options.append({"enum": list(expansion.values.values())})
        plain = [
            name for name, wanted in (("null", expansion.null), ("boolean", len(expansion.booleans) == 2)) if wanted
        ]
        options += [{"const": flag} for flag in expansion.booleans if len(expansion.booleans) == 1]
        for found in (
            *map(self._number, expansion.numbers),
            *map(self._string, expansion.strings),
            *map(self._array, expansion.arrays),
            *map(self._object, expansion.objects),
        ):
            if list(found) == ["type"]:
                plain.append(found["type"])
            else:
                options.append(found)
        if plain:
            options.append({"type": plain[0] if len(plain) == 1 else plain})
        self._open.pop()
        if not options:
            return False
        return options[0] if len(options) == 1 else {"anyOf": options}

    def _number(self, numbers: NumberSet) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "integer" if numbers.integer else "number"}
        if numbers.low is not None:
            found["exclusiveMinimum" if numbers.low_open else "minimum"] = _json(numbers.low)
        if numbers.high is not None:
            found["exclusiveMaximum" if numbers.high_open else "maximum"] = _json(numbers.high)
        if numbers.step is not None:
            found["multipleOf"] = _json(numbers.step)
        apart: list[Schema] = [{"multipleOf": _json(number)} for number in sorted(numbers.not_multiples)]
        if numbers.integer is False:
            apart.append({"type": "integer"})
        if numbers.excluded:
            apart.append({"enum": [_json(number) for number in sorted(numbers.excluded)]})
        return _without(found, apart)

    def _string(self, strings: StringSet) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "string"}
        if strings.low:
            found["minLength"] = strings.low
        if strings.high is not None:
            found["maxLength"] = strings.high
        apart: list[Schema] = [{"enum": sorted(strings.excluded)}] if strings.excluded else []
        more: list[Schema] = []
        for test in strings.tests:
            _, keyword, value = test.source
            if not test.positive:
                apart.append({keyword: value})
            elif keyword in found:
                more.append({keyword: value})
            else:
                found[keyword] = value
        return _and(_without(found, apart), more)

    def _array(self, shape: ArrayShape) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "array"}
        if shape == ANY_ARRAY:
            return found
        length = max([0, *shape.rule_bounds])
        items = [self._formulas(shape.item_formulas(index)) for index in range(length + 1)]
        if length:
            found["prefixItems"] = items[:-1]
        if items[-1] is not True:
            found["items"] = items[-1]
        if shape.low:
            found["minItems"] = shape.low
        if shape.high is not None:
            found["maxItems"] = shape.high
        if shape.unique is not None:
            found |= {"uniqueItems": True} if shape.unique else {"not": {"uniqueItems": True}}
        return _and(found, [self._count(count) for count in shape.counts])

    def _count(self, count: ItemCount) -> Schema:
        if count.start:
            others = self._graph.negated(count.formulas)
            return {"not": {"prefixItems": [True] * count.start, "items": self._formulas(others)}}
        found: dict[str, Any] = {"contains": self._formulas(count.formulas), "minContains": count.low}
        return found if count.high is None else found | {"maxContains": count.high}

    def _object(self, shape: ObjectShape) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "object"}
        if shape == ANY_OBJECT:
            return found
        if shape.members:
            found["properties"] = {name: self._formulas(formulas) for name, formulas in shape.members}
        if shape.required:
            found["required"] = list(shape.required)
        if shape.low:
            found["minProperties"] = shape.low
        if shape.high is not None:
            found["maxProperties"] = shape.high
        declared = {name for name, _ in shape.members}
        more: list[Schema] = []
        for keys, formulas in shape.rules:
            if not isinstance(keys, MatchingKeys) and keys.names == declared and not keys.tests:
                found["additionalProperties"] = self._formulas(formulas)
            else:
                more.append(self._keys(keys, self._formulas(formulas)))
        for keys, formulas, _ in shape.witnesses:
            more.append({"not": self._keys(keys, self._formulas(self._graph.negated(formulas)))})
        return _and(found, more)

    def _keys(self, keys: KeySet, member: Schema) -> dict[str, Any]:
        """Return the schema by which every member whose name is in the set satisfies another."""
        if isinstance(keys, MatchingKeys):
            return {"patternProperties": {keys.test.source[2]: member}}
        for test in keys.tests:
            if test.names_schema is not None:  # a set of `propertyNames`, whose members are forbidden
                return {"propertyNames": self._node(self._graph.node(self._graph.formulas(test.names_schema)))}
        found: dict[str, Any] = {"additionalProperties": member}
        if keys.names:
            found["properties"] = dict.fromkeys(sorted(keys.names), True)
        if keys.tests:
            found["patternProperties"] = {test.source[2]: True for test in keys.tests}
        return found


def _json(number: Decimal) -> int | float:
    return int(number) if number == number.to_integral_value() else float(number)


def _without(schema: dict[str, Any], apart: list[Schema]) -> dict[str, Any]:
    """Return the schema minus the values of the others."""
    if not apart:
        return schema
    return schema | {"not": apart[0] if len(apart) == 1 else {"anyOf": apart}}


def _and(schema: dict[str, Any], more: list[Schema]) -> dict[str, Any]:
    """Return the conjunction of the schema and the others."""
    return schema | {"allOf": more} if more else schema
