"""Makes the table "Constrained rows from the first round on" of docs/benchmarks.md.

    python -m benchmarks.structure.rounds --shape qwen3-0.6b [--rows 8 64 256] [--rounds 6] [--schemas FILE.jsonl]
    python -m benchmarks.structure.rounds --model embedded

Throughput of the offline API, with and without constraints, from the first round of a fresh engine on, which nothing
has warmed up. Each kind of constraint has an engine of its own. A round is one call with new prompts of 256 token ids,
up to 200 tokens of output and temperature 0.6. Dummy weights write random tokens, so that nearly every string is new,
which is the hardest case for caches of masks; `--model` takes a folder with real ones, or the embedded model. A figure
is output tokens, forced ones included, over the seconds of the call. `dict` has a guard that keeps
its keys apart. In `beside` every second row is plain, and the others are those of `records`.

Columns: output tokens a second in each round; the median from round 2 on, and its ratio to that of plain rows; the
ratio of times to rounds of plain rows with the lengths of these outputs, which run afterwards in the same engine (a
batch whose rows end at different times makes fewer tokens a second, constrained or not); the first round over the
median; the part of the output that was forced; requests that ended with an error; and milliseconds from token to token
of the plain rows, the median of rounds from 2 on, where there are such rows.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.engine_options import parse_options
from benchmarks.common.machine import facts
from benchmarks.common.model_shapes import CONFIGS, shape_folder
from benchmarks.common.tables import table
from radixrt import Engine
from radixrt.constrained.schema import EmptySchema, SchemaRefused, normalize

PROMPT_TOKENS, OUTPUT_TOKENS, TEMPERATURE = 256, 200, 0.6
LOW_ID, HIGH_ID = 10, 10_000
MIXED = 20
"""Schemas of the kind `schemas`."""

NESTED = {"type": "array", "minItems": 12, "items": {"type": "array", "minItems": 4, "items": {"type": "number"}}}
RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "count": {"type": "integer"},
        "kind": {"enum": ["person", "place", "organization", "event"]},
    },
    "required": ["name", "count", "kind"],
    "additionalProperties": False,
}
KEYS = {
    "type": "object",
    "properties": {f"key_{number}": {"type": "integer"} for number in range(20)},
    "required": [f"key_{number}" for number in range(10)],
    "additionalProperties": False,
}
SET = {
    "type": "array",
    "items": {"enum": [f"value {number}" for number in range(60)]},
    "uniqueItems": True,
    "minItems": 12,
}
COUNTS = {"type": "object", "additionalProperties": {"type": "integer", "maximum": 999}, "minProperties": 25}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"ignore_eos": True},
    "integers": {"json_schema": {"type": "array", "minItems": 60, "items": {"type": "integer"}}},
    "records": {"json_schema": {"type": "array", "minItems": 4, "items": RECORD}},
    "string": {"json_schema": {"type": "string"}},
    "nested": {"json_schema": NESTED},
    "keys": {"json_schema": KEYS},
    "keys in any order": {"json_schema": KEYS, "structured": {"key_order": "any"}},
    "set": {"json_schema": SET},
    "dict": {"json_schema": COUNTS},
    "regex": {"regex": "[a-z ]{150,}"},
    "ebnf": {"ebnf": 'root ::= line+\nline ::= [a-z]+ " = " [0-9]+ "\\n"'},
}
"""Sampling parameters by kind. Random text seldom ends a constraint by itself, so that most rows go on to the end."""


@dataclass(frozen=True)
class Round:
    """Output of one call.

    Attributes:
        lengths: output tokens of each request.
        forced: those that the grammar left no choice about.
        errors: requests that ended with an error.
        seconds: of the call.
        plain_token_s: seconds from token to token of the rows without a constraint, their median; None without any.
    """

    lengths: list[int]
    forced: int
    errors: int
    seconds: float
    plain_token_s: float | None = None

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def prompts(rows: int, seed: int) -> list[list[int]]:
    """Token ids that no other seed has."""
    rng = random.Random(seed)
    return [[rng.randint(LOW_ID, HIGH_ID) for _ in range(PROMPT_TOKENS)] for _ in range(rows)]


def parameters(kind: str, rows: int, schemas: Sequence[Any]) -> list[dict[str, Any]]:
    """Sampling parameters of each row."""
    common = {"temperature": TEMPERATURE, "max_tokens": OUTPUT_TOKENS}
    if kind == "schemas":
        return [{**common, "json_schema": schemas[i % len(schemas)]} for i in range(rows)]
    if kind == "beside":
        return [{**common, **KINDS["records" if i % 2 else "plain"]} for i in range(rows)]
    return [{**common, **KINDS[kind]} for _ in range(rows)]


def twin(lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Sampling parameters of plain rows with outputs of these lengths."""
    return [{"temperature": TEMPERATURE, "max_tokens": max(length, 1), **KINDS["plain"]} for length in lengths]


