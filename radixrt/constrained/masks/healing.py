"""Healing: tokens of a sampled token and the forced text after it, where together they are tokenized differently."""

from __future__ import annotations

from radixrt.constrained.vocabulary import Vocabulary


def healed_tokens(vocabulary: Vocabulary, last: int, forced: list[int]) -> list[int] | None:
    """See `Grammar.healed`."""
    table = vocabulary.table
    if not (forced and table[last] and all(table[token] for token in forced)):
        return None
    tokens = vocabulary.encode_bytes(vocabulary.decode([last, *forced]))
    return None if tokens[0] == last or len(tokens) > 1 + len(forced) else tokens
