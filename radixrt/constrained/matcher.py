"""`Matcher` and `GrammarBackend`: the seam between constrained decoding and the libraries that compute masks.

Both libraries execute the same `Productions`. A backend writes the productions in the notation of its library, and a
matcher is the parser state of a text. However a library fails, its matcher raises `GrammarError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Literal

from radixrt.constrained.grammar import Bitmask
from radixrt.errors import RadixRTError

if TYPE_CHECKING:
    from radixrt.constrained.productions import Productions

BackendName = Literal["llguidance", "xgrammar"]

LIBRARY: Final[BackendName] = "llguidance"
"""The library for every kind of constraint, where the caller leaves the choice open."""

MAX_MASK_S = 0.05
"""Maximum time of a mask, in seconds: the whole batch waits for a mask."""


class GrammarError(RadixRTError):
    """A grammar cannot be used, or not any longer. Concerns only the requests with this grammar."""


class Matcher(ABC):
    """The parser state of a text in a grammar."""

    @abstractmethod
    def fill(self, row: Bitmask) -> None:
        """Write the mask of the next token. The bits of control and end tokens are undefined.

        Raises:
            GrammarError: a limit of the library is exceeded.
        """

    @abstractmethod
    def accept(self, token: int) -> bool:
        """Advance over a token that is not an end token. Return False, and change nothing, if it is not allowed."""

    def accept_all(self, tokens: list[int]) -> bool:
        """Advance over tokens that masks allowed. Return False if the library refuses any of the tokens."""
        return all(map(self.accept, tokens))

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Undo the last num_tokens accepted tokens."""

    @abstractmethod
    def may_end(self) -> bool:
        """Return True if the text so far is complete."""

    @abstractmethod
    def must_end(self) -> bool:
        """Return True if the text so far is complete and nothing can follow."""

    @abstractmethod
    def forced(self) -> list[int]:
        """Return the forced tokens; see `Grammar.forced_continuation`."""

    @abstractmethod
    def fork(self) -> Matcher:
        """Return an independent matcher in the same state."""


class GrammarBackend(ABC):
    """A library that computes masks, set up for a vocabulary."""

    name: str

    @abstractmethod
    def write(self, productions: Productions) -> str:
        """Return the productions in the notation of the library.

        Raises:
            NotExpressible: the notation cannot express the productions exactly.
        """

    @abstractmethod
    def load(self, source: str, serialized: str | None = None) -> Matcher:
        """Load a grammar; return a matcher at the beginning of a text.

        Args:
            source: result of `write`.
            serialized: result of `serialize` for the same grammar, perhaps from another process.

        Raises:
            GrammarError: the library refuses the grammar.
        """

    def serialize(self, prototype: Matcher) -> str | None:
        """Return a loaded grammar in a form that loads faster; None if the library has no such form."""
        return None
