"""`Vocabulary`: the tokens of a model as bytes of text, control tokens, end tokens, or nothing.

A constraint is about text. A token counts as text if the model can write it as such; control tokens (`<|im_start|>`,
`<tool_call>`, ...) never do, and are allowed only where a grammar asks for that one token. End tokens are allowed
where the text may end. Ids without a token are never allowed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import llguidance
import numpy as np
import numpy.typing as npt

from radixrt.constrained.grammar import Bitmask, bitmask_words
from radixrt.constrained.regex.charset import LAST, CharSet
from radixrt.errors import RequestError
from radixrt.tokenizer.tokenizer import Tokenizer

MAX_SHORT_BYTES = 64
"""Texts up to this length, such as the beginnings of JSON, are tokenized once for llguidance; 1,024 are kept."""
GUARD = "\n"
"""Written before a text whose tokenizer would otherwise put a space there."""

TokenSet = bytes
"""A byte for each id of a vocabulary: 1 for the tokens of the set, else 0."""
MAX_TOKEN_SETS = 64
"""Most sets that `Vocabulary.tokens_of` keeps."""
MAX_CHARS = 255
"""Most characters that `Vocabulary.num_chars` tells."""
LAST_ASCII = 0x7F
_NOT_ASCII = CharSet.span(LAST_ASCII + 1, LAST)


class Vocabulary:
    """The tokens of one model.

    Args:
        tokenizer: the model's own; not used for anything else, as it is changed here.
        vocab_size: width of the model's logits; may exceed the tokenizer's.
        eos_ids: ids that end an output.

    Attributes:
        table: bytes of text for each id below vocab_size; b"" for control tokens and for ids without a token.
        control_tokens: id of each control token by its text.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Iterable[int]) -> None:
        self.vocab_size = vocab_size
        self.eos_ids = tuple(sorted({i for i in eos_ids if 0 <= i < vocab_size}))
        self._encoder = tokenizer.backend  # the tokenizer was loaded for us alone, see from_folder
        self._encoder.encode_special_tokens = True
        self.control_tokens = {text: i for text, i in tokenizer.control_tokens.items() if i < vocab_size}
        hidden = set(tokenizer.control_tokens.values()) | set(self.eos_ids)
        self.table = [b"" if i in hidden else tokenizer.token_bytes(i) for i in range(vocab_size)]
        self.text_mask = self.mask_of(i for i, data in enumerate(self.table) if data)
        self.eos_mask = self.mask_of(self.eos_ids)
        self.eos_mask.flags.writeable = False
        self._texts: list[str | None] = [None] * vocab_size  # of those seen; strings, which the collector never walks
        self._parts: dict[int, tuple[str | None, bytes]] = {}
        self._token_sets: dict[CharSet, TokenSet] = {}
        self._longest_runs: dict[CharSet, int] = {}
        self._guard_ids = self._find_guard()

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str], vocab_size: int, eos_ids: Iterable[int]) -> Vocabulary:
        """Load the tokenizer of a model folder (or a tokenizer.json).

        Raises:
            ModelLoadError: there is no tokenizer.
            RequestError: its tokens do not stand for bytes of text, so no output can be constrained.
        """
        tokenizer = Tokenizer.from_folder(Path(folder))
        if tokenizer.decoder_family == "other":
            raise RequestError(
                "this model's tokens have no text of their own, it depends on their neighbors; so its output cannot be "
                "constrained; leave the constraint out"
            )
        return cls(tokenizer, vocab_size, eos_ids)

    def mask_of(self, ids: Iterable[int]) -> Bitmask:
        """uint32 [bitmask_words(vocab_size)] with the bits of these ids."""
        bits = np.zeros(bitmask_words(self.vocab_size) * 32, np.uint8)
        bits[list(ids)] = 1
        return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for vocabularies whose tokens are the same: part of the keys of cached grammars."""
        digest = hashlib.sha256(repr((self.vocab_size, self.eos_ids, sorted(self.control_tokens.items()))).encode())
        for data in self.table:
            digest.update(len(data).to_bytes(4, "little") + data)
        return digest.hexdigest()

    @cached_property
    def ll_tokenizer(self) -> llguidance.LLTokenizer:
        """The tokenizer that llguidance uses, with the bytes, control tokens and tokenization of this vocabulary."""
        wrapper = llguidance.TokenizerWrapper(_ForLlguidance(self))
        return llguidance.LLTokenizer(wrapper, n_vocab=self.vocab_size, eos_token=list(self.eos_ids))

    def encode(self, text: str) -> list[int]:
        """Tokens of a text that continues another one: no special tokens are added, none is read out of the text.

        Canonical wherever the tokenizer can be made to give these bytes; else the longest matching tokens.
        """
        guard = self._guard_ids
        try:
            ids: list[int] = self._encoder.encode(GUARD + text if guard else text, add_special_tokens=False).ids
        except BaseException as error:
            # A panic of the Rust library is no Exception, and would end the process for one text.
            if type(error).__name__ != "PanicException" and not isinstance(error, Exception):
                raise
            ids = []
        data = text.encode()
        if ids[: len(guard)] == guard:
            ids = ids[len(guard) :]
            if self.decode(ids) == data:
                return ids
        return self.encode_greedily(data)

    def encode_bytes(self, data: bytes) -> list[int]:
        """Tokenize bytes that need not be UTF-8. Bytes that are no text become the longest matching tokens."""
        try:
            return self.encode(data.decode())
        except UnicodeDecodeError as error:
            if error.start == 0:
                return self.encode_greedily(data)
            return self.encode(data[: error.start].decode()) + self.encode_greedily(data[error.start :])

    def healed(self, last: int, forced: list[int]) -> list[int] | None:
        """Return the tokens that replace a sampled token and the forced tokens after it; see `Grammar.healed`."""
        table = self.table
        if not (forced and table[last] and all(table[token] for token in forced)):
            return None
        tokens = self.encode_bytes(self.decode([last, *forced]))
        return None if tokens[0] == last or len(tokens) > 1 + len(forced) else tokens

    def encode_greedily(self, data: bytes) -> list[int]:
        """Tokens of a text, the longest matching one at each position.

        Raises:
            RequestError: this model cannot write such a text.
        """
        ids, longest = self.by_bytes
        out: list[int] = []
        start = 0
        while start < len(data):
            for end in range(min(len(data), start + longest), start, -1):
                token = ids.get(data[start:end])
                if token is not None:
                    out.append(token)
                    start = end
                    break
            else:
                raise RequestError(f"this model has no token for {data[start : start + 4]!r}, which is asked for")
        return out

    def decode(self, ids: Sequence[int]) -> bytes:
        """The bytes that text tokens add to a text; control tokens and ids outside the vocabulary add nothing."""
        table = self.table
        return b"".join([table[i] for i in ids if 0 <= i < self.vocab_size])

    def split(self, token: int) -> tuple[str | None, bytes]:
        """`split_utf8` of a token's bytes."""
        text = self._texts[token]
        if text is not None:
            return text, b""
        found = self._parts.get(token)
        if found is None:
            found = split_utf8(self.table[token])
            if found[0] is not None and not found[1]:
                self._texts[token] = found[0]
            else:
                self._parts[token] = found
        return found

    def tokens_of(self, chars: CharSet) -> TokenSet:
        """Return the text tokens that consist of characters of the set only.

        A token with a character outside of ASCII is among them only if the set has all such characters.
        """
        found = self._token_sets.get(chars)
        if found is None:
            whole = chars & _NOT_ASCII == _NOT_ASCII
            table = _byte_table(chars, others=whole)
            low, high = np.packbits(~table[: LAST_ASCII + 1], bitorder="little").view("<u8")
            letters, others = self._letters
            good = (letters[0] & low) | (letters[1] & high) == 0
            good &= self._is_whole if whole else ~others
            while len(self._token_sets) >= MAX_TOKEN_SETS:
                self._token_sets.pop(next(iter(self._token_sets)))
            found = self._token_sets[chars] = good.astype(np.uint8).tobytes()
        return found

    def longest_run(self, chars: CharSet) -> int:
        """Return a bound on the characters of these that a text token begins with, however many tokens there are.

        If the set has any character outside of ASCII, every such character counts as a member, and each of its bytes as
        a character.
        """
        found = self._longest_runs.get(chars)
        if found is None:
            table = _byte_table(chars, others=bool(chars & _NOT_ASCII))
            data, starts = self._joined
            others = np.append(np.flatnonzero(~table[data]), len(data))
            ends = np.minimum(others[np.searchsorted(others, starts[:-1])], starts[1:])
            while len(self._longest_runs) >= MAX_TOKEN_SETS:
                self._longest_runs.pop(next(iter(self._longest_runs)))
            found = self._longest_runs[chars] = int((ends - starts[:-1]).max(initial=0))
        return found

    @cached_property
    def num_chars(self) -> bytes:
        """Number of characters that begin in each token; 0 for tokens with more than `MAX_CHARS` characters."""
        data, starts = self._joined
        chars = np.concatenate([[0], np.cumsum(data & 0xC0 != 0x80)])
        counts = chars[starts[1:]] - chars[starts[:-1]]
        return np.where(counts > MAX_CHARS, 0, counts).astype(np.uint8).tobytes()

    @cached_property
    def _joined(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """The bytes of all tokens, and where each token's begin, the last one's end included."""
        starts = np.cumsum([0, *map(len, self.table)])
        return np.frombuffer(b"".join(self.table), np.uint8), starts

    @cached_property
    def _letters(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
        """uint64 [2, vocab_size]: bit i % 64 of word i // 64 of each token that has ASCII character i; and bool
        [vocab_size]: the tokens that are empty or have other bytes."""
        data, starts = self._joined
        empty = starts[1:] == starts[:-1]
        begins = np.minimum(starts[:-1], max(len(data) - 1, 0))
        bits = np.uint64(1) << (data & 63).astype(np.uint64)
        halves = [np.bitwise_or.reduceat(np.where(data >> 6 == i, bits, np.uint64(0)), begins) for i in range(2)]
        others = np.logical_or.reduceat(data > LAST_ASCII, begins) | empty
        return np.array(halves), others

    @cached_property
    def _is_whole(self) -> npt.NDArray[np.bool_]:
        """The tokens of text that neither begin nor end inside a character."""
        return np.array(
            [
                bool(data) and (data.isascii() or split_utf8(data) == (data.decode(errors="ignore"), b""))
                for data in self.table
            ]
        )

    @cached_property
    def by_bytes(self) -> tuple[dict[bytes, int], int]:
        """The text tokens by their bytes, and the length of the longest token."""
        ids: dict[bytes, int] = {}
        for token, data in enumerate(self.table):
            if data:
                ids.setdefault(data, token)
        return ids, max((len(data) for data in ids), default=0)

    def _find_guard(self) -> list[int]:
        """Tokens of GUARD if the tokenizer puts a space before every text, which a continuation must not get."""
        plain = self._encoder.encode("a", add_special_tokens=False).ids
        if self.decode(plain) == b"a":
            return []
        guard: list[int] = self._encoder.encode(GUARD, add_special_tokens=False).ids
        return guard


class _ForLlguidance:
    """The shape of tokenizer that llguidance's TokenizerWrapper wants."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        names = {i: text.encode() for text, i in vocabulary.control_tokens.items()}
        self.tokens = [data or names.get(i, b"") for i, data in enumerate(vocabulary.table)]
        self.special_token_ids = sorted(set(names) | set(vocabulary.eos_ids))
        self.eos_token_id = vocabulary.eos_ids[0]
        self.bos_token_id = None
        self._encode_short = lru_cache(maxsize=1024)(vocabulary.encode_bytes)

    def __call__(self, data: bytes) -> list[int]:
        return self._encode_short(data) if len(data) <= MAX_SHORT_BYTES else self._vocabulary.encode_bytes(data)


def _byte_table(chars: CharSet, *, others: bool) -> npt.NDArray[np.bool_]:
    """Return bool [256], the ASCII characters of a set; and the bytes of all other characters, if `others`."""
    table = np.zeros(256, bool)
    for first, last in chars.pairs():
        table[first : min(last, LAST_ASCII) + 1] = True
    table[LAST_ASCII + 1 :] = others
    return table


def split_utf8(data: bytes) -> tuple[str | None, bytes]:
    """Split bytes into the text of the complete characters and the bytes of an incomplete last character; (None, b"")
    if the bytes are not UTF-8."""
    try:
        return data.decode(), b""
    except UnicodeDecodeError as error:
        if error.end == len(data) and error.reason == "unexpected end of data":
            return data[: error.start].decode(), data[error.start :]
        return None, b""
