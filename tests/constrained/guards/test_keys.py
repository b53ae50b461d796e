"""No object repeats a key, whatever is sampled, and wherever the text is cut."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import numpy as np
import pytest

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.compiler import compile_constraint, load
from radixrt.constrained.guards.guarded_grammar import Guard, GuardedGrammar, GuardedTemplate
from radixrt.constrained.runtime.text_grammar import TextGrammar, TextTemplate
from radixrt.constrained.schema.emit import plan
from radixrt.constrained.schema.normal_form import graph
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import Constraint
from tests.constrained.guards.languages import check_cut_anywhere, check_written, good_texts, guarded, strict, walk
from tests.constrained.vocabularies import allowed, small_vocabulary, text_of

ONE = {"const": 1}
TINY: dict[str, Any] = {
    "two letters": {
        "type": "object", "propertyNames": {"pattern": "^[ab]{1,2}$"}, "additionalProperties": ONE, "maxProperties": 3,
    },
    "a name that begins another": {
        "type": "object", "patternProperties": {"^(a|ab|abb|b)$": ONE}, "additionalProperties": False,
        "maxProperties": 4,
    },
    "names of several bytes and with escapes": {
        "type": "object", "patternProperties": {'^(é|è|"|\\\\|\\n|日本|)$': {"type": "boolean"}},
        "additionalProperties": False, "maxProperties": 2,
    },
    "all names are used up": {
        "type": "object", "patternProperties": {"^[ab]$": ONE}, "additionalProperties": False, "maxProperties": 5,
    },
    "nested": {
        "type": "object", "maxProperties": 2, "additionalProperties": False, "patternProperties": {
            "^[ab]$": {
                "type": "object", "patternProperties": {"^[ab]$": {"enum": [[], {}]}},
                "additionalProperties": False, "maxProperties": 2,
            },
        },
    },
    "beside declared names": {
        "type": "object", "properties": {"a": ONE, "c": ONE}, "required": ["c"], "maxProperties": 3,
        "patternProperties": {"^[abc]$": ONE}, "additionalProperties": False,
    },
    "a member that must exist": {
        "type": "object", "maxProperties": 3, "additionalProperties": False,
        "patternProperties": {"^[ab]?$": {"type": "boolean"}},
        "not": {"patternProperties": {"^[ab]?$": {"const": True}}},
    },
    "members that must exist besides others": {
        "type": "object", "additionalProperties": False, "patternProperties": {"^[ab]$": {"enum": [1, 2, 3]}},
        "allOf": [
            {"not": {"patternProperties": {"^[ab]$": {"enum": [1, 3]}}}},
            {"not": {"patternProperties": {"^[ab]$": {"enum": [2, 3]}}}},
        ],
    },
    "at least two": {
        "type": "object", "patternProperties": {"^[abc]$": ONE, "^[de]$": {"const": 2}}, "minProperties": 2,
        "maxProperties": 3, "additionalProperties": False,
    },
    "as many as there are names": {
        "type": "object", "patternProperties": {"^[abc]$": ONE}, "minProperties": 3, "maxProperties": 4,
        "additionalProperties": False,
    },
    "alternatives": {
        "anyOf": [
            {"type": "object", "properties": {"a": ONE}, "patternProperties": {"^[ab]$": ONE},
             "additionalProperties": False, "maxProperties": 2},
            {"type": "object", "patternProperties": {"^[ab]$": {"enum": [1, 2]}}, "additionalProperties": False,
             "maxProperties": 2},
        ],
    },
}  # fmt: skip


@pytest.fixture
def names_are_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few undeclared names are not listed as optional members, as many would not be."""
    monkeypatch.setattr(plan, "MAX_LISTED_NAMES", 0)
    monkeypatch.setattr(graph, "MAX_LISTED_NAMES", 0)


@pytest.fixture(scope="module", params=["byte_level", "embedded"])
def some_backends(request: pytest.FixtureRequest, backends: Backends) -> Backends:
    return backends if request.param == "embedded" else Backends(small_vocabulary(request.param))


@pytest.mark.parametrize("name", TINY)
@pytest.mark.usefixtures("names_are_classes")
def test_the_mask_has_exactly_the_tokens_with_a_completion(name: str, some_backends: Backends) -> None:
    vocabulary = some_backends.vocabulary
    reached, banned = walk(guarded(TINY[name], some_backends), vocabulary, good_texts(TINY[name]), name, 25)
    assert reached
    assert banned, "the guard had nothing to do"


@pytest.mark.parametrize("name", TINY)
@pytest.mark.usefixtures("names_are_classes")
def test_every_text_without_repeated_keys_can_be_written(name: str, backends: Backends) -> None:
    check_written(TINY[name], backends, good_texts(TINY[name]))


@pytest.mark.parametrize("name", TINY)
@pytest.mark.usefixtures("names_are_classes")
def test_a_text_that_is_cut_anywhere_is_completed_without_repeated_keys(name: str, backends: Backends) -> None:
    check_cut_anywhere(TINY[name], backends, good_texts(TINY[name]))


