"""Masks against a language that is known by other means: its texts, or a function that knows their beginnings.

Each token of each visited state is compared: a token that the mask lacks, and a token that it has in excess, both fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.compiler import compile_constraint, load
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import Constraint
from tests.constrained.vocabularies import allowed

MAX_STATES = 120
START, THINK = "<|im_start|>", "<think>"
SIGNS = {START: "\ue000", THINK: "\ue001"}
"""Characters that stand for control tokens in the texts of a language."""


@dataclass(frozen=True)
class Language:
    """`begins`: the text is the beginning of a text of the language. `has`: it is one."""

    begins: Callable[[str], bool]
    has: Callable[[str], bool]


def among(texts: Iterable[str]) -> Language:
    whole = frozenset(texts)
    begun = frozenset(text[:end] for text in whole for end in range(len(text) + 1))
    return Language(begun.__contains__, whole.__contains__)


def check(constraint: Constraint, language: Language, backends: Backends) -> int:
    """Walk the states of a constraint; return how many have been compared.

    Raises:
        RequestError: the constraint is refused.
    """
    vocabulary = backends.vocabulary
    template = load(compile_constraint(constraint, backends), backends)
    texts = _texts(vocabulary)
    rng = random.Random(constraint.source)
    seen = {""}
    pending: list[list[int]] = [[]]
    compared = 0
    while pending and compared < MAX_STATES:
        tokens = pending.pop(rng.randrange(len(pending)))
        text = "".join(texts[token] for token in tokens)
        grammar = template.new()
        assert all(grammar.accept(token) for token in tokens)
        expected = {token for token, piece in texts.items() if language.begins(text + piece)}
        found = allowed(grammar, vocabulary.vocab_size)
        assert language.has(text) == (set(vocabulary.eos_ids) <= found), text
        found &= set(texts)
        if len(found) == 1 and not language.has(text):  # of forced text the canonical token alone is allowed
            ahead = [texts[token] for token in expected]
            assert found <= expected
            assert all(max(ahead, key=len).startswith(piece) for piece in ahead), text
        else:
            assert found == expected, (text, found ^ expected)
        compared += 1
        for token in rng.sample(sorted(found), min(len(found), 6)):
            if text + texts[token] not in seen:
                seen.add(text + texts[token])
                pending.append([*tokens, token])
    return compared


def _texts(vocabulary: Vocabulary) -> dict[int, str]:
    """The text of each token of whole characters, and the sign of each control token that has one."""
    found = {vocabulary.control_tokens[name]: sign for name, sign in SIGNS.items()}
    for token, data in enumerate(vocabulary.table):
        if data.isascii() and data:
            found[token] = data.decode()
    return found
