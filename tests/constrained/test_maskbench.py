"""Real-world schemas with labelled instances: nothing invalid is accepted, and nearly all schemas are fully right."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from typing import Any

import jsonschema
import pytest

from radixrt.constrained.guards.scanner import Scanner
from radixrt.constrained.recognizer import Recognizer
from radixrt.constrained.schema import Limits, NormalSchema, SchemaRefused, normalize
from radixrt.explain.value_check import accepts
from tests.constrained.external_data import rows
from tests.constrained.schema.sampling import Sampler
from tests.constrained.schema.text_checker import TextChecker, written

FILE = "maskbench_sample.jsonl"
PATIENT = Limits(seconds=1000.0)
"""No time limit that a loaded machine could reach."""
SLOW = {"Handwritten---allany16", "Handwritten---allany20", "Handwritten---num5", "Handwritten---string5"}
"""Made to be hard: combinations of patterns and multiples with automata of tens of thousands of states."""


@cache
def schemas() -> list[dict[str, Any]]:
    return rows(FILE)


@cache
def normalized(number: int) -> NormalSchema | SchemaRefused:
    """The schema of a row, normalized once for all tests of the module."""
    try:
        return normalize(schemas()[number]["schema"], limits=PATIENT)
    except SchemaRefused as refused:
        return refused


def test_schemas_and_instances() -> None:
    """A schema is fully right if every valid instance is accepted, by value and as a text, and no invalid one is."""
    results: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    wrong: list[str] = []
    for number, row in enumerate(schemas()):
        if row["id"] in SLOW:
            continue
        normal = normalized(number)
        if isinstance(normal, SchemaRefused):
            results["refused"] += 1
            refusals[normal.errors[0].keyword] += 1
            continue
        checker = TextChecker(normal)
        right = as_written = True
        for test in row["tests"]:
            value, valid = test["data"], test["valid"]
            text = checker.accepts_text(written(value))
            as_written &= text is valid
            if accepts(normal, value) is not valid or (text or (valid and checker.accepts(value))) is not valid:
                right = False
                wrong.append(f"{'rejected' if valid else 'accepted'}: {row['id']}: {json.dumps(value)[:200]}")
        results["right"] += right
        results["right as written"] += as_written
    print(dict(results), dict(refusals))
    assert not wrong
    assert results["right"] / len(schemas()) > 0.98
    assert results["right as written"] / len(schemas()) > 0.95


def test_keys_in_any_order() -> None:
    """With keys in any order instances are right as they are written."""
    right = refused = 0
    for number, row in enumerate(schemas()):
        if number % 8 or row["id"] in SLOW:
            continue
        try:
            checker = TextChecker(normalize(row["schema"], key_order="any", limits=PATIENT))
        except SchemaRefused:
            refused += 1
            continue
        for test in row["tests"]:
            assert checker.accepts_text(written(test["data"])) is test["valid"], (row["id"], test["data"])
        right += 1
    assert right > 90
    assert refused / (right + refused) < 0.03


def test_every_text_of_the_grammars_is_valid() -> None:
    """Texts drawn from the grammars, checked by the jsonschema package.

    Skipped: `multipleOf`, which that package computes in floating point, `nullable`, which it does not know, and
    strings with line terminators, on which Python's patterns and those of ECMA-262 disagree.
    """
    drawn = 0
    for number, row in enumerate(schemas()):
        schema = row["schema"]
        source = json.dumps(schema)
        if number % 3 or row["id"] in SLOW or '"multipleOf"' in source or '"nullable"' in source:
            continue
        normal = normalized(number)
        if isinstance(normal, SchemaRefused):
            continue
        cls = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        validator = cls(schema, format_checker=cls.FORMAT_CHECKER)
        sampler = Sampler(normal.productions(), number)
        scanner = Scanner(Recognizer(normal.productions()), normal.obligations)
        for _ in range(2):
            text = sampler.text(30)
            if scanner.violation([text]) is not None:
                continue  # a guard keeps such texts away
            if len(text) > 4000 or any(mark in text for mark in ("\\n", "\\r", "\u2028", "\u2029")):
                continue
            drawn += 1
            error = next(validator.iter_errors(json.loads(text)), None)
            assert error is None, (row["id"], text, error and error.message)
    assert drawn > 300


@pytest.mark.parametrize("whitespace", [0, 1])
def test_productions_are_sound_grammars(whitespace: int) -> None:
    """Every rule is defined, reachable and derives something; none is left-recursive."""
    for number, row in enumerate(schemas()):
        if number % 5 or row["id"] in SLOW:
            continue
        normal = normalized(number)
        if isinstance(normal, SchemaRefused):
            continue
        productions = normal.productions(whitespace)
        productions.validate()
        assert productions.prune().rules.keys() == productions.rules.keys(), row["id"]
