"""Random small schemas whose items and keys must differ or repeat: each mask against all texts of the language."""

from __future__ import annotations

import random
from itertools import islice
from typing import Any

import pytest

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.guards.guarded_grammar import GuardedTemplate
from radixrt.constrained.schema import normalize
from radixrt.errors import RequestError
from tests.constrained.guards.languages import LONGEST, guarded, texts, walk, without
from tests.constrained.guards.test_items import no_value_is_listed
from tests.constrained.guards.test_repeats import free, good_texts
from tests.constrained.vocabularies import small_vocabulary, text_of

__all__ = ["no_value_is_listed"]

SCALARS: list[Any] = [
    {"enum": ["a", "b"]},
    {"enum": [1, 12]},
    {"const": "a"},
    {"type": "string", "pattern": "^(|a|ab)$"},
    {"enum": ["é", None]},
    {"type": "integer", "minimum": 9, "maximum": 11},
    {"enum": [True, "a", 2]},
]
MOST_TEXTS = 20_000


def schema(generator: random.Random, depth: int) -> Any:
    kind = generator.choice(["scalar", "array", "array", "object"]) if depth else "scalar"
    if kind == "scalar":
        return generator.choice(SCALARS)
    if kind == "object":
        member = schema(generator, depth - 1)
        made: Any = {"type": "object", "patternProperties": {"^[ab]$": member}, "additionalProperties": False}
        if generator.random() < 0.3:
            made["minProperties"] = 1
        return {**made, "maxProperties": generator.randint(1, 2)}
    condition = generator.choice([{"uniqueItems": True}, {"not": {"uniqueItems": True}}, {}])
    low = {"minItems": generator.randint(1, 2)} if generator.random() < 0.3 else {}
    most = generator.randint(2, 3)
    return {"type": "array", "items": schema(generator, depth - 1), "maxItems": most, **low, **condition}


@pytest.mark.parametrize("seed", range(12))
def test_masks_of_random_schemas(seed: int) -> None:
    backends = Backends(small_vocabulary("byte_level"))
    generator = random.Random(seed)
    compared = 0
    while compared < 2:
        made = schema(generator, 3)
        try:
            template = guarded(made, backends)
        except (AssertionError, RequestError):
            continue  # nothing is guarded, or there is no such value
        some = list(islice(texts(normalize(without(free(made))).productions().prune(), 200), MOST_TEXTS))
        if len(some) == MOST_TEXTS or max(map(len, some)) > LONGEST:
            continue  # the texts are too many, or too long
        good = good_texts(made)
        assert good, made
        check(made, template, good, backends, seed)
        compared += 1


def check(made: Any, template: GuardedTemplate, good: set[str], backends: Backends, seed: int) -> None:
    vocabulary = backends.vocabulary
    try:
        walk(template, vocabulary, good, f"{seed}", 6)
        for text in random.Random(seed).sample(sorted(good), min(8, len(good))):
            grammar, tokens = template.new(), list[int]()
            for token in vocabulary.encode_greedily(text.encode()):
                assert grammar.accept(token), text
                tokens.append(token)
                closed = text_of(vocabulary, tokens + grammar.closing())
                assert closed in good, closed
    except AssertionError as error:
        raise AssertionError(f"{made}: {error}") from error
