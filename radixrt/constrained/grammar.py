"""The seam of constrained decoding: the interface of a grammar to the scheduler while a request runs.

A grammar lives in the scheduler process, belongs to one request, and is only ever driven by the scheduler: masks are
filled when all earlier tokens are known, and tokens are accepted in order as their step is committed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

Bitmask = npt.NDArray[np.uint32]


def bitmask_words(vocab_size: int) -> int:
    """32-bit words of one mask row."""
    return (vocab_size + 31) // 32


class Grammar(ABC):
    """The state of one request's constraint."""

    @abstractmethod
    def mask(self) -> Bitmask:
        """The allowed next tokens: bit t % 32 of word t // 32 (uint32 [bitmask_words(vocab_size)]); not to be changed.

        A cached mask is returned as the same array, also to other requests, so that a mask shared by many rows is sent
        once.
        """

    @abstractmethod
    def accept(self, token: int) -> bool:
        """Advance over a token that was sampled; False if the grammar does not allow it, its state then unchanged."""

    @abstractmethod
    def is_terminated(self) -> bool:
        """Return True if nothing may follow, so that the request ends with "stop"."""

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Undo the last num_tokens accepted tokens."""

    @abstractmethod
    def forced_continuation(self) -> list[int]:
        """Tokens that must come next, as far as the grammar alone decides; empty if it leaves a choice.

        They are the canonical tokenization of the forced text, less the tokens at its end that a freely chosen
        continuation could merge with. The state is unchanged.
        """

    @abstractmethod
    def healed(self, last: int, forced: list[int]) -> list[int] | None:
        """Replacement tokens for `last`, the token accepted last, and the forced tokens after it, where their text is
        canonically tokenized with another token than `last` at its start; None where it is not.

        No longer than the two together. The state is unchanged.
        """

    @abstractmethod
    def fits(self, token: int, remaining: int) -> bool:
        """Return True if, after `token`, the output can still be completed within `remaining` further tokens.

        Asked before `accept`, for tokens in order. True for a token that the grammar does not allow, which `accept`
        refuses.
        """

    def accept_freely(self, token: int, remaining: int) -> bool:
        """Accept a sampled token, as `fits` and `accept` do, if it is known already that the grammar allows it, that
        the output can be completed within `remaining` further tokens, does not end here, and is not forced here.

        Returns:
            False, the state unchanged, if any of this is not so or would have to be computed.
        """
        return False

    @property
    def closes(self) -> bool:
        """False if an output may have to end incomplete, because no completion is known."""
        return True

    @abstractmethod
    def closing(self) -> list[int]:
        """Closing suffix: tokens of a shortest completion from the current state; empty where the output may end."""

    def ahead(self) -> Grammar:
        """Return the grammar whose parser states `LookAhead` may compute early: self, or a grammar inside of self."""
        return self

    def settle(self) -> None:  # noqa: B027 (most have nothing to do)
        """Do the work that `accept` deferred. Called after every step, off the critical path; the state stays."""
