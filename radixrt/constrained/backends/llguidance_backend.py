"""llguidance: an Earley parser over lazily built lexers. Compiles in about a millisecond; a mask takes 1 to 30 us.

Measured here (49,152 tokens): a fork takes 0.5 us and shares the lexer states that others have built; accept 1 us;
forced tokens 2 us, which the next mask saves again. Its matcher never raises: after an error it allows only end
tokens, for good, so every call is followed by a check of `is_error`. A refused token is such an
error for `consume_token`, but not for `try_consume_tokens`, as long as the id exists.
"""

from __future__ import annotations

import ctypes
import re

import llguidance

from radixrt.constrained.backends.borders import Borders
from radixrt.constrained.backends.lark import to_lark
from radixrt.constrained.grammar import Bitmask
from radixrt.constrained.matcher import GrammarBackend, GrammarError, Matcher
from radixrt.constrained.productions import Productions
from radixrt.constrained.vocabulary import Vocabulary

LIMITS = llguidance.LLParserLimits(
    step_lexer_fuel=500_000, step_max_items=100_000, max_lexer_states=50_000, verbose_errors=False
)
"""Limit on the work of a mask: about 40 ms. Lexer states (1.4 KB each) are shared by all matchers of one loaded
grammar, and so is their limit. Errors do not repeat the grammar, which is the client's own text."""


TOO_MANY_ITEMS = re.compile(r"row has (\d+) items; max is (\d+)")


class LlguidanceBackend(GrammarBackend):
    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._borders = Borders(vocabulary)

    def write(self, productions: Productions) -> str:
        return to_lark(productions, self._vocabulary.control_tokens)

    def load(self, source: str, serialized: str | None = None) -> Matcher:
        grammar = llguidance.LLMatcher.grammar_from_lark(source)
        matcher = llguidance.LLMatcher(self._vocabulary.ll_tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise GrammarError(f"llguidance refuses the grammar: {_reason(matcher)}")
        return LlguidanceMatcher(matcher, self._vocabulary, self._borders)


class LlguidanceMatcher(Matcher):
    """See the module's docstring."""

    __slots__ = ("_borders", "_matcher", "_vocabulary")

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: Vocabulary, borders: Borders) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._borders = borders

    def fill(self, row: Bitmask) -> None:
        address = ctypes.addressof(ctypes.c_char.from_buffer(row.data))  # a fifth of the time that row.ctypes takes
        self._matcher.unsafe_compute_mask_ptr(address, row.nbytes)
        if self._matcher.is_error():
            raise GrammarError(f"llguidance cannot go on with the grammar: {_reason(self._matcher)}")

    def accept(self, token: int) -> bool:
        if not 0 <= token < self._vocabulary.vocab_size:
            return False
        accepted = self._matcher.try_consume_tokens([token]) == 1
        if self._matcher.is_error():
            raise GrammarError(f"llguidance cannot go on with the grammar: {_reason(self._matcher)}")
        return accepted

    def accept_all(self, tokens: list[int]) -> bool:
        accepted = self._matcher.try_consume_tokens(tokens) == len(tokens)
        if self._matcher.is_error():
            raise GrammarError(f"llguidance cannot go on with the grammar: {_reason(self._matcher)}")
        return accepted

    def rollback(self, num_tokens: int) -> None:
        if not self._matcher.rollback(num_tokens):
            raise GrammarError(f"llguidance cannot undo {num_tokens} tokens: {_reason(self._matcher)}")

    def may_end(self) -> bool:
        return self._matcher.is_accepting()

    def must_end(self) -> bool:
        return self._matcher.is_stopped() and self._matcher.is_accepting()

    def forced(self) -> list[int]:
        tokens = self._matcher.compute_ff_tokens()
        if self._matcher.is_error():
            raise GrammarError(f"llguidance cannot go on with the grammar: {_reason(self._matcher)}")
        if not tokens:
            return tokens
        data = self._matcher.compute_ff_bytes()
        # With control tokens among them they are left as they are: those end every uncertainty.
        return self._borders.settled(data, tokens) if data.startswith(self._vocabulary.decode(tokens)) else tokens

    def fork(self) -> Matcher:
        return LlguidanceMatcher(self._matcher.deep_copy(), self._vocabulary, self._borders)


def _reason(matcher: llguidance.LLMatcher) -> str:
    text = matcher.get_error().strip()
    row = TOO_MANY_ITEMS.search(text)
    if row is not None:
        return (
            f"its choices leave {row[1]} alternatives open at one place, and {row[2]} are the most; offer fewer "
            "options there, or let them begin differently"
        )
    lines = text.splitlines()
    return lines[0][:200] if lines else "no reason given"
