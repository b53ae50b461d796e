"""Forced tokens are those that the tokenizer makes of the whole text, whatever comes to stand behind them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from radixrt.constrained.backends.borders import Borders
from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.compiler import compile_constraint, load
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import Constraint, StructuredOptions
from tests.constrained.vocabularies import text_of

KEYS = [
    "name",
    "it's",
    "a b",
    " lead",
    "trail ",
    "x-y",
    "#id",
    "n\n",
    "日本",
    "1st",
    "URL://",
    "a,b",
    "é",
    "🙂",
    '"q',
    "",
]
TEXTS = ["x", "", "'s", " sp ace ", "\n", "日", "-", "//", "1", "'", '"', "{", "🙂🙂", " ", "  ", "don't", ":"]
SCHEMAS: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "integer"},
    {"type": "boolean"},
    {"type": "array", "items": {"type": "string"}},
    {"enum": ["red", "green", "blue's"]},
]


def value(schema: dict[str, Any], rng: random.Random) -> Any:
    if "enum" in schema:
        return rng.choice(schema["enum"])
    choices = {
        "string": TEXTS,
        "integer": [0, -5, 1234567],
        "boolean": [True, False],
        "array": [[], ["a"], ["'", "x y"]],
    }
    return rng.choice(choices[schema["type"]])


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_forced_tokens_are_those_of_the_whole_text(backend: Any, backends: Backends) -> None:
    vocabulary = backends.vocabulary
    rng = random.Random(0)
    forced_tokens = tokens = 0
    for _ in range(25):
        schemas = {key: rng.choice(SCHEMAS) for key in rng.sample(KEYS, 4)}
        wanted = {"properties": schemas, "required": list(schemas), "additionalProperties": False, "type": "object"}
        options = StructuredOptions(backend=backend)
        constraint = Constraint(kind="json_schema", source=json.dumps(wanted), options=options)
        template = load(compile_constraint(constraint, backends), backends)
        for _ in range(4):
            record = {key: value(schema, rng) for key, schema in schemas.items()}
            ids = vocabulary.encode(json.dumps(record, ensure_ascii=False, separators=(",", ":")))
            grammar = template.new()
            for i, token in enumerate(ids):
                forced = grammar.forced_continuation()
                assert forced == ids[i : i + len(forced)]
                forced_tokens += bool(forced)
                assert grammar.accept(token)
            tokens += len(ids)
    assert forced_tokens > tokens / 4


def test_what_follows_can_move_borders_further_back(vocabulary: Vocabulary) -> None:
    borders = Borders(vocabulary)
    data = b'trail ":"'
    whole = vocabulary.encode('trail ":"{')
    certain = borders.certain_tokens(data, b"a{\\")
    assert certain == whole[: len(certain)]
    assert text_of(vocabulary, certain) == "trail"
    assert borders.certain_tokens(b'"name":', b"0123456789") == vocabulary.encode('"name":')
    assert borders.certain_tokens(b"a  ", b"\x01") == vocabulary.encode("a")


def test_nothing_is_certain_of_a_text_that_goes_on_anyhow(vocabulary: Vocabulary) -> None:
    assert Borders(vocabulary).certain_tokens(b"th", bytes(range(32, 127))) == []
