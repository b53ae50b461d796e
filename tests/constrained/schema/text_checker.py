"""Checks of values against the texts that a normalized schema's productions accept."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from radixrt.constrained.guards.scanner import Scanner
from radixrt.constrained.recognizer import Recognizer, State
from radixrt.constrained.schema import NormalSchema
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.nodes import Node
from radixrt.explain.value_check import admits, admits_array, admits_object

States = dict[int, State]
MOST_ORDERS = 32
"""Maximum number of key sets that are followed at once; an object with many undeclared keys has too many orders."""


class TextChecker:
    """Finds a spelling of a value that is a sentence: any order of keys, numbers as written or as plain decimals."""

    def __init__(self, normal: NormalSchema) -> None:
        self._graph = normal.graph
        self._recognizer = Recognizer(normal.productions())
        self._scanner = Scanner(self._recognizer, normal.obligations)

    def accepts(self, value: Any) -> bool:
        if self.accepts_text(written(value)) or self.accepts_text(written(arranged(self._graph, value))):
            return True
        start = self._recognizer.start()
        if self._scanner.arrays and not admits(self._graph, self._graph.root, value):
            return False  # guards compare the items
        return any(self._recognizer.is_complete(state) for state in self._after({id(start): start}, value).values())

    def accepts_text(self, text: str) -> bool:
        return self.is_sentence(text) and self._scanner.violation([text]) is None

    def is_sentence(self, text: str) -> bool:
        """Whether the productions derive the text; guards, which compare keys and items, are not asked."""
        state = self._recognizer.advance(self._recognizer.start(), text)
        return state is not None and self._recognizer.is_complete(state)

    def _read(self, states: States, text: str) -> States:
        found = (self._recognizer.advance(state, text) for state in states.values())
        return {id(state): state for state in found if state is not None}

    def _after(self, states: States, value: Any) -> States:
        """The states after any spelling of the value, from any of the states."""
        if not states:
            return {}
        if isinstance(value, dict) and value:
            return self._members(states, value)
        if isinstance(value, list) and value:
            for index, item in enumerate(value):
                states = self._after(self._read(states, "," if index else "["), item)
            return self._read(states, "]")
        found: States = {}
        for text in spellings(value):
            found |= self._read(states, text)
        return found

    def _members(self, states: States, members: dict[str, Any]) -> States:
        layer: dict[frozenset[str], States] = {frozenset(): states}
        for _ in members:
            longer: dict[frozenset[str], States] = {}
            for taken, before in layer.items():
                for name, member in members.items():
                    if name not in taken:
                        key = f"{',' if taken else '{'}{json.dumps(name, ensure_ascii=False)}:"
                        after = self._after(self._read(before, key), member)
                        if after:
                            longer.setdefault(taken | {name}, {}).update(after)
            layer = dict(list(longer.items())[:MOST_ORDERS])
        return self._read(layer.get(frozenset(members), {}), "}")


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def spellings(value: Any) -> list[str]:
    text = written(value)
    if isinstance(value, float):
        plain = format(Decimal(text), "f")
        short = plain.rstrip("0").rstrip(".") if "." in plain else plain
        return list(dict.fromkeys([text, plain, "0" if short == "-0" else short]))
    return [text]


def arranged(graph: Graph, value: Any) -> Any:
    """The value with its keys in the order of the schema, as far as one alternative of each node tells it."""
    return _arranged(graph, graph.root, value)


def _arranged(graph: Graph, node: Node, value: Any) -> Any:
    expansion = graph.expand(node)
    for part in expansion.union or ():
        if admits(graph, part, value):
            return _arranged(graph, part, value)
    if isinstance(value, list):
        for array in expansion.arrays:
            if admits_array(graph, array, value):
                nodes = [graph.node(array.item_formulas(index)) for index in range(len(value))]
                return [_arranged(graph, node, item) for node, item in zip(nodes, value, strict=True)]
    if isinstance(value, dict):
        for shape in expansion.objects:
            if admits_object(graph, shape, value):
                declared = dict(shape.members)
                names = [name for name in declared if name in value]
                names += [name for name in value if name not in declared]
                found = {}
                for name in names:
                    formulas = declared.get(name)
                    if formulas is None:
                        formulas = tuple(f for keys, fs in shape.rules if name in keys for f in fs)
                    found[name] = _arranged(graph, graph.node(formulas), value[name])
                return found
    return value
