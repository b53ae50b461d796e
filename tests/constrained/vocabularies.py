"""Vocabularies to constrain with: of the embedded model, and of small tokenizers of other families."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import tokenizers

from radixrt.constrained.grammar import Grammar, bitmask_words
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.tokenizer.tokenizer import Tokenizer
from tests.tokenizer import conftest as families

SMALL = {
    "byte_level": families.byte_level,
    "byte_fallback": families.byte_fallback,
    "gemma_like": families.gemma_like,
    "unigram": families.unigram,
}


def small_vocabulary(family: str, *, padding: int = 13) -> Vocabulary:
    """The vocabulary of one of the SMALL tokenizers; logits are wider than the tokenizer by `padding`."""
    backend: tokenizers.Tokenizer = SMALL[family]()
    eos = next(i for text in ("</s>", "<|im_end|>") if (i := backend.token_to_id(text)) is not None)
    tokenizer = Tokenizer(backend, eos_ids=[eos])
    return Vocabulary(tokenizer, tokenizer.vocab_size + padding, [eos])


def allowed(grammar: Grammar, vocab_size: int) -> set[int]:
    """The tokens of the grammar's mask."""
    row = grammar.mask()
    assert row.shape == (bitmask_words(vocab_size),)
    return bits(row)


def bits(row: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def text_of(vocabulary: Vocabulary, tokens: Iterable[int]) -> str:
    return vocabulary.decode(list(tokens)).decode()
