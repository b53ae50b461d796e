"""Free text up to a marker, then a grammar."""

from __future__ import annotations

import random

import numpy as np
import pytest

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.compiler import compile_constraint, load
from radixrt.constrained.runtime.grammar_template import GrammarTemplate
from radixrt.constrained.runtime.reasoning import ReasoningGrammar, marker_of
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import Constraint
from tests.constrained.vocabularies import allowed, small_vocabulary

MARKERS = ("</think>", "###", "\n\n", "aab", "Answer:", "🙂")


@pytest.fixture(scope="module")
def choices(backends: Backends) -> GrammarTemplate:
    return load(compile_constraint(Constraint(kind="choices", source='["yes", "no", "maybe so"]'), backends), backends)


def feed(grammar: ReasoningGrammar, tokens: list[int]) -> None:
    for token in tokens:
        assert grammar.accept(token)


def test_the_marker_ends_the_free_text(choices: GrammarTemplate, vocabulary: Vocabulary) -> None:
    grammar = ReasoningGrammar(marker_of(vocabulary, "</think>"), choices.new(), None)
    ends = set(vocabulary.eos_ids)
    feed(grammar, vocabulary.encode("Let me <think> about </ it. {yes}"))
    free = allowed(grammar, vocabulary.vocab_size)
    assert not free & ends
    assert not free & set(vocabulary.control_tokens.values())
    assert not grammar.accept(vocabulary.eos_ids[0])
    assert not grammar.is_terminated()
    assert grammar.forced_continuation() == []
    feed(grammar, vocabulary.encode("</think>"))
    assert allowed(grammar, vocabulary.vocab_size) == allowed(choices.new(), vocabulary.vocab_size)
    feed(grammar, vocabulary.encode("no"))
    assert grammar.is_terminated()
    assert grammar.closing() == []


@pytest.mark.parametrize("text", MARKERS)
def test_masks_leave_out_exactly_the_tokens_that_go_on_behind_the_marker(
    text: str, choices: GrammarTemplate, vocabulary: Vocabulary
) -> None:
    marker = marker_of(vocabulary, text)
    for state in range(len(marker.data)):
        before = marker.data[:state]
        mask = marker.mask(state)
        for token, data in enumerate(vocabulary.table):
            place = (before + data).find(marker.data)
            goes_on = 0 <= place < len(before + data) - len(marker.data)
            is_allowed = bool(mask[token >> 5] >> np.uint32(token & 31) & 1)
            assert is_allowed == (bool(data) and not goes_on)
            assert is_allowed == (marker.advance(state, token) is not None)


@pytest.mark.parametrize("text", MARKERS)
def test_whatever_is_sampled_the_output_is_free_text_marker_and_answer(
    text: str, choices: GrammarTemplate, vocabulary: Vocabulary
) -> None:
    marker = marker_of(vocabulary, text)
    for seed in range(30):
        generator = random.Random(seed)
        budget = generator.choice([None, 1, 5, 20])
        grammar = ReasoningGrammar(marker, choices.new(), budget)
        tokens: list[int] = []
        limit = len(grammar.closing()) + generator.randrange(30)
        closed = False
        while not grammar.is_terminated() and not closed:
            forced = grammar.forced_continuation()
            choice = forced or sorted(allowed(grammar, vocabulary.vocab_size))
            token = choice[0] if forced else generator.choice(choice)
            if not grammar.fits(token, limit - len(tokens) - 1):
                tokens += grammar.closing()
                closed = True
                break
            assert grammar.accept(token)
            if token in vocabulary.eos_ids:
                break
            tokens.append(token)
        assert len(tokens) <= limit
        data = vocabulary.decode(tokens)
        free, _, answer = data.partition(marker.data)
        assert answer.decode() in ("yes", "no", "maybe so")
        if budget is not None and budget >= marker.longest:
            used = next(i for i in range(len(tokens) + 1) if vocabulary.decode(tokens[:i]) == free + marker.data)
            assert used <= budget


def test_a_control_token_is_the_marker_where_the_vocabulary_has_it() -> None:
    vocabulary = small_vocabulary("byte_level")
    backends = Backends(vocabulary)
    template = load(compile_constraint(Constraint(kind="choices", source='["a", "b"]'), backends), backends)
    think = vocabulary.control_tokens["<think>"]
    marker = marker_of(vocabulary, "<think>")
    grammar = ReasoningGrammar(marker, template.new(), 10)
    feed(grammar, vocabulary.encode("x"))
    assert grammar.closing()[0] == think
    assert think in allowed(grammar, vocabulary.vocab_size)
    feed(grammar, [think])
    assert allowed(grammar, vocabulary.vocab_size) == allowed(template.new(), vocabulary.vocab_size)
    opening = ReasoningGrammar(marker_of(vocabulary, "</think>"), template.new(), None)
    feed(opening, [think])  # the model may open what it closes
    feed(opening, vocabulary.encode("</think>a"))
    assert opening.is_terminated()


def test_rollback_goes_back_over_the_marker(choices: GrammarTemplate, vocabulary: Vocabulary) -> None:
    grammar = ReasoningGrammar(marker_of(vocabulary, "###"), choices.new(), None)
    free = vocabulary.encode("some thoughts ")
    rest = [*vocabulary.encode("###"), *vocabulary.encode("maybe so")]
    feed(grammar, free)
    before = allowed(grammar, vocabulary.vocab_size)
    closing = grammar.closing()
    for count in range(1, len(rest) + 1):
        feed(grammar, rest[:count])
        grammar.rollback(count)
        assert allowed(grammar, vocabulary.vocab_size) == before
        assert grammar.closing() == closing


def test_masks_of_free_text_are_sent_once(choices: GrammarTemplate, vocabulary: Vocabulary) -> None:
    """They are the same read-only arrays for all requests, also where the marker is forced."""
    marker = marker_of(vocabulary, "</think>")
    for budget in (None, 1):
        first, second = (ReasoningGrammar(marker, choices.new(), budget).mask() for _ in range(2))
        assert first is second
        assert not first.flags.writeable
