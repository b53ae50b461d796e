"""Completions of guarded texts that are found again instead of being searched."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.guards import tails
from radixrt.constrained.guards.search import Completer
from radixrt.constrained.vocabulary import Vocabulary
from tests.constrained.guards.languages import guarded, strict
from tests.constrained.guards.test_keys import answer

COUNTS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"type": "integer", "maximum": 99},
    "minProperties": 12,
}
NESTED = {"type": "object", "additionalProperties": COUNTS, "minProperties": 2}


def likely_tokens(vocabulary: Vocabulary) -> list[int]:
    """Tokens of which few keys are made, so that keys often repeat those of completions."""
    texts = ('"', "a", "b", '":', ",", '{"', '","', "{", "}", "1")
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
@pytest.mark.parametrize("most", [tails.MAX_STATES, 5], ids=["", "few states"])
def test_answers_with_few_tokens_left_are_whole_and_repeat_no_key(
    schema: Any, most: int, backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`answer` asserts that each completion has at most as many tokens as `fits` has promised."""
    monkeypatch.setattr(tails, "MAX_STATES", most)
    vocabulary, template = backends.vocabulary, guarded(schema, backends)
    for seed in range(6):
        generator = random.Random(seed)
        tokens, _ = answer(template.new(), vocabulary, generator, likely_tokens(vocabulary), generator.randrange(40))
        value = strict(b"".join(vocabulary.table[token] for token in tokens).decode())
        assert len(value) >= schema["minProperties"]


def test_most_completions_are_found_again(backends: Backends, searches: list[int]) -> None:
    vocabulary, template = backends.vocabulary, guarded(COUNTS, backends)
    written = 0
    for seed in range(12):
        generator = random.Random(seed)
        tokens, _ = answer(template.new(), vocabulary, generator, likely_tokens(vocabulary), 30)
        if seed < 6:
            searches.clear()
        else:
            written += len(tokens)
    # Each completion has up to eleven units, of which nearly every one takes a search.
    assert len(searches) < written


def test_a_completion_that_would_repeat_a_key_is_not_taken(backends: Backends, searches: list[int]) -> None:
    vocabulary, template = backends.vocabulary, guarded(COUNTS, backends)
    fresh = template.new()
    text = b"".join(vocabulary.table[token] for token in fresh.closing())
    (first, *_), count = strict(text.decode()), len(searches)
    assert template.new().closing() == fresh.closing()
    assert len(searches) == count
    # A text whose last key is the second one of the completion: it must have other keys behind.
    second = list(strict(text.decode()))[1]
    grammar = template.new()
    begun = f'{{"{second}":0,"{first}":0,'.encode()
    assert all(map(grammar.accept, vocabulary.encode_greedily(begun)))
    closed = begun + b"".join(vocabulary.table[token] for token in grammar.closing())
    assert len(strict(closed.decode())) == 12


def test_the_completion_that_fits_is_the_one_that_is_written(backends: Backends) -> None:
    vocabulary, template = backends.vocabulary, guarded(COUNTS, backends)
    grammar = template.new()
    (token,) = vocabulary.encode_greedily(b"{")
    enough = len(grammar.closing()) + 5
    assert grammar.fits(token, enough)
    assert grammar.accept(token)
    promised = grammar.closing()
    assert len(promised) <= enough
    completer = template.guard.completer
    completer._tails.add(
        grammar._place[0], b'"' + b"x" * 99 + b'":0,' + b"".join(b'"%d":0,' % i for i in range(11)) + b"}"
    )
    assert grammar.closing() == promised
    copied = grammar.copy()
    assert all(map(copied.accept, promised))


@pytest.mark.parametrize(("limit", "most"), [("MAX_BYTES", 2000), ("MAX_TEXT", 60)])
def test_completions_that_are_forgotten_are_searched_again(
    limit: str, most: int, backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, limit, most)
    vocabulary, template = backends.vocabulary, guarded(COUNTS, backends)
    generator = random.Random(1)
    tokens, _ = answer(template.new(), vocabulary, generator, likely_tokens(vocabulary), 10)
    assert len(strict(b"".join(vocabulary.table[token] for token in tokens).decode())) >= COUNTS["minProperties"]
    known = template.guard.completer._tails
    assert known._size <= tails.MAX_BYTES
    assert all(len(text) <= tails.MAX_TEXT for some in known._tails.values() for text, _, _ in some)


def test_the_ends_of_a_completion_share_its_text(backends: Backends) -> None:
    schema = {"type": "array", "items": {"type": "string", "minLength": 1000}, "uniqueItems": True}
    completer = guarded(schema, backends).guard.completer
    known, state = completer._tails, completer._recognizer.start()
    text = b'["' + b"a" * 1000 + b'"]'
    known.add(state, text)
    ends = [one for some in known._tails.values() for one in some]
    assert len(ends) > 1000
    assert {id(one) for one, _, _ in ends} == {id(text)}
    known.add(state, b'["' + b"a" * tails.MAX_TEXT + b'"]')
    assert known.find(state, lambda text: True) == backends.vocabulary.encode_bytes(text)


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
