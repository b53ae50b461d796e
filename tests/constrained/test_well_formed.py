"""Checks without a model: a malformed constraint gets the error that compiling it gives, any other passes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from radixrt.constrained import well_formed
from radixrt.constrained.well_formed import check_well_formed
from radixrt.constraint import KINDS, Constraint, Kind
from radixrt.errors import RequestError
from tests.equivalence.constraints import EBNFS, REGEXES, SCHEMAS


def check(kind: Kind, source: str) -> None:
    check_well_formed(Constraint(kind=kind, source=source))


MALFORMED: list[tuple[Kind, str, str]] = [
    ("regex", "(a", "regex: "),
    ("regex", "a{2,1}", "regex: "),
    ("regex", r"(?P<x>a+)\1", "regex: "),
    ("ebnf", "root ::=", "ebnf"),
    ("ebnf", "root ::= other", "other"),
    ("json_schema", "nothing", "not JSON"),
    ("json_schema", "[]", "an object, true or false"),
    ("json_schema", '{"type": 3}', "malformed at"),
    ("json_schema", '{"items": {"minLength": -1}}', "malformed at '/items"),
    ("json_schema", "[" * 100_000, "nested too deeply"),
    ("choices", "[", "not JSON"),
    ("structural_tag", "{", "not JSON"),
]


@pytest.mark.parametrize(("kind", "source", "message"), MALFORMED)
def test_what_is_malformed_is_said_twice(kind: Kind, source: str, message: str) -> None:
    for _ in range(2):
        with pytest.raises(RequestError, match=message) as refused:
            check(kind, source)
        assert refused.value.param == kind


def test_what_is_well_formed_passes() -> None:
    for schema in SCHEMAS.values():
        check("json_schema", json.dumps(schema))
    for regex in REGEXES:
        check("regex", regex)
    for ebnf in EBNFS:
        check("ebnf", ebnf)
    assert set(KINDS) == {"regex", "ebnf", "json_schema", "choices", "structural_tag"}


def test_what_cannot_be_enforced_is_left_to_whoever_enforces_it() -> None:
    for schema in (
        {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        {"$ref": "https://example.org/schema"},
        {"$schema": "https://example.org/draft"},
    ):
        check("json_schema", json.dumps(schema))


def test_it_is_remembered_and_loads_no_tokenizer() -> None:
    well_formed._check_remembered.cache_clear()
    for _ in range(3):
        for i in range(100):
            check("regex", f"[a-z]{{1,{i + 2}}}")
            check("json_schema", json.dumps({**SCHEMAS["person"], "title": str(i)}))
    known = well_formed._check_remembered.cache_info()
    assert (known.misses, known.hits) == (200, 400)
    code = (
        "import sys; from radixrt.lang.core.primitives import gen; "
        "gen('x', regex='a+'); gen('y', json_schema={'type': 'null'}); "
        "print([name for name in ('torch', 'tokenizers', 'llguidance', 'xgrammar') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
