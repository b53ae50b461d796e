"""Completions of guarded texts: short enough, quickly found, and the same whatever other requests have done."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.guards import guarded_grammar
from radixrt.constrained.guards.guarded_grammar import GuardedGrammar, GuardedTemplate
from radixrt.constrained.guards.search import Completer
from radixrt.constrained.recognizer import recognizer
from radixrt.constrained.vocabulary import Vocabulary
from tests.constrained.guards.languages import guarded, strict
from tests.constrained.guards.test_keys import answer
from tests.constrained.vocabularies import small_vocabulary

COUNTS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"type": "integer", "maximum": 99},
    "minProperties": 12,
}
NESTED = {"type": "object", "additionalProperties": COUNTS, "minProperties": 2}
NUMBERS = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "minItems": 20}
OPTIONAL = {"type": "array", "items": {"anyOf": [NUMBERS, {"type": "string", "maxLength": 9}]}, "uniqueItems": True}
TWICE = {"type": "array", "items": {"type": "string"}, "not": {"uniqueItems": True}}


def likely_tokens(vocabulary: Vocabulary) -> list[int]:
    """Tokens of which few keys are made, so that keys often repeat those of completions."""
    texts = ('"', "a", "b", '":', ",", '{"', '","', "{", "}", "1", "0", "2", "[", "]")
    return [id for text in texts if (id := vocabulary.by_bytes[0].get(text.encode()))]


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets an entry for each search of a unit."""
    found: list[int] = []
    around = Completer._around

    def counted(self: Completer, *args: Any) -> Any:
        found.append(1)
        return around(self, *args)

    monkeypatch.setattr(Completer, "_around", counted)
    return found


@pytest.mark.parametrize("schema", [COUNTS, NESTED], ids=["counts", "nested"])
def test_answers_with_few_tokens_left_are_whole_and_repeat_no_key(schema: Any, backends: Backends) -> None:
    """`answer` asserts that each completion has at most as many tokens as `fits` has promised."""
    vocabulary, template = backends.vocabulary, guarded(schema, backends)
    for seed in range(6):
        generator = random.Random(seed)
        tokens, _ = answer(template.new(), vocabulary, generator, likely_tokens(vocabulary), generator.randrange(40))
        value = strict(b"".join(vocabulary.table[token] for token in tokens).decode())
        assert len(value) >= schema["minProperties"]


@pytest.mark.parametrize("schema", [COUNTS, NUMBERS], ids=["counts", "numbers"])
def test_few_units_of_completions_are_searched(schema: Any, backends: Backends, searches: list[int]) -> None:
    vocabulary, template = backends.vocabulary, guarded(schema, backends)
    searches.clear()
    written = 0
    for seed in range(8):
        tokens, _ = answer(template.new(), vocabulary, random.Random(seed), likely_tokens(vocabulary), 30)
        written += len(tokens)
    # Each completion has up to twenty units, nearly every one of which would take a search.
    assert len(searches) < 2 * written


Asked = list[tuple[int, bool, list[int]]]
"""Of each token: the token, whether it fits, and the completion behind the text so far."""


def asked(grammar: GuardedGrammar, vocabulary: Vocabulary, seed: str, spare: int) -> Asked:
    """The answers of a grammar along a random text, whose choices depend on the seed alone."""
    generator, likely = random.Random(seed), likely_tokens(vocabulary)
    found: Asked = []
    remaining = len(grammar.closing()) + spare
    while not grammar.is_terminated():
        row = grammar.mask()
        some = [token for token in likely if row[token >> 5] >> (token & 31) & 1]
        token = generator.choice(some or [id for id in range(vocabulary.vocab_size) if row[id >> 5] >> (id & 31) & 1])
        remaining -= 1
        fits = grammar.accept_freely(token, remaining)
        if not fits and (fits := grammar.fits(token, remaining)):
            assert grammar.accept(token)
        found.append((token, fits, grammar.closing()))
        if not fits or token in vocabulary.eos_ids:
            break
    return found


def replayed(template: GuardedTemplate, taken: Asked, every: int) -> list[list[int]]:
    """Completions of a text that is accepted again, as after a restart, asked for after some of the tokens only."""
    grammar, found = template.new(), []
    for number, (token, fits, _) in enumerate(taken):
        assert not fits or grammar.accept(token)
        if number % every == 0:
            found.append(grammar.closing())
    return found


