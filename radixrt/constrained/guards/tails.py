"""`Tails`: completions that searches have found, by the recognizer's state.

Writing out a completion takes a search for each of its units, and an output that has few tokens left needs one after
each token. A completion of one text completes every text in the same state whose units it does not repeat. A control
token ends the JSON before it, so the tokens from the first control token on complete every text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from radixrt.constrained.recognizer import Recognizer, State

MAX_STATES: Final = 20_000
"""Maximum number of states whose completions are remembered."""
VARIANTS: Final = 8
"""Maximum number of completions of a state."""
MAX_TEXT: Final = 4096
"""Longest completion that is remembered, in bytes."""
MAX_BYTES: Final = 16 << 20
"""Maximum size of the remembered texts and their tokens, in bytes."""
_TOKEN_BYTES: Final = 40
"""Size of a token in a list, in bytes."""

_Tail: TypeAlias = tuple[bytes, int, tuple[int, ...]]
"""A text, the offset at which the completion begins, and the tokens from the first control token on."""


class Tails:
    """Completions by state, the one that was found last first.

    Args:
        encode: returns the tokens of a text.
    """

    def __init__(self, recognizer: Recognizer, encode: Callable[[bytes], list[int]]) -> None:
        self._recognizer = recognizer
        self._encode = encode
        self._tails: dict[State, list[_Tail]] = {}
        self._tokens: dict[bytes, list[int]] = {}
        self._size = 0  # of the texts and tokens, in bytes

    def find(self, state: State, is_good: Callable[[bytes], bool]) -> list[int] | None:
        """Return the tokens of a completion; None if none is known.

        Args:
            is_good: returns whether a completion repeats no unit of the text so far.
        """
        known = self._tails.get(state, [])
        for place, (text, start, others) in enumerate(known):
            tail = text[start:]
            if is_good(tail):
                if place:
                    known.insert(0, known.pop(place))
                return [*self._tokens_of(tail), *others]
        return None

    def add(self, state: State, text: bytes, others: tuple[int, ...] = ()) -> None:
        """Remember a completion of a state, and its ends as those of the states on its way. A completion longer than
        MAX_TEXT is not remembered.

        Args:
            text: the completion up to its first control token.
            others: the tokens from this control token on.
        """
        if len(text) + len(others) > MAX_TEXT:
            return
        if len(self._tails) >= MAX_STATES or self._size + len(text) > MAX_BYTES:
            self._clear()
        self._size += len(text) + _TOKEN_BYTES * len(others)
        self._tails.setdefault(state, []).insert(0, (text, 0, others))
        del self._tails[state][VARIANTS:]
        after: State | None = state
        start = 0
        for char in text.decode():
            after = None if after is None else self._recognizer.advance(after, char)
            if after is None:
                break
            start += len(char.encode())
            known = self._tails.setdefault(after, [])
            # All ends share one text: copies of them would take memory that is quadratic in its length.
            if len(known) < VARIANTS and not _contains(known, text, start):
                known.append((text, start, others))

    def _tokens_of(self, text: bytes) -> list[int]:
        tokens = self._tokens.get(text)
        if tokens is None:
            tokens = self._encode(text)
            size = len(text) + _TOKEN_BYTES * len(tokens)
            if self._size + size > MAX_BYTES:
                self._clear()
            self._size += size
            self._tokens[text] = tokens
        return tokens

    def _clear(self) -> None:
        self._tails.clear()
        self._tokens.clear()
        self._size = 0


def _contains(known: list[_Tail], text: bytes, start: int) -> bool:
    """Return whether the end of a text from an offset on is one of the known ends."""
    length = len(text) - start
    return any(len(one) - first == length and one.endswith(text[start:]) for one, first, _ in known)
