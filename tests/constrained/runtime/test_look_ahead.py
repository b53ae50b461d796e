"""Looking ahead: what rows come to is there already, and it is what they would have found themselves."""

from __future__ import annotations

import random

import numpy as np
import pytest

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.matcher import GrammarError
from radixrt.constrained.productions import Lit, Productions, Seq, Term
from radixrt.constrained.regex import parse_regex
from radixrt.constrained.runtime import look_ahead
from radixrt.constrained.runtime.grammar_template import GrammarTemplate
from radixrt.constrained.runtime.look_ahead import MAX_LIKELY, LookAhead, likely_tokens
from radixrt.constrained.runtime.reasoning import Marker, ReasoningGrammar
from radixrt.constrained.runtime.text_grammar import TextGrammar
from radixrt.constrained.vocabulary import Vocabulary
from tests.constrained.runtime.templates import GRAMMARS, template, walk

CHOICE = Term(parse_regex("[xyz]", search=False))
DIGITS = Term(parse_regex("[0-9]{1,3}", search=False))
FEW = Productions({"start": Seq((CHOICE, Lit('":{"name":'), DIGITS))})


def look(grammar: TextGrammar, remaining: int = 100, turns: int = 10_000) -> int:
    """Look ahead from a grammar's place; returns the number of turns that had something to do."""
    ahead = LookAhead()
    ahead.add(grammar, remaining)
    done = 0
    while done < turns and ahead.turn():
        done += 1
    return done


def num_masks(made: GrammarTemplate, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one with each mask that is computed."""
    computed: list[int] = []
    mask_of = made.mask_of
    monkeypatch.setattr(made, "mask_of", lambda matcher: (computed.append(1), mask_of(matcher))[1])
    return computed


def test_a_row_finds_what_was_looked_at(backends: Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind each of three tokens, the forced text and the mask after it."""
    made = template(FEW, backends)
    row = made.new()
    assert look(row) > 3
    computed = num_masks(made, monkeypatch)
    monkeypatch.setattr(TextGrammar, "_asking", lambda self, question: pytest.fail("the library was asked"))
    encode = backends.vocabulary.encode
    for text in "xyz":
        (token,) = encode(text)
        grammar = made.new()
        assert grammar.fits(token, 100)
        assert grammar.accept(token)
        forced = grammar.forced_continuation()
        assert forced
        for one in forced:
            assert grammar.accept(one)
            assert not grammar.is_terminated()
        grammar.mask()
    assert not computed


@pytest.mark.parametrize("name", GRAMMARS)
def test_outputs_and_masks_are_the_same(name: str, backends: Backends, vocabulary: Vocabulary) -> None:
    plain, looked = template(GRAMMARS[name], backends), template(GRAMMARS[name], backends)
    ahead = LookAhead()
    for seed in range(6):
        one, other = plain.new(), looked.new()
        generator = random.Random(seed)
        tokens = walk(plain.new(), vocabulary, generator, 60)
        for token in tokens:
            ahead.add(other, 60)
            for _ in range(20):
                ahead.turn()
            assert np.array_equal(one.mask(), other.mask())
            assert one.forced_continuation() == other.forced_continuation()
            assert one.closing() == other.closing()
            for remaining in (0, 5, 20, 60):
                assert one.fits(token, remaining) == other.fits(token, remaining)
            assert one.accept(token)
            assert other.accept(token)
            assert one.is_terminated() == other.is_terminated()
            one.settle()
            other.settle()


def test_the_grammar_of_the_row_stays_where_it_is(backends: Backends) -> None:
    row = template(GRAMMARS["record"], backends).new()
    before = row.mask().copy(), row.forced_continuation(), list(row._tokens)
    look(row)
    assert np.array_equal(row.mask(), before[0])
    assert (row.forced_continuation(), row._tokens) == before[1:]


def test_a_place_is_looked_at_once(backends: Backends) -> None:
    made = template(GRAMMARS["record"], backends)
    assert look(made.new()) > 1
    assert look(made.new()) == 0


def test_places_of_rows_come_before_those_behind_them(backends: Backends) -> None:
    ahead = LookAhead()
    ahead.add(template(GRAMMARS["record"], backends).new(), 100)
    for _ in range(1 + MAX_LIKELY):
        ahead.turn()
    second = template(GRAMMARS["tree"], backends).new()
    ahead.add(second, 100)
    before = ahead._place
    while ahead._place is before:
        assert ahead.turn()
    assert ahead._place is not None
    assert ahead._place.grammar.template is second.template


def test_few_tokens_are_tried_and_all_are_allowed(backends: Backends) -> None:
    for productions in (*GRAMMARS.values(), FEW):
        grammar = template(productions, backends).new()
        tokens = likely_tokens(grammar)
        assert 0 < len(tokens) <= MAX_LIKELY
        assert all(grammar.here.allows(token) for token in tokens)
    assert {backends.vocabulary.encode(text)[0] for text in "xyz"} <= set(tokens)


@pytest.mark.parametrize("fails", [True, False])
def test_a_grammar_that_fails_or_is_slow_is_left_alone(
    fails: bool, backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = template(GRAMMARS["record"], backends)
    if fails:

        def fail(grammar: TextGrammar, token: int, remaining: int) -> int:
            raise GrammarError("no more")

        monkeypatch.setattr(look_ahead, "_take", fail)
    else:
        monkeypatch.setattr(look_ahead, "SLOW_S", -1.0)
    turns = look(made.new())
    assert turns <= (2 + MAX_LIKELY if fails else 2)
    assert made.looks_ahead is fails


def test_behind_a_marker_the_constraint_is_looked_at(backends: Backends) -> None:
    made = template(FEW, backends)
    ahead = LookAhead()
    ahead.add(ReasoningGrammar(Marker(backends.vocabulary, "</t>"), made.new(), None), 100)
    assert ahead.turn()
    assert made.start.is_claimed