BIG: list[Any] = [
    {"type": "object"},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "properties": {"name": {"type": "string"}, "tags": {"type": "object"}}, "required": ["name"]},
    {"type": "array", "items": {"type": "object"}},
    {"type": "object", "patternProperties": {"^[ab]{0,7}$": {"type": "object"}}, "additionalProperties": False},
]


@pytest.mark.parametrize("number", range(len(BIG)))
def test_random_answers_of_every_length_repeat_no_key(number: int, backends: Backends) -> None:
    vocabulary, template = backends.vocabulary, guarded(BIG[number], backends)
    # Tokens of which few keys are made, so that keys would often repeat.
    likely = [
        id
        for text in ('"', "a", "b", '":', ",", '{"', '","', "{", "}", "1")
        if (id := vocabulary.by_bytes[0].get(text.encode()))
    ]
    repeated = 0
    for seed in range(40):
        generator = random.Random(seed)
        tokens, bans = answer(template.new(), vocabulary, generator, likely, generator.randrange(150))
        strict(text_of(vocabulary, tokens))
        repeated += bans
    assert repeated, "no key would have been repeated"


@pytest.mark.parametrize("number", range(len(BIG)))
def test_keys_among_many_characters_have_few_candidates_and_the_same_bans(
    number: int, backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where any character may follow inside of a key, only the tokens that end the key can be banned."""
    template = guarded(BIG[number], backends)
    ids = template.vocabulary.by_bytes[0]
    texts = ('"', "a", "b", "ab", '":', '":"', ",", '{"', '","', '"}', "{", "}", "1", ':"', '":{"')
    likely = {id for text in texts if (id := ids.get(text.encode()))}
    compared = with_bans = 0
    for seed in range(12):
        generator, grammar = random.Random(seed), template.new()
        for _ in range(60):
            if grammar.is_terminated():
                break
            mask = allowed(grammar, backends.vocabulary.vocab_size)
            here = grammar._positions[-1], grammar._place, grammar._text, grammar._inner.mask()
            bans = template.guard.bans(*here)
            with monkeypatch.context() as patch:
                every = Guard(template, template.guard._obligations)
                patch.setattr(every.completer, "last_choice", lambda *args: None)
                assert bans == every.bans(*here)
            compared += here[0].alive
            with_bans += bool(bans)
            assert grammar.accept(generator.choice(sorted(mask & likely or mask)))
    assert compared > 20
    assert with_bans


def answer(
    grammar: GuardedGrammar, vocabulary: Vocabulary, generator: random.Random, likely: list[int], spare: int
) -> tuple[list[int], int]:
    """The tokens of an answer, taken as the scheduler takes them, and the number of masks with bans."""
    tokens: list[int] = []
    bans = 0
    budget = len(grammar.closing()) + spare
    while not grammar.is_terminated():
        row = grammar.mask()
        bans += row is not grammar._inner.mask()
        some = [token for token in likely if row[token >> 5] >> (token & 31) & 1]
        if some and generator.random() < 0.95:
            token = generator.choice(some)
        else:
            token = int(generator.choice(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))))
        remaining = budget - len(tokens) - 1
        if not grammar.accept_freely(token, remaining):
            if not grammar.fits(token, remaining):
                closing = grammar.closing()
                assert len(closing) <= remaining + 1
                assert all(map(grammar.accept, closing))
                return tokens + closing, bans
            assert grammar.accept(token)
        if token in vocabulary.eos_ids:
            break
        tokens.append(token)
    return tokens, bans


def test_the_mask_is_the_grammars_own_where_no_key_can_repeat(backends: Backends) -> None:
    vocabulary = backends.vocabulary
    template = guarded({"type": "object", "additionalProperties": {"type": "string"}}, backends)
    grammar = template.new()
    for piece in ('{"', "a", '":"', "a", '","', "b", '":"', "a", '","'):
        for token in vocabulary.encode(piece):
            assert grammar.mask() is grammar._inner.mask()
            assert grammar.accept(token)
    assert grammar.accept(vocabulary.by_bytes[0][b"a"])
    mask = grammar.mask()
    assert mask is not grammar._inner.mask()
    assert mask is grammar.mask()
    assert not grammar.accept(vocabulary.by_bytes[0][b'":'])
    assert not grammar.accept_freely(vocabulary.by_bytes[0][b'":'], 1000)


def test_a_schema_without_undeclared_members_has_no_guard(backends: Backends) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    compiled = compile_constraint(Constraint(kind="json_schema", source=json.dumps(schema)), backends)
    assert compiled.obligations == ()
    assert b"obligations" not in msgspec.msgpack.encode(compiled)
    template = load(compiled, backends)
    assert type(template) is TextTemplate
    assert type(template.new()) is TextGrammar
    assert isinstance(guarded({"type": "object"}, backends), GuardedTemplate)
