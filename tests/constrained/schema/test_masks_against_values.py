"""Masks of random schemas against all values of a small universe, as another validator judges them.

A schema is a *frame*, which lets finitely many values through, and random keywords on top. The `jsonschema` package
says which of the frame's values satisfy the keywords, and their texts are the whole language. So a mask that is too
narrow fails the test, and one that is too wide does as well; a schema that is refused is counted.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from radixrt.constrained.backends.choice import Backends
from radixrt.constraint import Constraint
from radixrt.errors import RequestError
from tests.constrained.mask_oracle import among, check
from tests.constrained.vocabularies import small_vocabulary

SCHEMAS = 25
"""Schemas of each frame."""

WORDS = ["".join(word) for length in range(4) for word in itertools.product("ab", repeat=length)]
MEMBERS: dict[str, list[Any]] = {"a": [0, 1], "b": [True, False], "c": ["x"]}
OBJECTS = [
    {name: value for name, value in zip(MEMBERS, values, strict=True) if value is not ...}
    for values in itertools.product(*([..., *values] for values in MEMBERS.values()))
]
ITEMS: list[Any] = [0, 1, "a", [], None]
ARRAYS = [list(items) for length in range(4) for items in itertools.product(ITEMS, repeat=length)]
FRAMES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "integers": ({"type": "integer", "minimum": -12, "maximum": 130}, list(range(-12, 131))),
    "strings": ({"type": "string", "pattern": "^[ab]{0,3}$"}, WORDS),
    "objects": (
        {"type": "object", "properties": {name: {"enum": values} for name, values in MEMBERS.items()},
         "additionalProperties": False},
        OBJECTS,
    ),
    "arrays": ({"type": "array", "items": {"enum": ITEMS}, "maxItems": 3}, ARRAYS),
}  # fmt: skip


@pytest.fixture(scope="module")
def backends() -> Backends:
    return Backends(small_vocabulary("byte_level"))


def keywords(frame: str, rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """Return a random schema about the values of a frame."""

    def inner() -> dict[str, Any]:
        return keywords(frame, rng, depth - 1)

    values = FRAMES[frame][1]
    simple: dict[str, list[Callable[[], dict[str, Any]]]] = {
        "integers": [
            lambda: {"multipleOf": rng.choice([2, 3, 7])},
            lambda: {"minimum": rng.randint(-13, 60)},
            lambda: {"exclusiveMaximum": rng.randint(-5, 131)},
        ],
        "strings": [
            lambda: {"minLength": rng.randint(0, 3)},
            lambda: {"maxLength": rng.randint(0, 3)},
            lambda: {"pattern": rng.choice(["^a", "b$", "aa", "^(ab|ba)*$", "a(?=b)"])},
        ],
        "objects": [
            lambda: {"required": rng.sample(["a", "b", "c"], rng.randint(1, 2))},
            lambda: {"minProperties": rng.randint(0, 3)},
            lambda: {"maxProperties": rng.randint(0, 3)},
            lambda: {"properties": {rng.choice("abc"): {"enum": [0, True]}}},
            lambda: {"dependentRequired": {rng.choice("abc"): [rng.choice("abc")]}},
            lambda: {"propertyNames": {"enum": rng.sample(["a", "b", "c"], 2)}},
        ],
        "arrays": [
            lambda: {"minItems": rng.randint(0, 3)},
            lambda: {"uniqueItems": True},
            lambda: {"contains": {"enum": rng.sample(ITEMS, 2)}, "minContains": rng.randint(0, 2), "maxContains": 2},
            lambda: {"prefixItems": [{"enum": rng.sample(ITEMS, 2)}]},
            lambda: {"items": {"type": rng.sample(["integer", "string", "null", "array"], 2)}},
        ],
    }
    options = [*simple[frame], lambda: {"enum": rng.sample(values, min(len(values), 3))}]
    if depth and rng.random() < 0.6:
        options = [
            lambda: {rng.choice(["anyOf", "allOf", "oneOf"]): [inner(), inner()]},
            lambda: {"not": inner()},
            lambda: {"if": inner(), "then": inner(), "else": inner()},
        ]
    return rng.choice(options)()


def refusal_or_states(schema: Any, texts: list[str], backends: Backends) -> str | int:
    """Compare all masks; return the number of states, or the code of the refusal."""
    try:
        return check(Constraint(kind="json_schema", source=json.dumps(schema)), among(texts), backends)
    except RequestError as error:
        return str(error.code)


@pytest.mark.parametrize("frame", FRAMES)
def test_no_mask_is_too_narrow_or_too_wide(frame: str, backends: Backends) -> None:
    base, universe = FRAMES[frame]
    rng = random.Random(frame)
    states, refused = 0, 0
    for _ in range(SCHEMAS):
        schema = {"allOf": [base, keywords(frame, rng)]}
        validator = jsonschema.Draft202012Validator(schema)
        texts = [json.dumps(value, separators=(",", ":")) for value in universe if validator.is_valid(value)]
        found = refusal_or_states(schema, texts, backends)
        if isinstance(found, int):
            assert texts, schema
            states += found
        elif found == "empty_schema":
            assert not texts, schema
        else:
            assert found == "unsupported_schema"
            refused += 1
    assert states > 3 * SCHEMAS
    assert refused <= SCHEMAS // 10
