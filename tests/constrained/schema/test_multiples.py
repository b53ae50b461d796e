"""`multipleOf` with numbers that people write, through the grammar that llguidance executes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from radixrt.constrained.backends.lark import to_lark
from radixrt.constrained.schema import normalize
from radixrt.explain.value_check import accepts
from tests.constrained.engines import llguidance_accepts


@pytest.mark.parametrize(
    "schema",
    [
        {"multipleOf": 399},
        {"multipleOf": 1024},
        {"multipleOf": 3600, "minimum": 0},
        {"multipleOf": 86400},
        {"multipleOf": 4096, "minimum": 0, "maximum": 10**7},
        {"allOf": [{"multipleOf": 7}, {"multipleOf": 11}, {"multipleOf": 13}]},
        {"multipleOf": 100, "not": {"multipleOf": 400}},
        {"minimum": -(10**308), "maximum": 10**308},
    ],
)
def test_integers(schema: dict[str, Any]) -> None:
    normal = normalize({"type": "integer", **schema}, bounded=True)
    lark = to_lark(normal.productions().prune(), {})
    chosen = random.Random(3)
    step = schema.get("multipleOf", 1001)
    numbers = [0, step, -step, step + 1, 5 * step, chosen.randrange(10**9) * step, chosen.randrange(10**6)]
    for number in numbers:
        assert llguidance_accepts(lark, str(number)) is accepts(normal, number), number
