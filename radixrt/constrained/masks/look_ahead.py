"""`LookAhead`: works out, while the device computes, what the next tokens of constrained rows will need.

A parser state that is new costs its first row a mask, its forced tokens, and a bound on its shortest completion: 0.1 to
0.3 ms, for which the device waits. Most of that is there already if a copy of the row's grammar took such tokens
before: from each state that a row has reached, a few of the tokens that its mask allows, and a few more from the states
behind them. Only caches change; a state that is found here is the one that a row would have found.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from radixrt.constrained.grammar import Grammar
from radixrt.constrained.masks.text_grammar import TextGrammar

MAX_PLACES = 256
"""Places that wait to be looked at, at most; further ones are left out."""
MAX_LIKELY = 12
"""Tokens that are tried at one parser state."""
MAX_DEPTH = 8
"""Sampled tokens that are tried one behind another, from the place of a row."""
SLOW_S = 0.005
"""After a token that took longer, nothing more is tried of its grammar: the next one might hold the batch up."""


@dataclass(frozen=True)
class _Place:
    grammar: TextGrammar
    remaining: int
    depth: int


class LookAhead:
    """Places to look at, those of rows first."""

    def __init__(self) -> None:
        self._rows: deque[_Place] = deque()
        self._behind: deque[_Place] = deque()
        self._place: _Place | None = None
        self._tokens: list[int] = []  # to be tried at `_place`

    def add(self, grammar: Grammar, remaining: int) -> None:
        """Note the place of a row that may still write `remaining` tokens, if nobody looked ahead from its state."""
        grammar = grammar.ahead()
        if len(self._rows) < MAX_PLACES and isinstance(grammar, TextGrammar) and _claim(grammar):
            self._rows.append(_Place(grammar.copy(), remaining, 0))

    def turn(self) -> bool:
        """Try one token, or choose those to be tried at the next place; False if there is nothing to do.

        Whatever a grammar raises concerns the row that comes to the same place, and is raised again there.
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
    """At most `MAX_LIKELY` tokens that may come next and are text or control tokens: one of each class of characters
    that the recognizer tells apart here, then some from all over the mask."""
    row, here, template = grammar.mask(), grammar.here, grammar.template
    by_bytes, _ = template.vocabulary.by_bytes
    chars = template.completions.kinds_of_chars(template.parser_state(here))
    known = [token for char in chars if (token := by_bytes.get(char.encode())) is not None]
    words = np.flatnonzero(row)
    some = words[np.linspace(0, len(words) - 1, min(len(words), MAX_LIKELY)).astype(np.int64)]
    if len(words) < MAX_LIKELY:
        spread = [32 * word + bit for word in some.tolist() for bit in range(32) if row[word] >> bit & 1]
    else:
        spread = [32 * word + int(row[word]).bit_length() - 1 for word in some.tolist()]
    allowed = [token for token in dict.fromkeys([*known, *spread]) if here.allows(token)]
    return [token for token in allowed if token not in template.vocabulary.eos_ids][:MAX_LIKELY]


def _claim(grammar: TextGrammar) -> bool:
    """Return True to the first caller at a parser state, whichever grammar reached it."""
    here = grammar.here
    first = not here.is_claimed
    here.is_claimed = True
    return first


def _take(grammar: TextGrammar, token: int, remaining: int) -> int:
    """Take a sampled token and what is forced behind it, as `ConstrainedRequests.take` does, and ask for the mask.

    Returns:
        Number of tokens; 0 if the text ends with them or cannot go on.
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
