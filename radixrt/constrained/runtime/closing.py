"""Closing suffixes: tokens of a shortest completion, so that an output is valid even if its token budget is spent.

The recognizer follows a text. The number of characters of a shortest completion gives a cheap upper bound on the number
of tokens (`bound`), because no token is shorter than a byte. Only if the remaining budget is below that bound, the
completion is written out and tokenized (`closing`).
"""

from __future__ import annotations

from radixrt.constrained.productions import Special
from radixrt.constrained.recognizer import Recognizer, State
from radixrt.constrained.regex.charset import CharSet
from radixrt.constrained.vocabulary import TokenSet, Vocabulary, split_utf8
from radixrt.errors import InvariantError

MAX_CHAR_BYTES = 4
MAX_KNOWN_CLOSINGS = 10_000

ParserState = tuple[State, bytes]
"""State of the recognizer after the complete characters, and the bytes of an incomplete one."""


class Completions:
    """Shortest completions of the texts of a grammar.

    Args:
        recognizer: recognizer of the same productions as the matchers.
    """

    def __init__(self, recognizer: Recognizer, vocabulary: Vocabulary) -> None:
        self.recognizer = recognizer
        self._vocabulary = vocabulary
        self._names = {token: text for text, token in vocabulary.control_tokens.items()}
        self._closings: dict[State, list[int]] = {}
        self.start: ParserState = (recognizer.start(), b"")

    def advance(self, parser_state: ParserState, token: int) -> ParserState | None:
        """Return the parser state after another token; None if the token is not allowed.

        Raises:
            RequestError: the grammar is too ambiguous to follow.
        """
        state: State | None
        state, pending = parser_state
        if not 0 <= token < self._vocabulary.vocab_size:
            return None
        # A control token is a symbol of the grammar, and cannot stand inside of a character.
        data = self._vocabulary.table[token]
        if not data:
            name = self._names.get(token)
            state = None if name is None or pending else self.recognizer.advance_special(state, name)
            return None if state is None else (state, b"")
        # A token may end inside of a character. The recognizer reads the complete characters, and the remaining bytes
        # must begin some allowed character.
        text, pending = split_utf8(pending + data) if pending else self._vocabulary.split(token)
        if text is None:
            return None
        if text:
            state = self.recognizer.advance(state, text)
        if state is None or (pending and self._finish(state, pending) is None):
            return None
        return (
            parser_state if state is parser_state[0] and pending == parser_state[1] else (state, pending)
        )  # the same object, which costs no memory

    def bound(self, parser_state: ParserState) -> int | None:
        """Return an upper bound on the length of `closing`, at little cost; None inside of a character."""
        state, pending = parser_state
        if pending:
            return None
        return 0 if state.complete else MAX_CHAR_BYTES * (self.recognizer.closing_length(state) + 1)

    def byte_bound(self, parser_state: ParserState) -> int:
        """Return an upper bound on the length of `closing`: the number of bytes of the shortest completion."""
        state, pending = parser_state
        if pending:
            return len(self.closing(parser_state))
        pieces = self.recognizer.closing(state).pieces
        return sum([1 if isinstance(piece, Special) else len(piece.encode()) for piece in pieces])

    def may_end(self, parser_state: ParserState) -> bool:
        """Return True if the text may end in this state."""
        state, pending = parser_state
        return state.complete and not pending

    def looping_tokens(self, parser_state: ParserState) -> TokenSet:
        """Return text tokens that lead back to the same parser state."""
        state, pending = parser_state
        chars = CharSet(()) if pending else self.recognizer.looping_chars(state)
        return self._vocabulary.tokens_of(chars)

    def kinds_of_chars(self, parser_state: ParserState) -> list[str]:
        """Return one character of each class of possible next characters, where a class is a set of characters that
        lead to the same parser state. Empty if there may be many classes."""
        state, pending = parser_state
        return [] if pending else self.recognizer.kinds_of_chars(state)

    def uniform_tokens(self, parser_state: ParserState, token: int) -> TokenSet | None:
        """Return a set of text tokens that contains `token` and in which all allowed tokens with as many characters as
        `token` lead to the same parser state; None where no such set is known."""
        state, pending = parser_state
        text, rest = self._vocabulary.split(token)
        if pending or rest or not text:
            return None
        chars = self.recognizer.uniform_chars(state, text)
        tokens = self._vocabulary.tokens_of(chars) if chars else b""
        return tokens if tokens and tokens[token] else None

    def with_small_counts(self, parser_state: ParserState) -> ParserState:
        """Return a parser state with the same mask. States that differ only in counts that no token can exhaust have
        the same result."""
        state, pending = parser_state
        if pending:
            return parser_state
        small = self.recognizer.with_small_counts(state, self._vocabulary.longest_run)
        return parser_state if small is state else (small, b"")

    def closing(self, parser_state: ParserState) -> list[int]:
        """Return the tokens of a shortest completion; read-only."""
        state, pending = parser_state
        if not pending:
            known = self._closings.get(state)
            if known is None:
                if len(self._closings) >= MAX_KNOWN_CLOSINGS:
                    self._closings.clear()
                known = self._closings[state] = self._tokens(b"", self.recognizer.closing(state).pieces)
            return known
        # The text ends inside of a character: first complete the character.
        char = self._finish(state, pending)
        after = None if char is None else self.recognizer.advance(state, char)
        if char is None or after is None:
            raise InvariantError("a text ends inside a character that its grammar does not allow")
        return self._tokens(char.encode()[len(pending) :], self.recognizer.closing(after).pieces)

    def _tokens(self, head: bytes, pieces: tuple[str | Special, ...]) -> list[int]:
        tokens: list[int] = []
        data = head
        for piece in pieces:
            if isinstance(piece, Special):
                tokens += self._vocabulary.encode_bytes(data)
                tokens.append(self._vocabulary.control_tokens[piece.text])
                data = b""
            else:
                data += piece.encode()
        return tokens + self._vocabulary.encode_bytes(data)

    def _finish(self, state: State, pending: bytes) -> str | None:
        """Return a character that the grammar allows here and whose UTF-8 begins with `pending`."""
        low, high = code_points(pending)
        return self.recognizer.first_char(state, low, high)


def code_points(pending: bytes) -> tuple[int, int]:
    """Return the smallest and the largest code point whose UTF-8 begins with `pending` and is longer than `pending`."""
    lead = pending[0]
    length = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    missing = 6 * (length - len(pending))
    value = lead & (0x7F >> length)
    for byte in pending[1:]:
        value = value << 6 | (byte & 0x3F)
    least = (0, 0, 0x80, 0x800, 0x10000)[length]
    return max(value << missing, least), min(((value + 1) << missing) - 1, 0x10FFFF)
