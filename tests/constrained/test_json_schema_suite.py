"""The official JSON-Schema-Test-Suite: every test right, or its schema refused with a place; nothing invalid accepted.

The recognizer checks the texts; llguidance checks a sample of them as well.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from typing import Any

import pytest

from radixrt.constrained.backends.lark import to_lark
from radixrt.constrained.backends.widening import widened
from radixrt.constrained.schema import EmptySchema, Limits, NormalSchema, SchemaRefused, normalize
from radixrt.explain.value_check import accepts
from tests.constrained.engines import llguidance_accepts
from tests.constrained.external_data import rows
from tests.constrained.schema.text_checker import TextChecker, arranged, written

FILE = "json_schema_test_suite.jsonl"
URIS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}
Groups = dict[tuple[str, str, str], list[dict[str, Any]]]


@cache
def groups(draft: str, optional: bool) -> Groups:
    """The tests of a draft by file, group and schema."""
    found: Groups = {}
    for row in rows(FILE):
        if row["draft"] == draft and row["file"].startswith("optional/") is optional:
            found.setdefault((row["file"], row["group"], json.dumps(row["schema"])), []).append(row)
    return found


def normalized(schema: Any, draft: str, *, optional: bool) -> NormalSchema | None:
    """None if the schema is empty, as some are meant to be. In core tests, formats annotate, as the drafts have it."""
    if isinstance(schema, dict) and "$schema" not in schema:
        schema = {"$schema": URIS[draft], **schema}
    try:
        return normalize(schema, formats="assert" if optional else "annotate", limits=Limits(seconds=1000.0))
    except EmptySchema:
        return None


def report(draft: str, *, optional: bool) -> tuple[Counter[str], Counter[str], list[str]]:
    """Numbers of tests that are right, refused, wrongly rejected and accepted; refusals by keyword; the wrong ones."""
    results: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    wrong: list[str] = []
    for (file, group, schema), tests in groups(draft, optional).items():
        try:
            normal = normalized(json.loads(schema), draft, optional=optional)
        except SchemaRefused as refused:
            results["refused"] += len(tests)
            refusals[refused.errors[0].keyword] += len(tests)
            continue
        checker = TextChecker(normal) if normal else None
        for test in tests:
            value = test["data"]
            by_value = normal is not None and accepts(normal, value)
            by_text = checker is not None and checker.accepts(value)
            if by_value is by_text is test["valid"]:
                results["right"] += 1
            else:
                kind = "rejected" if test["valid"] else "accepted"
                results[kind] += 1
                wrong.append(f"{kind}: {file}: {group}: {test['test']}")
    return results, refusals, wrong


@pytest.mark.parametrize("draft", URIS)
def test_core(draft: str) -> None:
    results, refusals, wrong = report(draft, optional=False)
    print(draft, dict(results), dict(refusals))
    assert not wrong
    assert results["right"] / results.total() > 0.92
    assert refusals.keys() <= {"$ref", "$schema"}


@pytest.mark.parametrize("draft", URIS)
def test_formats(draft: str) -> None:
    """A format's language may be a part of what its specification allows; it never has anything else."""
    results, _, wrong = report(draft, optional=True)
    print(draft, dict(results))
    assert not [line for line in wrong if line.startswith("accepted")]
    assert results["right"] / results.total() > 0.92


def test_llguidance_reads_the_productions_in_the_same_way() -> None:
    pytest.importorskip("llguidance")
    for number, ((_, _, schema), tests) in enumerate(groups("draft2020-12", False).items()):
        if number % 4:
            continue
        try:
            normal = normalized(json.loads(schema), "draft2020-12", optional=False)
        except SchemaRefused:
            continue
        if normal is None:
            continue
        if widened(normal.productions()) is not normal.productions():
            continue  # the masks are narrowed
        checker, lark = TextChecker(normal), to_lark(normal.productions(), {})
        for test in tests:
            value = arranged(normal.graph, test["data"]) if test["valid"] else test["data"]
            text = written(value)
            assert llguidance_accepts(lark, text) is checker.is_sentence(text), (schema, text)
