"""Makes the table "What keeping keys apart costs" of docs/benchmarks.md.

    python -m benchmarks.structure.guards [--rounds 15]

A text is written token by token with the embedded model's vocabulary, with a guard that keeps its keys and items apart
and without one, in turn. A figure is the median over the rounds of the scheduler's microseconds of processor time for a
token: the mask, and the acceptance of the token by the fast path or the slow one. Parser states are known from the
second round on.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from statistics import median

from benchmarks.common.machine import facts
from benchmarks.common.tables import table
from radixrt.config import ModelConfig
from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.compiler import compile_constraint, load
from radixrt.constrained.grammar import Grammar
from radixrt.constrained.guards.guarded_grammar import GuardedTemplate
from radixrt.constrained.runtime.text_grammar import TextTemplate
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import Constraint
from radixrt.models.loading.source import prepare_model

TEXTS = {
    "24 integers, keys with a common beginning": (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {f"item number {i}": 37 * i for i in range(24)},
    ),
    "10 texts": (
        {"type": "object", "additionalProperties": {"type": "string"}},
        {f"{chr(97 + i)} name": f"This is the text of member {i}." for i in range(10)},
    ),
    "a set of 40 integers": (
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        [1000 + 37 * i for i in range(40)],
    ),
    "a set of 20 texts": (
        {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        [f"This is the text of item {i}." for i in range(20)],
    ),
    "a set of 12 objects": (
        {
            "type": "array",
            "uniqueItems": True,
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
                "required": ["name", "age"],
                "additionalProperties": False,
            },
        },
        [{"name": f"Person {i}", "age": 20 + i} for i in range(12)],
    ),
    "any object": ({"type": "object"}, {"name": "Ada", "tags": ["a", "b"], "inner": {"x": 1, "y": [1, 2], "z": None}}),
}
MAX_TOKENS = 4096


def seconds(grammar: Grammar, tokens: Sequence[int]) -> float:
    """Return the seconds of processor time in which a grammar follows tokens."""
    begun = time.thread_time()
    for number, token in enumerate(tokens):
        grammar.mask()
        left = MAX_TOKENS - number
        if not grammar.accept_freely(token, left):
            if not (grammar.fits(token, left) and grammar.accept(token)):
                raise ValueError(f"token {token} is refused")
            if not grammar.is_terminated():
                grammar.forced_continuation()
    return time.thread_time() - begun


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(argv)
    vocabulary = Vocabulary.from_folder(prepare_model(ModelConfig()).folder, 49_152, (0, 2))
    backends = Backends(vocabulary)
    gc.freeze()  # as the engine's processes do
    rows = []
    for name, (schema, value) in TEXTS.items():
        template = load(
            compile_constraint(Constraint(kind="json_schema", source=json.dumps(schema)), backends), backends
        )
        assert isinstance(template, GuardedTemplate)
        tokens = vocabulary.encode_bytes(json.dumps(value, separators=(",", ":")).encode())
        found: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(options.rounds):
            for is_guarded, grammar in ((False, TextTemplate.new(template)), (True, template.new())):
                found[is_guarded].append(1e6 * seconds(grammar, tokens) / len(tokens))
        plain, guarded = (median(found[is_guarded][1:]) for is_guarded in (False, True))
        rows.append([name, str(len(tokens)), f"{plain:.1f}", f"{guarded:.1f}"])
    print(table(["text", "tokens", "unguarded us", "guarded us"], rows))
    print("; ".join(f"{name}: {value}" for name, value in facts().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
