"""Expansions that need no solving equal those of the solver, and what is remembered holds in every document."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.constrained.schema import SchemaRefused, normalize
from radixrt.constrained.schema.limits import Budget, Limits
from radixrt.constrained.schema.normal_form import direct, solver
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.nodes import Expansion, Node
from tests.constrained.schema.test_objects import texts

ITEMS = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 4}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}, "tags": ITEMS},
    "required": ["name"],
}
DIRECT: list[Any] = [
    PERSON,
    PERSON | {"additionalProperties": False},
    PERSON | {"additionalProperties": ITEMS, "title": "a person", "x-unknown": 1},
    PERSON | {"type": ["object", "null", "array"], "items": PERSON, "uniqueItems": True},
    {"properties": {"a": True, "b": False}, "minItems": 2},
    {"type": ["integer", "object"], "nullable": True, "additionalProperties": {}},
    {"$schema": "http://json-schema.org/draft-07/schema#", "items": ITEMS, "definitions": {"a": ITEMS}},
    {"type": ["number", "integer", "boolean", "array"], "items": True, "maxItems": 3},
]
SOLVED: list[Any] = [
    {"type": "object", "properties": {"a": False}, "required": ["a"]},
    {"type": "object", "required": ["a"]},
    {"type": "object", "properties": {"a": {"allOf": [{"const": 1}, {"const": 2}]}}, "required": ["a"]},
    {"type": "array", "items": False},
    {"type": "array", "minItems": 3, "maxItems": 2},
    {"type": "object", "patternProperties": {"^a": {}}},
    {"type": "object", "minProperties": 1},
    {"type": [], "properties": {"a": {}}},
    {"properties": {"a": {"type": "string"}}, "maxLength": 3},
]


def graph_of(schema: Any, *, closed: bool = False) -> Graph:
    return solver.normal_form(schema, Budget(Limits()), closed=closed)


def reached(graph: Graph) -> list[Node]:
    """All nodes below the root that the solver's expansions mention."""
    found = [graph.root]
    for node in found:
        expansion = solver._solve(graph, node)
        formulas = [rule.formulas for array in expansion.arrays for rule in array.rules]
        for shape in expansion.objects:
            formulas += [each for _, each in shape.members] + [each for _, each in shape.rules]
        found += [node for node in map(graph.node, formulas) if node not in found]
    return found


def contents(expansion: Expansion) -> tuple[Any, ...]:
    return expansion._replace(values=tuple(expansion.values))


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("schema", DIRECT)
def test_what_is_read_off_is_what_the_solver_finds(schema: Any, closed: bool) -> None:
    graph = graph_of(schema, closed=closed)
    num_direct = 0
    for node in reached(graph):
        located = direct.single_schema(graph, node)
        found = None if located is None else direct.container_expansion(graph, located)
        num_direct += found is not None
        if found is not None:
            assert contents(found) == contents(solver._solve(graph, node))
        assert contents(solver.expand(graph, node)) == contents(solver._solve(graph, node))
    assert num_direct or (closed and "additionalProperties" not in schema)


@pytest.mark.parametrize("schema", SOLVED)
def test_what_needs_the_solver_is_left_to_it(schema: Any) -> None:
    graph = graph_of(schema)
    located = direct.single_schema(graph, graph.root)
    assert located is not None
    assert direct.scalar_content(graph, located) is None
    assert direct.container_expansion(graph, located) is None


def test_values_that_python_calls_equal_are_remembered_apart() -> None:
    for value, text in ((1, "1"), (True, "true"), ("1", '"1"'), (1.5, "1.5"), ([1], "[1]"), ([True], "[true]")):
        checker = texts({"type": ["integer", "boolean", "string", "number", "array"], "enum": [value]})
        assert checker.accepts(value), text


def test_a_format_that_only_annotates_is_listed_each_time() -> None:
    for name in ("a", "b"):
        schema = {"type": "object", "properties": {name: {"type": "string", "format": "color"}}}
        assert normalize(schema).annotations == [(f"/properties/{name}", "format")]


def test_a_value_that_cannot_be_written_is_refused_in_each_document() -> None:
    for name in ("a", "b"):
        with pytest.raises(SchemaRefused, match=f"'enum' at '/properties/{name}'"):
            normalize({"type": "object", "properties": {name: {"type": "string", "enum": ["\ud800"]}}})


def test_expansions_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "MAX_CONTENTS", 3)
    for length in range(9):
        normalize({"type": "string", "maxLength": 100 + length})
        assert len(direct._expansions) <= 3
