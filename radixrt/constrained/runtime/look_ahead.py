"""`LookAhead`: fills the caches for the next tokens of constrained rows while the device computes.

The first row that reaches a new parser state needs a mask, the forced tokens, and a bound on the shortest completion.
Computing them takes 0.1 to 0.3 ms, for which the device waits. `LookAhead` computes most of them ahead: a copy of the
row's grammar accepts a few of the allowed tokens from each state that a row has reached, and a few more tokens from the
states behind. Only caches change, so the results are the same with and without `LookAhead`.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from radixrt.constrained.grammar import Grammar

if TYPE_CHECKING:
    from radixrt.constrained.runtime.text_grammar import TextGrammar

MAX_PLACES = 256
"""Maximum length of each queue of places; further places are dropped."""
MAX_LIKELY = 12
"""Maximum number of tokens that are tried at a parser state."""
MAX_DEPTH = 8
"""Maximum number of consecutive sampled tokens that are tried from the place of a row."""
SLOW_S = 0.005
"""If a token takes longer than this, no more tokens of its grammar are tried, because the batch might have to wait."""


@dataclass(frozen=True)
class _Place:
    grammar: TextGrammar
    remaining: int
    depth: int


class LookAhead:
    """Queues of parser states to explore; states of rows come before the states behind them."""

    def __init__(self) -> None:
        self._rows: deque[_Place] = deque()
        self._behind: deque[_Place] = deque()
        self._place: _Place | None = None
        self._tokens: list[int] = []  # to be tried at `_place`

    def add(self, grammar: Grammar, remaining: int) -> None:
        """Queue the parser state of a row, unless the state was queued before.

        Args:
            remaining: number of tokens that the row may still generate.
        """
        from radixrt.constrained.runtime.text_grammar import TextGrammar  # loads a mask library

        grammar = grammar.ahead()
        if len(self._rows) < MAX_PLACES and isinstance(grammar, TextGrammar) and _claim(grammar):
            self._rows.append(_Place(grammar.copy(), remaining, 0))

    def turn(self) -> bool:
        """Try a token, or choose the tokens to try at the next place. Return False if there is nothing to do.

        Errors of a grammar are ignored here. They are raised again for the row that reaches the same place.
        """
        if self._tokens:
            assert self._place is not None
            self._try(self._place, self._tokens.pop())
            return True
        queue = self._rows or self._behind
        if not queue:
            return False
        self._place = queue.popleft()
        if self._place.grammar.template.looks_ahead:
            with contextlib.suppress(Exception):
                self._tokens = likely_tokens(self._place.grammar)
        return True

    def _try(self, place: _Place, token: int) -> None:
        started = time.thread_time()
        goes_on = False
        with contextlib.suppress(Exception):
            grammar = place.grammar.copy()
            taken = _take(grammar, token, place.remaining)
            goes_on = taken > 0 and _claim(grammar)
        if time.thread_time() - started > SLOW_S:
            place.grammar.template.looks_ahead = False
            self._tokens = []
        elif goes_on and place.depth + 1 < MAX_DEPTH and len(self._behind) < MAX_PLACES:
            self._behind.append(_Place(grammar, place.remaining - taken, place.depth + 1))


def likely_tokens(grammar: TextGrammar) -> list[int]:
    """Return at most `MAX_LIKELY` allowed text or control tokens: first a token for each class of characters that lead
    to the same parser state, then tokens spread over the whole mask."""
    row, here, template = grammar.mask(), grammar.here, grammar.template
    by_bytes, _ = template.vocabulary.by_bytes
    chars = template.completions.kinds_of_chars(template.parser_state(here))
    known = [token for char in chars if (token := by_bytes.get(char.encode())) is not None]
    # From a large mask take a token of evenly spaced words, from a small mask all tokens.
    words = np.flatnonzero(row)
    some = words[np.linspace(0, len(words) - 1, min(len(words), MAX_LIKELY)).astype(np.int64)]
    if len(words) < MAX_LIKELY:
        spread = [32 * word + bit for word in some.tolist() for bit in range(32) if row[word] >> bit & 1]
    else:
        spread = [32 * word + int(row[word]).bit_length() - 1 for word in some.tolist()]
    allowed = [token for token in dict.fromkeys([*known, *spread]) if here.allows(token)]
    return [token for token in allowed if token not in template.vocabulary.eos_ids][:MAX_LIKELY]


def _claim(grammar: TextGrammar) -> bool:
    """Return True for the first caller at a parser state. Grammars of all requests share the state."""
    here = grammar.here
    first = not here.is_claimed
    here.is_claimed = True
    return first


def _take(grammar: TextGrammar, token: int, remaining: int) -> int:
    """Accept a token and the forced tokens after it, like `Constraints.take`, and compute the mask after them.

    Returns:
        Number of accepted tokens; 0 if the text ends with these tokens or cannot continue.
    """
    if remaining < 1 or not grammar.fits(token, remaining) or not grammar.accept(token) or grammar.is_terminated():
        return 0
    forced = grammar.forced_continuation()
    if forced and (healed := grammar.healed(token, forced)) is not None:
        grammar.rollback(1)
        forced, taken = healed, 0
    else:
        taken = 1
    for one in forced:
        taken += 1
        if remaining < taken or not grammar.fits(one, remaining - taken) or not grammar.accept(one):
            return 0
        if grammar.is_terminated():
            return 0
    grammar.mask()
    return taken
