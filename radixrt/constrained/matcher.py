"""`Matcher` and `GrammarBackend`: the seam between constrained decoding and the libraries that compute masks.

Both libraries execute the same `Productions`. A backend writes the productions in the notation of its library, and a
matcher is the parser state of a text. However a library fails, its matcher raises `GrammarError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from radixrt.constrained.grammar import Bitmask
from radixrt.constrained.productions import Productions
from radixrt.errors import RadixRTError

MAX_MASK_S = 0.05
"""Seconds of one mask at most: the whole batch waits for it."""


class GrammarError(RadixRTError):
    """A grammar cannot be used, or cannot be used any further; concerns the requests that have it and no others."""


class Matcher(ABC):
    """The parser state of one text in a grammar."""

    @abstractmethod
    def fill(self, row: Bitmask) -> None:
        """Write the mask of the next token; its bits of control and end tokens are not to be relied on.

        Raises:
            GrammarError: the library gave up on this grammar.
        """

    @abstractmethod
    def accept(self, token: int) -> bool:
        """Advance over a token that is not an end token; False, and nothing changed, if the grammar forbids it."""

    def accept_all(self, tokens: list[int]) -> bool:
        """Advance over tokens that the masks allow; False if the library refuses one of them nevertheless."""
        return all(map(self.accept, tokens))

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Undo the last num_tokens accepted tokens."""

    @abstractmethod
    def may_end(self) -> bool:
        """The text so far is complete."""

    @abstractmethod
    def must_end(self) -> bool:
        """The text so far is complete and nothing can follow it."""

    @abstractmethod
    def forced(self) -> list[int]:
        """Tokens that must come next; see `Grammar.forced_continuation`."""

    @abstractmethod
    def fork(self) -> Matcher:
        """Another text's state, equal to this one."""


class GrammarBackend(ABC):
    """A library that computes masks, set up for a vocabulary."""

    name: str

    @abstractmethod
    def write(self, productions: Productions) -> str:
        """The productions in the library's own notation.

        Raises:
            NotExpressible: the notation has no exact form for them.
        """

    @abstractmethod
    def load(self, source: str, serialized: str | None = None) -> Matcher:
        """A matcher at the beginning of a text.

        Args:
            serialized: result of `serialize` for the same grammar, perhaps from another process.

        Raises:
            GrammarError: the library refuses the grammar.
        """

    def serialize(self, prototype: Matcher) -> str | None:
        """A loaded grammar in a form that loads faster; None if there is none worth shipping."""
        return None
