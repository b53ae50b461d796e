"""`OwnEnds`: control tokens that end a request's output beside the model's end tokens, in the masks of one grammar."""

from __future__ import annotations

from collections.abc import Iterable

from radixrt.constrained.grammar import Bitmask
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.errors import RequestError

MAX_KEPT = 64
"""Sets of end tokens, and masks with them, that are kept."""


class OwnEnds:
    """Masks of end tokens that requests bring (`stop_token_ids`).

    The same tokens give the same arrays, which are read-only: a mask that is known by its array is sent once.

    Args:
        specials: ids of the control tokens in the grammar.
    """

    def __init__(self, vocabulary: Vocabulary, specials: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._specials = specials
        self._sets: dict[tuple[int, ...], Bitmask] = {}
        self._joined: dict[tuple[int, int], tuple[Bitmask, Bitmask, Bitmask]] = {}

    def of(self, stop_token_ids: Iterable[int]) -> Bitmask | None:
        """The mask of a request's own end tokens; None without any.

        Raises:
            RequestError: one of them is text, or has a meaning of its own in the constraint.
        """
        vocabulary = self._vocabulary
        own = {token for token in stop_token_ids if 0 <= token < vocabulary.vocab_size} - set(vocabulary.eos_ids)
        key = tuple(sorted(own))
        for token in key:
            if vocabulary.table[token] or token in self._specials:
                what = "text" if vocabulary.table[token] else "a token of the constraint"
                raise RequestError(
                    f"stop_token_ids: {token} is {what} and would end the output before it is complete; beside a "
                    "constraint only other control tokens can end it",
                    param="stop_token_ids",
                )
        if not key:
            return None
        if key not in self._sets:
            if len(self._sets) >= MAX_KEPT:
                self._sets.clear()
            self._sets[key] = vocabulary.mask_of(key)
        return self._sets[key]

    def join(self, row: Bitmask, ends: Bitmask) -> Bitmask:
        """A mask with end tokens, which `of` returned."""
        key = id(row), id(ends)
        found = self._joined.get(key)
        if found is None:
            if len(self._joined) >= MAX_KEPT:
                self._joined.clear()
            joined = row | ends
            joined.flags.writeable = False
            found = self._joined[key] = row, ends, joined  # keeps both, so that no other array has their ids
        return found[2]
