"""`Grammar`: the seam between constrained decoding and the scheduler, the state of a request's constraint.

A grammar is in the scheduler process and belongs to a request. Only the scheduler calls the methods. A mask is asked
for when all earlier tokens are known, and tokens are accepted in order, as their step is committed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

Bitmask = npt.NDArray[np.uint32]


def bitmask_words(vocab_size: int) -> int:
    """Return the number of 32-bit words in a mask."""
    return (vocab_size + 31) // 32


class Grammar(ABC):
    """The state of a request's constraint: the parser state after the tokens accepted so far."""

    @abstractmethod
    def mask(self) -> Bitmask:
        """Return the mask of the allowed next tokens.

        A cached mask is the same array for all requests, so that a mask shared by many rows is sent once.

        Returns:
            uint32 [bitmask_words(vocab_size)], read-only; token t is bit t % 32 of word t // 32.
        """

    @abstractmethod
    def accept(self, token: int) -> bool:
        """Advance over a sampled token. Return False, and leave the state unchanged, if the token is not allowed."""

    @abstractmethod
    def is_terminated(self) -> bool:
        """Return True if no token may follow, so that the request finishes with "stop"."""

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Undo the last num_tokens accepted tokens."""

    @abstractmethod
    def forced_continuation(self) -> list[int]:
        """Return the forced tokens: the next tokens as far as the grammar leaves no choice. The state is unchanged.

        The forced tokens are the canonical tokenization of the forced text, without the tokens at its end that could
        merge with a freely chosen continuation.
        """

    @abstractmethod
    def healed(self, last: int, forced: list[int]) -> list[int] | None:
        """Token healing: return the canonical tokenization of a sampled token and the forced tokens after it, if the
        canonical tokenization begins with another token. The state is unchanged.

        Args:
            last: the token accepted last.
            forced: result of `forced_continuation`.

        Returns:
            Tokens to replace `last` and `forced`, at most as many; None if `last` stays.
        """

    @abstractmethod
    def fits(self, token: int, remaining: int) -> bool:
        """Return True if the output can be completed within `remaining` further tokens after `token`.

        Called before `accept`, for each token in order. True for a token that is not allowed; `accept` refuses it.
        """

    def accept_freely(self, token: int, remaining: int) -> bool:
        """The fast path of `fits` and `accept`: accept a sampled token if the caches show that the token is allowed,
        that the output can be completed within `remaining` further tokens, and that after the token the output neither
        ends nor has forced tokens.

        Returns:
            False, with the state unchanged, if a condition fails or is not cached.
        """
        return False

    @property
    def closes(self) -> bool:
        """False if no completions are known, so that an output may end incomplete when its token budget is spent."""
        return True

    @abstractmethod
    def closing(self) -> list[int]:
        """Return the closing suffix: the tokens of a shortest completion. Empty where the output may end."""

    def ahead(self) -> Grammar:
        """Return the grammar whose parser states `LookAhead` may compute early: self, or a grammar inside of self."""
        return self

    def settle(self) -> None:  # noqa: B027 (most have nothing to do)
        """Do the work that `accept` deferred, off the critical path, after every step. The state is unchanged."""
