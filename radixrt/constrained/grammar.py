"""The seam for constrained decoding: what the scheduler asks of a grammar while a request runs.

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
    def fill(self, row: Bitmask) -> None:
        """Write the allowed next tokens: bit t % 32 of row[t // 32] (uint32 [bitmask_words(vocab_size)])."""

    @abstractmethod
    def accept(self, token: int) -> bool:
        """Advance over a token that was sampled; False if the grammar does not allow it, its state then unchanged."""

    @abstractmethod
    def is_terminated(self) -> bool:
        """Nothing more may follow: the request ends with "stop"."""

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Undo the last num_tokens accepted tokens."""

    @abstractmethod
    def forced_continuation(self) -> list[int]:
        """Tokens that must come next, as far as the grammar alone decides; empty if it leaves a choice."""


class GrammarBackend(ABC):
    """Makes grammars for one model's vocabulary."""

    @abstractmethod
    def compile(self, spec: str) -> Grammar:
        """A fresh grammar for a constraint in the backend's own notation.

        Raises:
            RequestError: the constraint cannot be enforced; says where and why.
        """
