"""`Narrowing`: exact masks where the library executes a grammar with more texts than the constraint has.

In place of multiples with a large automaton the library reads any integers (`backends.widening`). Its masks therefore
have tokens in excess: within a number that becomes no multiple, or behind one. The recognizer knows the multiples, and
the tokens that it refuses are removed. Masks are cached by parser state, so each state is narrowed once.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from radixrt.constrained.grammar import Bitmask
from radixrt.constrained.matcher import GrammarError
from radixrt.constrained.productions.expressions import checked
from radixrt.constrained.regex import EMPTY, Regex, derive, is_empty
from radixrt.constrained.runtime.closing import Completions, ParserState
from radixrt.constrained.vocabulary import Vocabulary

NUMBER_CHARS: Final = frozenset(b"+-.0123456789Ee")


class _Tables(NamedTuple):
    """Text tokens, as ids in order.

    Attributes:
        first: those that begin with a character of numbers.
        others: all others.
        later: those in which a number may begin behind another character.
    """

    first: npt.NDArray[np.int64]
    others: npt.NDArray[np.int64]
    later: npt.NDArray[np.int64]


@lru_cache(maxsize=4)
def _tables_of(vocabulary: Vocabulary) -> _Tables:
    text = [(token, data) for token, data in enumerate(vocabulary.table) if data]
    first = [token for token, data in text if data[0] in NUMBER_CHARS]
    others = [token for token, data in text if data[0] not in NUMBER_CHARS]
    later = [token for token, data in text if not data.isalpha() and _begins_later(data)]
    return _Tables(*[np.array(ids, np.int64) for ids in (first, others, later)])


def _begins_later(data: bytes) -> bool:
    return any(byte in b"-0123456789" and before not in b"0123456789" for before, byte in pairwise(data))


class Narrowing:
    """Narrows the masks of a grammar.

    Args:
        completions: of the exact grammar.
    """

    def __init__(self, vocabulary: Vocabulary, completions: Completions) -> None:
        self._vocabulary = vocabulary
        self._completions = completions
        self._tables = _tables_of(vocabulary)

    def narrowed(self, row: Bitmask, place: ParserState) -> tuple[Bitmask, bool]:
        """Return the mask of a parser state without tokens in excess, and whether the text may end there.

        Args:
            row: the library's mask.

        Raises:
            GrammarError: no token can continue the text.
        """
        number = self._completions.recognizer.number_at(place[0])
        suspects = [self._tables.later]
        if number.languages or number.others_read_digits:
            suspects.append(self._tables.first)
        if number.is_unfinished:
            suspects.append(self._tables.others)
        ids = np.unique(np.concatenate(suspects))
        looping = np.frombuffer(self._completions.looping_tokens(place), np.uint8)
        allowed = (row[ids >> 5] >> (ids & 31).astype(np.uint32) & 1).astype(bool) & (looping[ids] == 0)
        languages = [] if number.others_read_digits else number.languages
        refused = [token for token in ids[allowed].tolist() if not self._takes(place, token, languages)]
        row = row & ~self._vocabulary.mask_of(refused) if refused else row
        may_end = self._completions.may_end(place)
        if not may_end:
            row = row & ~self._vocabulary.eos_mask
            if not np.count_nonzero(row):
                raise GrammarError("no token of this model can go on with the number as the constraint asks")
        return row, may_end

    def _takes(self, place: ParserState, token: int, languages: list[Regex]) -> bool:
        """Return whether the exact grammar allows a token.

        Args:
            languages: of numbers, if all digits belong to them. The recognizer does not have to remember states for
                each of the integers.
        """
        text = self._vocabulary.table[token].decode(errors="ignore")
        if languages and not place[1] and text.isascii() and text.isdigit():
            return any(_begins(language, text) for language in languages)
        return self._completions.advance(place, token) is not None


def _begins(language: Regex, text: str) -> bool:
    """Return whether a text begins some text of a language."""
    for char in text:
        language = derive(language, char)
        if language is EMPTY:
            return False
    return not checked(is_empty, language)
