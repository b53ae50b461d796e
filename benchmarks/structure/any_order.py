"""Makes the table "Parts in any order" of docs/benchmarks.md.

    python -m benchmarks.structure.any_order [--walks 20]

Processor time of compiling, and of masks along random texts with the vocabulary of the embedded model: from llguidance,
and of advancing the recognizer. `states` are the parser states that the cache of masks sees in all walks together, and
`new` is the part of the steps that reach a state for the first time: each of these computes a mask.
"""

from __future__ import annotations

import argparse
import random
import time
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.machine import facts
from benchmarks.common.tables import table
from benchmarks.structure.rounds import KEYS, SET
from radixrt.bench.result import percentile
from radixrt.config import ModelConfig
from radixrt.constrained.backends.lark import to_lark
from radixrt.constrained.backends.llguidance_backend import LlguidanceBackend
from radixrt.constrained.grammar import bitmask_words
from radixrt.constrained.recognizer import Recognizer
from radixrt.constrained.runtime.closing import Completions
from radixrt.constrained.schema import normalize
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import KeyOrder
from radixrt.models.loading.source import prepare_model
from radixrt.models.model_config import load_model_spec

MOST_STEPS = 400
DIGITS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "uniqueItems": True}
COUNTED = {"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 10}, "minContains": 500}
SCHEMAS: dict[str, tuple[dict[str, Any], KeyOrder]] = {
    "set of 10 integers": (DIGITS, "schema"),
    "set of 60 texts": (SET, "schema"),
    "minContains 500": (COUNTED, "schema"),
    "20 keys": (KEYS, "schema"),
    "20 keys in any order": (KEYS, "any"),
}


def figures(schema: dict[str, Any], order: KeyOrder, vocabulary: Vocabulary, walks: int) -> list[str]:
    """Return the cells of one schema."""
    backend = LlguidanceBackend(vocabulary)
    compile_ms: list[float] = []
    for _ in range(5):
        started = time.thread_time()
        productions = normalize(schema, key_order=order, bounded=True).productions().prune()
        lark = to_lark(productions, {})
        backend.load(lark)
        compile_ms.append((time.thread_time() - started) * 1e3)
    completions = Completions(Recognizer(productions), vocabulary)
    row = np.empty(bitmask_words(vocabulary.vocab_size), np.uint32)
    prototype = backend.load(lark)
    masks_us: list[float] = []
    advances_us: list[float] = []
    seen = {completions.start}
    steps = 0
    for seed in range(walks):
        rng = random.Random(seed)
        matcher, state = prototype.fork(), completions.start
        for _ in range(MOST_STEPS):
            started = time.thread_time()
            matcher.fill(row)
            masks_us.append((time.thread_time() - started) * 1e6)
            allowed = np.flatnonzero(np.unpackbits((row & vocabulary.text_mask).view(np.uint8), bitorder="little"))
            if not len(allowed):
                break
            token = int(rng.choice(allowed))
            started = time.thread_time()
            after = completions.advance(state, token)
            advances_us.append((time.thread_time() - started) * 1e6)
            assert after is not None
            assert matcher.accept(token)
            state = after
            seen.add(state)
            steps += 1
    return [
        f"{median(compile_ms):.1f}",
        f"{median(masks_us):.0f}", f"{percentile(masks_us, 99):.0f}", f"{max(masks_us):.0f}",
        f"{median(advances_us):.0f}", f"{percentile(advances_us, 99):.0f}",
        str(steps), str(len(seen)), f"{len(seen) / steps:.0%}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.structure.any_order")
    parser.add_argument("--walks", type=int, default=20)
    args = parser.parse_args()
    folder = prepare_model(ModelConfig()).folder
    spec = load_model_spec(folder)
    vocabulary = Vocabulary.from_folder(folder, spec.vocab_size, spec.eos_token_ids)
    print(facts())
    rows = [[name, *figures(schema, order, vocabulary, args.walks)] for name, (schema, order) in SCHEMAS.items()]
    columns = ["schema", "compile ms", "mask us", "p99", "max", "advance us", "p99", "steps", "states", "new"]
    print(table(columns, rows))


if __name__ == "__main__":
    main()
