"""`Borders`: the tokens of a forced text that are certain before the text after it is known.

A tokenizer merges greedily, so the continuation of a text can move the borders of the text's last tokens. Where a token
could begin inside the text and end behind it, the tokens from there on are uncertain, and with them, backwards, every
token that another one could reach across: ` "` and `:"` become ` ":` when the second quote turns out to belong to `"{`.
"""

from __future__ import annotations

import bisect
from functools import cached_property

import numpy as np
import numpy.typing as npt

from radixrt.constrained.grammar import Bitmask, bitmask_words
from radixrt.constrained.vocabulary import Vocabulary

MAX_REMEMBERED = 20_000
MAX_REMEMBERED_MASKS = 256


class Borders:
    """Token borders of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokens, self._longest = vocabulary.by_bytes
        self._ordered = sorted(self._tokens)
        self._following: dict[bytes, bytes] = {}
        self._certain: dict[tuple[bytes, int], int] = {}

    def certain_tokens(self, data: bytes, following: bytes) -> list[int]:
        """Tokens at the beginning of a forced text that are the same whatever follows it.

        Args:
            following: the possible next bytes.
        """
        end = len(data)
        for start in range(max(0, len(data) - self._longest + 1), len(data)):
            rest = data[start:]
            if self._is_begun(rest, longer=True) and any(self._is_begun(rest + bytes((b,))) for b in following):
                end = start
                break
        tokens: list[int] = []
        size = 0
        for token in self._vocabulary.encode_bytes(data):
            size += len(self._vocabulary.table[token])
            if size > end:
                break
            tokens.append(token)
        return self.settled(data, tokens)

    def settled(self, data: bytes, tokens: list[int]) -> list[int]:
        """The canonical tokens at the beginning of a forced text that no uncertainty behind them reaches.

        Args:
            tokens: either all of the text, or as much as ends where no token can cross the end of the text.
        """
        table = self._vocabulary.table
        size = sum([len(table[token]) for token in tokens])
        if size < len(data):
            key = (data, size)
            count = self._certain.get(key)
            if count is None:
                if len(self._certain) >= MAX_REMEMBERED:
                    self._certain.clear()
                count = self._certain[key] = self._num_certain(data, tokens, size)
            tokens = tokens[:count]
        # The tokens of white space can depend on the text after it, even where no token crosses the border.
        while tokens and table[tokens[-1]][-1:].isspace():
            tokens = tokens[:-1]
        return tokens

    def first_bytes(self, mask: Bitmask) -> bytes:
        """The bytes with which the text tokens of a mask begin."""
        key = mask.tobytes()
        found = self._following.get(key)
        if found is None:
            if len(self._following) >= MAX_REMEMBERED_MASKS:
                self._following.clear()
            ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            found = self._following[key] = bytes(np.unique(self._first_bytes[ids]).tolist())
        return found

    def _num_certain(self, data: bytes, tokens: list[int], size: int) -> int:
        count = len(tokens)
        while count:
            reach = self._crossing(data, size)
            if reach == size:
                break
            while size > reach:
                count -= 1
                size -= len(self._vocabulary.table[tokens[count]])
        return count

    def _crossing(self, data: bytes, border: int) -> int:
        """Offset of the first token that could lie in the text and cross the border; the border if none does."""
        for start in range(max(0, border - self._longest + 1), border):
            if not self._is_begun(data[start : border + 1]):
                continue
            for end in range(border + 1, min(len(data), start + self._longest) + 1):
                if data[start:end] in self._tokens:
                    return start
        return border

    def _is_begun(self, begin: bytes, *, longer: bool = False) -> bool:
        """Return True if a token begins with these bytes (and has more)."""
        index = (bisect.bisect_right if longer else bisect.bisect_left)(self._ordered, begin)
        return index < len(self._ordered) and self._ordered[index].startswith(begin)

    @cached_property
    def _first_bytes(self) -> npt.NDArray[np.uint8]:
        first = np.zeros(bitmask_words(self._vocabulary.vocab_size) * 32, np.uint8)
        for token, data in enumerate(self._vocabulary.table):
            if data:
                first[token] = data[0]
        return first
