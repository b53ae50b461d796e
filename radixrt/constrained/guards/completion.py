"""`Completion`: a short completion of a guarded text, which may guide the search for completions of longer texts."""

from __future__ import annotations

from typing import Final

from radixrt.constrained.productions import Special
from radixrt.constrained.recognizer import Recognizer, State
from radixrt.constrained.vocabulary import Vocabulary

JOINTS: Final = b",]}"
"""Bytes behind which a text may go on as a completion of another text does."""


class Completion:
    """A completion, which never changes.

    Args:
        state: where the completion begins; None inside of a character.
        text: the completion up to its first control token.
        others: the completion from the first control token on.

    Attributes:
        text, others: as above.
    """

    def __init__(self, state: State | None, text: bytes, others: tuple[str | Special, ...]) -> None:
        self._state = state
        self._joints: dict[int, int] | None = None
        self._tokens: list[int] | None = None
        self.text = text
        self.others = others

    def fits(self, remaining: int, vocabulary: Vocabulary) -> bool:
        """Return whether the completion has at most `remaining` tokens."""
        return (not self.others and len(self.text) <= remaining) or len(self.tokens(vocabulary)) <= remaining

    def tokens(self, vocabulary: Vocabulary) -> list[int]:
        """Return the tokens of the completion; read-only."""
        if self._tokens is None:
            self._tokens = vocabulary.encode_bytes(self.text)
            for part in self.others:
                if isinstance(part, Special):
                    self._tokens.append(vocabulary.control_tokens[part.text])
                else:
                    self._tokens += vocabulary.encode_bytes(part.encode())
        return self._tokens

    def tail(self, state: State, recognizer: Recognizer) -> bytes | None:
        """Return an end of `text` that begins behind one of the JOINTS and, with `others`, completes another text; None
        if none is found.

        The result depends on the texts alone: states are not compared, because equal ones may be different objects.

        Args:
            state: after the other text.
        """
        if self._joints is None:
            self._joints = self._find_joints(recognizer)
        start = self._joints.get(recognizer.closing_length(state))
        if start is None:
            return None
        tail = self.text[start:]
        after = recognizer.advance(state, tail.decode())
        for part in self.others:
            if after is None:
                return None
            if isinstance(part, Special):
                after = recognizer.advance_special(after, part.text)
            else:
                after = recognizer.advance(after, part)
        return tail if after is not None and recognizer.is_complete(after) else None

    def _find_joints(self, recognizer: Recognizer) -> dict[int, int]:
        """Return the last offsets behind one of the JOINTS, by the length of the grammar's shortest completion there:
        each part that must still come makes the completion longer."""
        found: dict[int, int] = {}
        state, start = self._state, 0
        for end in [at + 1 for at, byte in enumerate(self.text) if byte in JOINTS]:
            state = None if state is None else recognizer.advance(state, self.text[start:end].decode())
            if state is None:
                break
            start = end
            found[recognizer.closing_length(state)] = end
        return found


def completion_of(tokens: list[int], state: State, vocabulary: Vocabulary) -> Completion:
    """Return a completion with these tokens."""
    names = {token: text for text, token in vocabulary.control_tokens.items()}
    parts: list[str | Special] = []
    data = b""
    for token in tokens:
        data += vocabulary.table[token]
        if not vocabulary.table[token]:
            parts += [*([data.decode()] if data or not parts else []), Special(names[token])]
            data = b""
    parts += [data.decode()] if data or not parts else []
    text, *others = parts
    assert isinstance(text, str)
    return Completion(state, text.encode(), tuple(others))