def run_round(engine: Engine, params: list[dict[str, Any]], seed: int) -> Round:
    """Generate one batch."""
    asked = prompts(len(params), seed)
    started = time.perf_counter()
    outputs = engine.generate(asked, params, progress=False)
    assert isinstance(outputs, list)
    seconds = time.perf_counter() - started
    constraints = [output.constraint for output in outputs if output.constraint is not None]
    plain = [output for output in outputs if output.constraint is None and len(output.token_ids) > 1]
    return Round(
        [len(output.token_ids) for output in outputs],
        sum(info.forced_tokens + info.closing_tokens for info in constraints),
        sum(output.finish_reason == "error" for output in outputs),
        seconds,
        median(each.timings.decode_s / (len(each.token_ids) - 1) for each in plain) if plain else None,
    )


def mixed_schemas(path: Path) -> list[Any]:
    """Pick `MIXED` schemas from all over a file, of those whose shortest output leaves room within `OUTPUT_TOKENS`.

    Raises:
        ValueError: the file has too few of them.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    chosen = []
    for line in random.Random(0).sample(lines, len(lines)):
        schema = json.loads(line)["schema"]
        try:
            productions = normalize(schema).productions()
        except (SchemaRefused, EmptySchema):
            continue
        if productions.shortest[productions.start] <= OUTPUT_TOKENS // 2:
            chosen.append(schema)
        if len(chosen) == MIXED:
            return chosen
    raise ValueError(f"{path} has {len(chosen)} of {MIXED} schemas with outputs of {OUTPUT_TOKENS // 2} characters")


def cells(kind: str, rounds: Sequence[Round], twins: Sequence[Round], plain: float | None) -> list[str]:
    """A row of the table; `plain` is the median rate of plain rows, if it was measured.

    Args:
        twins: plain rounds with the lengths of `rounds` from the second on.
    """
    later = median(each.rate for each in rounds[1:])
    tokens = sum(each.tokens for each in rounds)
    gaps = [each.plain_token_s for each in rounds[1:] if each.plain_token_s is not None]
    return [
        kind, str(len(rounds[0].lengths)), *(f"{each.rate:,.0f}" for each in rounds), f"{later:,.0f}",
        f"{later / plain:.2f}" if plain else "",
        f"{median(b.seconds / a.seconds for a, b in zip(rounds[1:], twins, strict=True)):.2f}",
        f"{rounds[0].rate / later:.2f}",
        f"{sum(each.forced for each in rounds) / max(tokens, 1):.0%}", str(sum(each.errors for each in rounds)),
        f"{1e3 * median(gaps):.2f}" if gaps else "",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-0.6b", choices=sorted(CONFIGS))
    parser.add_argument("--rows", type=int, nargs="+", default=[64])
    parser.add_argument("--rounds", type=int, default=6)
    kinds_known = [*KINDS, "beside"]
    parser.add_argument("--kinds", nargs="+", default=kinds_known, choices=[*kinds_known, "schemas"])
    parser.add_argument("--model", help="folder with real weights, or `embedded`, instead of a shape with dummy ones")
    parser.add_argument(
        "--schemas", type=Path, help="JSON lines with a `schema` each; 20 of them are mixed as the kind `schemas`"
    )
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    args = parser.parse_args()
    print(facts())
    kinds: list[str] = args.kinds
    schemas: list[Any] = []
    if args.schemas is not None:
        schemas = mixed_schemas(args.schemas)
        kinds = [*dict.fromkeys([*kinds, "schemas"])]
    elif "schemas" in kinds:
        parser.error("--kinds schemas: name the file of schemas with --schemas")
    found = []
    for rows in args.rows:
        plain: float | None = None
        for kind in kinds:
            options = {"max_running_requests": max(64, rows), **parse_options(args.set)}
            if args.model is None:
                options = {"load_format": "dummy", "context_length": 16_384, **options}
            model = str(shape_folder(args.shape)) if args.model is None else args.model
            with Engine(None if model == "embedded" else model, show_progress=False, **options) as engine:
                params, seed = parameters(kind, rows, schemas), 1000 * rows
                rounds = [run_round(engine, params, seed + i) for i in range(args.rounds)]
                twins = [run_round(engine, twin(each.lengths), seed + 500 + i) for i, each in enumerate(rounds[1:])]
            if kind == "plain":
                plain = median(each.rate for each in rounds[1:])
            found.append(cells(kind, rounds, twins, plain))
            print("|", " | ".join(found[-1]), "|", flush=True)
    numbers = [f"round {i + 1}" for i in range(args.rounds)]
    print(
        table(
            ["kind", "rows", *numbers, "median 2+", "of plain", "same lengths", "first / median", "forced", "errors",
             "plain ms"],
            found,
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
