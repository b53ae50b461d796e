"""Equivalence on random schemas: the normal form accepts what the schema accepts, or the schema is refused."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from radixrt.constrained.guards.scanner import Scanner
from radixrt.constrained.recognizer import Recognizer
from radixrt.constrained.schema import EmptySchema, Limits, NormalSchema, SchemaRefused, Unsupported, normalize
from radixrt.constrained.schema.limits import Budget
from radixrt.constrained.schema.normal_form.nodes import NONE
from radixrt.constrained.schema.normal_form.solver import normal_form
from radixrt.constrained.schema.normal_form.validation import holds
from radixrt.explain.normalized_schema import normalized_schema
from radixrt.explain.value_check import accepts, admits
from tests.constrained.schema.sampling import Sampler
from tests.constrained.schema.strategies import documents, has_endless_reference, values
from tests.constrained.schema.text_checker import TextChecker, written

SETTINGS = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large],
)
several = st.lists(values, min_size=4, max_size=4)


def reference(schema: Any, value: Any) -> bool:
    """Return the verdict of the `jsonschema` package; skips the example if the package would recurse endlessly."""
    assume(not has_endless_reference(schema))
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def normalized(schema: Any, **options: Any) -> NormalSchema | None:
    """None for an empty schema; skips the example if the schema is refused."""
    try:
        return normalize(schema, **options)
    except EmptySchema:
        return None
    except SchemaRefused:
        assume(False)
        raise


@SETTINGS
@given(documents, several)
def test_values_and_texts_are_accepted_exactly_if_they_satisfy_the_schema(schema: Any, several: list[Any]) -> None:
    normal = normalized(schema)
    checker = TextChecker(normal) if normal else None
    for value in several:
        expected = reference(schema, value)
        assert (normal is not None and accepts(normal, value)) is expected
        assert (checker is not None and checker.accepts(value)) is expected


@SETTINGS
@given(documents, st.integers(0, 1 << 30), st.sampled_from([0, 0, 2]))
def test_every_text_of_the_grammar_satisfies_the_schema(schema: Any, seed: int, whitespace: int) -> None:
    normal = normalized(schema)
    if normal is None:
        return
    sampler = Sampler(normal.productions(whitespace), seed)
    scanner = Scanner(Recognizer(normal.productions(whitespace)), normal.obligations)
    for _ in range(5):
        text = sampler.text()
        if scanner.violation([text]) is not None:
            continue  # a guard keeps such texts away
        if not any(terminator in text for terminator in ("\\n", "\\r", "\u2028", "\u2029")):
            value = json.loads(text)
            assert reference(schema, value), text
            assert accepts(normal, value), text


@SETTINGS
@given(documents, several)
def test_the_normal_form_written_as_a_schema_means_the_same(schema: Any, several: list[Any]) -> None:
    normal = normalized(schema)
    if normal is None:
        return
    again = normalized_schema(normal)
    jsonschema.Draft202012Validator.check_schema(again)
    for value in several:
        assert reference(again, value) is accepts(normal, value)


@SETTINGS
@given(documents, several)
def test_each_subschema_and_its_negation_divide_the_values(schema: Any, several: list[Any]) -> None:
    try:
        graph = normal_form(schema, Budget(Limits()))
        for positive in (True, False):
            formulas = graph.formulas(graph.document.root, positive=positive)
            for value in several:
                expected = reference(schema, value) is positive
                assert (formulas is not NONE and admits(graph, graph.node(formulas), value)) is expected
                assert all(holds(graph, formula, value) for formula in formulas) is expected
    except Unsupported:
        assume(False)


@SETTINGS
@given(documents, several)
def test_closed_objects_have_no_members_that_nothing_speaks_of(schema: Any, several: list[Any]) -> None:
    open_, closed = normalized(schema), normalized(schema, closed=True)
    if closed is None:
        return
    checker = TextChecker(closed)
    for value in several:
        accepted = accepts(closed, value)
        assert checker.accepts(value) is accepted
        if accepted:
            assert open_ is not None
            assert accepts(open_, value)


@SETTINGS
@given(documents, several)
def test_leaving_out_what_cannot_be_enforced_leaves_values_and_texts_agreed(schema: Any, several: list[Any]) -> None:
    try:
        normal = normalize(schema, on_unsupported="ignore")
    except (EmptySchema, SchemaRefused):
        return
    checker = TextChecker(normal)
    for value in several:
        assert checker.accepts(value) is accepts(normal, value)


@pytest.mark.parametrize("value", [None, True, 0, 1.5, 'é\n"', [], [1, [2]], {}, {"a": {"b": [None]}}])
def test_a_constant_has_one_text(value: Any) -> None:
    normal = normalize({"const": value})
    assert TextChecker(normal).accepts_text(written(value))
    assert accepts(normal, value)
