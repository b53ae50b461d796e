"""A matcher that catches up with its text only when it is asked, or some tokens later."""

from __future__ import annotations

import random

import numpy as np
import pytest

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.matcher import BackendName, GrammarError, Matcher
from radixrt.constrained.productions import Productions, Term
from radixrt.constrained.regex import parse_regex
from radixrt.constrained.runtime.text_grammar import SETTLE_AFTER, TextGrammar, TextTemplate
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.errors import InvariantError
from tests.constrained.runtime.templates import BACKENDS, GRAMMARS, template, walk


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", GRAMMARS)
def test_a_matcher_that_lags_behind_changes_nothing(name: str, backend: BackendName, backends: Backends) -> None:
    """Only cached states, so that the matcher gets no tokens; then it catches up, or some tokens are rolled back."""
    common = template(GRAMMARS[name], backends, backend)
    vocabulary = backends.vocabulary
    lagged = 0
    for seed in range(12):
        generator = random.Random(seed)
        tokens = walk(common.new(), vocabulary, generator, 40)
        late, prompt = common.new(), template(GRAMMARS[name], backends, backend).new()
        for token in tokens:
            assert late.fits(token, 1000) == prompt.fits(token, 1000)
            taken = prompt.accept(token)
            assert late.accept(token) == taken
            if not taken:
                break
            prompt._catch_up()
            assert late.is_terminated() == prompt.is_terminated()
            np.testing.assert_array_equal(late.mask(), prompt.mask())
            lagged = max(lagged, late._behind)
            late.settle()
            if generator.random() < 0.1:
                back = generator.randrange(len(prompt._tokens) + 1)
                late.rollback(back)
                prompt.rollback(back)
                break
        assert late._behind < 2 * SETTLE_AFTER
        late._catch_up()
        assert late._matcher.may_end() == prompt._matcher.may_end()
        np.testing.assert_array_equal(late.mask(), prompt.mask())
        assert late.forced_continuation() == prompt.forced_continuation()
        assert late.closing() == prompt.closing()
    assert lagged


class Failing(Matcher):
    """Says the same to every token."""

    def __init__(self, answer: bool | GrammarError) -> None:
        self._answer = answer

    def accept(self, token: int) -> bool:
        if isinstance(self._answer, GrammarError):
            raise self._answer
        return self._answer

    def fork(self) -> Matcher:
        return self

    fill = rollback = may_end = must_end = forced = None  # type: ignore[assignment]


def behind(common: TextTemplate, vocabulary: Vocabulary) -> TextGrammar:
    """A grammar whose matcher has not been told of its tokens, of which `settle` would tell it."""
    tokens = [vocabulary.encode("a")[0]] * (2 * SETTLE_AFTER)
    before = common.new()
    before.mask()
    for token in tokens:
        assert before.accept(token)
        before.mask()
    grammar = common.new()
    assert all(map(grammar.accept, tokens))
    assert grammar._behind == len(tokens)
    return grammar


@pytest.mark.parametrize("failure", [False, GrammarError("at its limit")])
def test_a_library_that_fails_at_tokens_it_is_told_late_is_started_afresh(
    failure: bool | GrammarError, backends: Backends
) -> None:
    common = template(Productions({"start": Term(parse_regex("[a-z]{1,99}", search=False))}), backends)
    grammar = behind(common, backends.vocabulary)
    expected = grammar.mask()
    grammar._matcher = Failing(failure)
    grammar.settle()
    assert (common.generation, grammar._behind) == (1, 0)
    np.testing.assert_array_equal(grammar.mask(), expected)
    assert grammar.accept(*backends.vocabulary.encode("z"))


def test_a_library_that_goes_on_failing_at_them_is_an_error(backends: Backends) -> None:
    common = template(Productions({"start": Term(parse_regex("[a-z]{1,99}", search=False))}), backends)
    grammar = behind(common, backends.vocabulary)
    grammar._matcher = Failing(False)
    common._load = lambda: Failing(False)
    with pytest.raises(InvariantError, match="refuses a token that its mask allowed"):
        grammar.settle()
