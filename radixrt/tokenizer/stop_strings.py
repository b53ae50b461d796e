"""Stop strings in a stream of text: only text that may still become part of a stop string is held back.

All stop strings are matched at once, each by the automaton of Knuth, Morris and Pratt (SIAM J. Comput. 6, 1977).
Therefore the work is linear in the length of the text for any stop strings, and the result does not depend on how the
text is split into pieces. A stop string whose first character has not occurred costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


@lru_cache(maxsize=512)
def failure_table(pattern: str) -> list[int]:
    """Failure table: entry n - 1 is the length of the longest proper prefix of pattern[:n] that is also its suffix."""
    table = [0] * len(pattern)
    length = 0
    for i in range(1, len(pattern)):
        while length and pattern[i] != pattern[length]:
            length = table[length - 1]
        if pattern[i] == pattern[length]:
            length += 1
        table[i] = length
    return table


class StopMatcher:
    """Finds the stop string that is completed first; the longest one if several end at the same character.

    Args:
        stops: non-empty strings.
        include: whether the stop string itself is kept in the text.

    Attributes:
        matched: stop string that was found, or None.
    """

    __slots__ = ("_active", "_held", "_include", "_starting_with", "_stops", "matched")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = list(dict.fromkeys(stops))
        self._include = include
        self._starting_with: dict[str, list[int]] = {}
        for i, stop in enumerate(self._stops):
            self._starting_with.setdefault(stop[0], []).append(i)
        self._active: dict[int, int] = {}  # stop -> how many of its characters end the text so far (at least 1)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, token_id: int | None = None, *, search: bool = True) -> str:
        """Take more text and return the text that is final. After a match, always return "".

        Args:
            token_id: the token whose text it is; not looked at.
            search: False for text in which no stop string counts.
        """
        if self.matched is not None:
            return ""
        if not search:
            return text
        if not self._active and self._starting_with.keys().isdisjoint(text):
            return text
        joined = self._held + text
        found = self._scan(text)
        if found is None:
            cut = len(joined) - max(self._active.values(), default=0)
            self._held = joined[cut:]
            return joined[:cut]
        self.matched, end = found
        end += len(self._held)
        self._held = ""
        return joined[: end if self._include else end - len(self.matched)]

    def flush(self) -> str:
        """End the text and return the text that was held back."""
        held, self._held = self._held, ""
        self._active.clear()
        return held

    def _scan(self, text: str) -> tuple[str, int] | None:
        """Advance the automata; return the first match and the position in `text` after it, or None."""
        active, starting_with, stops = self._active, self._starting_with, self._stops
        for position, char in enumerate(text, 1):
            if active:
                for i, length in list(active.items()):
                    length = self._advance(i, length, char)
                    if length:
                        active[i] = length
                    else:
                        del active[i]
            for i in starting_with.get(char, ()):
                active.setdefault(i, 1)
            if active:
                done = [stops[i] for i, length in active.items() if length == len(stops[i])]
                if done:
                    return max(done, key=len), position
        return None

    def _advance(self, i: int, length: int, char: str) -> int:
        stop = self._stops[i]
        while length and stop[length] != char:
            # A table is built only when a stop string fails after at least two matched characters.
            length = failure_table(stop)[length - 1] if length > 1 else 0
        return length + 1 if stop[length] == char else 0