def reset_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recognizer forgets its states again and again, as it does after very many of them."""
    monkeypatch.setattr(recognizer, "_MAX_REMEMBERED", 97)


def keep_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_grammar, "KEPT_POSITIONS", 3)


@pytest.mark.parametrize("schema", [COUNTS, NESTED, NUMBERS, OPTIONAL, TWICE], ids=lambda one: str(one)[:9])
@pytest.mark.parametrize("change", [None, reset_often, keep_few])
def test_completions_depend_on_the_tokens_of_their_text_alone(
    schema: Any, change: Callable[[pytest.MonkeyPatch], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = Backends(small_vocabulary("byte_level"))
    vocabulary = backends.vocabulary
    requests = [(f"{seed}", spare) for seed, spare in enumerate((5, 40, 90, 0))]
    alone = [asked(guarded(schema, backends).new(), vocabulary, *request) for request in requests]
    assert any(not fits for taken in alone for _, fits, _ in taken)
    if change is not None:
        change(monkeypatch)
    for order in (requests, requests[::-1]):
        template = guarded(schema, backends)
        for request in order:
            assert asked(template.new(), vocabulary, *request) == alone[requests.index(request)]
    for taken in alone:
        closings = [closing for *_, closing in taken]
        for every in (1, 7):
            assert replayed(template, taken, every) == closings[::every]
            assert replayed(guarded(schema, backends), taken, every) == closings[::every]


def test_a_completion_repeats_no_key_that_was_written_since(backends: Backends) -> None:
    vocabulary, template = backends.vocabulary, guarded(COUNTS, backends)
    first, second, *_ = strict(vocabulary.decode(template.new().closing()).decode())
    grammar = template.new()
    begun = f'{{"{second}":0,"{first}":0,'.encode()
    assert all(map(grammar.accept, vocabulary.encode_greedily(begun)))
    closed = begun + vocabulary.decode(grammar.closing())
    assert len(strict(closed.decode())) == 12


def test_a_grammar_keeps_few_positions_and_goes_back_to_any(backends: Backends) -> None:
    vocabulary = backends.vocabulary
    grammar = guarded({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, backends).new()
    text = json.dumps(list(range(1000, 1400)), separators=(",", ":"))[:-1].encode()
    tokens = vocabulary.encode_greedily(text)
    assert all(map(grammar.accept, tokens))
    assert sum(position is not None for position in grammar._positions) < guarded_grammar.KEPT_POSITIONS + 2
    mask = grammar.mask()
    back = len(tokens) - 5
    grammar.rollback(back)
    assert all(map(grammar.accept, tokens[5:]))
    assert (grammar.mask() == mask).all()
    last = vocabulary.encode_greedily(b",1003]")
    assert all(map(grammar.accept, last[:-1]))
    assert not grammar.accept(last[-1])


GROWING = {"type": "array", "items": {"type": "array", "items": {"const": 1}}, "uniqueItems": True, "minItems": 40}
"""The shortest items are [], [1], [1,1] and so on, so that the items are much longer than as many empty arrays."""


@pytest.mark.parametrize("spare", [0, 7, 150, 600])
def test_a_free_text_ends_in_time_for_items_that_must_grow(spare: int, backends: Backends) -> None:
    vocabulary = backends.vocabulary
    schema = {"properties": {"text": {"type": "string"}, "sets": GROWING}, "required": ["text", "sets"]}
    template = guarded({"type": "object", "additionalProperties": False, **schema}, backends)
    grammar, begun, (token,) = template.new(), vocabulary.encode('{"text":"'), vocabulary.encode("a")
    assert all(map(grammar.accept, begun))
    budget, written = len(grammar.closing()) + spare, 0
    while written < budget:
        remaining = budget - written - 1
        if not grammar.accept_freely(token, remaining):
            if not grammar.fits(token, remaining):
                break
            assert grammar.accept(token)
        written += 1
    closing = grammar.closing()
    assert spare <= written <= budget - len(closing)
    value = strict(vocabulary.decode([*begun, *[token] * written, *closing]).decode())
    assert value["text"] == "a" * written
    assert len({json.dumps(one) for one in value["sets"]}) == 40


@pytest.mark.parametrize("remaining", [40, 300, 1200, 2000])
def test_a_set_that_must_grow_begins_only_where_it_can_be_finished(remaining: int, backends: Backends) -> None:
    vocabulary = backends.vocabulary
    grammar = guarded({"type": "array", "items": {"anyOf": [GROWING, {"type": "null"}]}}, backends).new()
    begun, (token,) = vocabulary.encode("[null,"), vocabulary.encode("[")
    assert all(map(grammar.accept, begun))
    begins = grammar.accept_freely(token, remaining) or (grammar.fits(token, remaining) and grammar.accept(token))
    assert begins == (remaining == 2000)
    closing = grammar.closing()
    assert len(closing) <= remaining
    strict(vocabulary.decode([*begun, *([token] if begins else []), *closing]).decode())
