"""`Tails`: completions that searches have found, by the recognizer's state.

Writing out a completion takes a search for each of its units, and an output that has few tokens left needs one after
each token. A completion of one text completes every text in the same state whose units it does not repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from radixrt.constrained.recognizer import Recognizer, State

MAX_STATES: Final = 20_000
"""Maximum number of states whose completions are remembered."""
VARIANTS: Final = 8
"""Maximum number of completions of a state."""


class Tails:
    """Completions by state, the one that was found last first.

    Args:
        encode: returns the tokens of a text.
    """

    def __init__(self, recognizer: Recognizer, encode: Callable[[bytes], list[int]]) -> None:
        self._recognizer = recognizer
        self._encode = encode
        self._tails: dict[State, list[bytes]] = {}
        self._tokens: dict[bytes, list[int]] = {}

    def find(self, state: State, is_good: Callable[[bytes], bool]) -> list[int] | None:
        """Return the tokens of a completion; None if none is known.

        Args:
            is_good: returns whether a completion repeats no unit of the text so far.
        """
        known = self._tails.get(state, [])
        for place, text in enumerate(known):
            if is_good(text):
                if place:
                    known.insert(0, known.pop(place))
                return self._tokens_of(text)
        return None

    def add(self, state: State, text: bytes) -> None:
        """Remember a completion of a state, and its ends as those of the states on its way."""
        if len(self._tails) >= MAX_STATES:
            self._tails.clear()
            self._tokens.clear()
        self._tails.setdefault(state, []).insert(0, text)
        del self._tails[state][VARIANTS:]
        after: State | None = state
        for char in text.decode():
            after = None if after is None else self._recognizer.advance(after, char)
            text = text[len(char.encode()) :]
            if after is None:
                break
            known = self._tails.setdefault(after, [])
            if len(known) < VARIANTS and text not in known:
                known.append(text)

    def _tokens_of(self, text: bytes) -> list[int]:
        tokens = self._tokens.get(text)
        if tokens is None:
            tokens = self._tokens[text] = self._encode(text)
        return tokens
