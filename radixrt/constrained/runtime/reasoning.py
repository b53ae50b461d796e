"""`ReasoningGrammar`: free text up to an end marker, then another grammar.

The marker is a text such as "</think>". If the vocabulary has a control token with this text, either the control token
or text tokens with the same characters end the free text. Tokens that continue beyond the marker are masked, so the
inner grammar always begins at the beginning of a token.

The free text always ends in time: the marker is forced when the remaining reasoning budget equals the length of the
marker, and `fits` reserves tokens for the marker and for the shortest text of the inner grammar.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from radixrt.constrained.grammar import Bitmask, Grammar
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.errors import RequestError


class Marker:
    """An end marker in a vocabulary, as an automaton over bytes (Knuth-Morris-Pratt).

    A state is the length of the longest prefix of the marker with which the text so far ends.

    Attributes:
        token: the control token with the marker's text, or None.
        longest: maximum over all states of the number of tokens that complete the marker.
    """

    def __init__(self, vocabulary: Vocabulary, text: str) -> None:
        self.vocabulary = vocabulary
        self.data = text.encode()
        self.token = vocabulary.control_tokens.get(text)
        self._fallback = _fallbacks(self.data)
        self._rests: dict[int, list[int]] = {}
        self._masks: dict[int, Bitmask] = {}
        self._forced_masks: dict[int, Bitmask] = {}
        allowed = vocabulary.text_mask.copy()
        opening = vocabulary.control_tokens.get(text.replace("/", "", 1)) if "/" in text else None
        self._control = {token for token in (self.token, opening) if token is not None} - set(vocabulary.eos_ids)
        self._allowed = allowed | vocabulary.mask_of(self._control)
        self._beyond = self._tokens_beyond()
        self.longest = max(len(self.rest(state)) for state in range(len(self.data)))

    def check_stops(self, stop_token_ids: Iterable[int]) -> None:
        """Raise RequestError if a token of the marker is an end token: the output would end before the answer."""
        for token in stop_token_ids:
            if token in self._control:
                raise RequestError(
                    f"stop_token_ids: {token} belongs to reasoning_end and would end the output before the answer",
                    param="stop_token_ids",
                )

    def rest(self, state: int) -> list[int]:
        """Return the tokens that complete the marker from a state."""
        if state == 0 and self.token in self._control and self.token is not None:
            return [self.token]
        rest = self._rests.get(state)
        if rest is None:
            rest = self._rests[state] = self.vocabulary.encode_bytes(self.data[state:])
        return rest

    def mask(self, state: int) -> Bitmask:
        """Return the mask of the free text: all text tokens except tokens that continue beyond the marker."""
        mask = self._masks.get(state)
        if mask is None:
            beyond = [token for token in self._beyond if self.advance(state, token) is None]
            mask = self._masks[state] = self._allowed & ~self.vocabulary.mask_of(beyond)
            mask.flags.writeable = False
        return mask

    def forced_mask(self, state: int) -> Bitmask:
        """Return the mask that allows only the next token of the forced marker."""
        mask = self._forced_masks.get(state)
        if mask is None:
            mask = self._forced_masks[state] = self.vocabulary.mask_of(self.rest(state)[:1])
            mask.flags.writeable = False
        return mask

    def advance(self, state: int, token: int) -> int | None:
        """Return the state after a token; len(data) when the marker is complete. None if the token is not allowed."""
        if token in self._control:
            return len(self.data) if token == self.token else 0
        data = self.vocabulary.table[token] if 0 <= token < self.vocabulary.vocab_size else b""
        if not data:
            return None
        marker, fallback, end = self.data, self._fallback, len(self.data)
        for byte in data:
            if state == end:
                return None
            while state and marker[state] != byte:
                state = fallback[state - 1]
            if marker[state] == byte:
                state += 1
        return state

    def _tokens_beyond(self) -> list[int]:
        """Return the tokens that, in some state, complete the marker and continue beyond it."""
        last = self.data[-1:]
        ends = tuple(self.data[i:] for i in range(len(self.data)))
        return [
            token
            for token, data in enumerate(self.vocabulary.table)
            if data.find(last, 0, -1) >= 0 and (self.data in data[:-1] or data[:-1].startswith(ends))
        ]


@lru_cache(maxsize=16)
def marker_of(vocabulary: Vocabulary, text: str) -> Marker:
    """Return the marker of a text, created by the first call."""
    return Marker(vocabulary, text)


class ReasoningGrammar(Grammar):
    """Free text up to a marker, then the inner grammar.

    Args:
        inner: new grammar of the text after the marker.
        budget: maximum number of tokens of free text and marker together. The marker is generated even if it exceeds
            the budget.
    """

    def __init__(self, marker: Marker, inner: Grammar, budget: int | None) -> None:
        self._marker = marker
        self._inner = inner
        self._budget = budget
        self._states = [0]  # after each token up to the marker's end
        self._num_inner = 0
        self._inner_minimum = len(inner.closing())

    @property
    def _done(self) -> bool:
        return self._states[-1] == len(self._marker.data)

    def _is_forced(self) -> bool:
        """Return True if another free token could leave fewer tokens of the budget than the marker needs."""
        used = len(self._states) - 1
        return self._budget is not None and used + 1 + self._marker.longest > self._budget

    def mask(self) -> Bitmask:
        if self._done:
            return self._inner.mask()
        if self._is_forced():
            return self._marker.forced_mask(self._states[-1])
        return self._marker.mask(self._states[-1])

    def accept_freely(self, token: int, remaining: int) -> bool:
        accepted = self._done and self._inner.accept_freely(token, remaining)
        self._num_inner += accepted
        return accepted

    def accept(self, token: int) -> bool:
        if self._done:
            accepted = self._inner.accept(token)
            self._num_inner += accepted
            return accepted
        before = self._states[-1]
        state = self._marker.advance(before, token)
        if state is None or (self._is_forced() and state <= before):
            return False
        self._states.append(state)
        return True

    def is_terminated(self) -> bool:
        return self._done and self._inner.is_terminated()

    def rollback(self, num_tokens: int) -> None:
        inner = min(num_tokens, self._num_inner)
        if inner:
            self._inner.rollback(inner)
            self._num_inner -= inner
        if num_tokens > inner:
            del self._states[inner - num_tokens :]

    def forced_continuation(self) -> list[int]:
        if self._done:
            return self._inner.forced_continuation()
        return list(self._marker.rest(self._states[-1])) if self._is_forced() else []

    def healed(self, last: int, forced: list[int]) -> list[int] | None:
        return self._inner.healed(last, forced) if self._num_inner else None

    def fits(self, token: int, remaining: int) -> bool:
        if self._done:
            return self._inner.fits(token, remaining)
        state = self._marker.advance(self._states[-1], token)
        return state is None or self._reserve(state) <= remaining

    @property
    def closes(self) -> bool:
        return self._inner.closes

    def closing(self) -> list[int]:
        if self._done:
            return self._inner.closing()
        return [*self._marker.rest(self._states[-1]), *self._inner.closing()]

    def ahead(self) -> Grammar:
        return self._inner.ahead()

    def settle(self) -> None:
        self._inner.settle()

    def _reserve(self, state: int) -> int:
        rest = 0 if state == len(self._marker.data) else len(self._marker.rest(state))
        return rest + self._inner_minimum


def _fallbacks(data: bytes) -> list[int]:
    """Return the KMP failure function: for each i, the length of the longest proper prefix of `data` with which
    data[: i + 1] ends."""
    table = [0] * len(data)
    state = 0
    for i in range(1, len(data)):
        while state and data[i] != data[state]:
            state = table[state - 1]
        if data[i] == data[state]:
            state += 1
        table[i] = state
    return table
