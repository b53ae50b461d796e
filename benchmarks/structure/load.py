"""Structured output on a running engine: the scheduler's share, jump-forward, and requests beside a compile bomb."""

import argparse
import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.common.tables import table
from benchmarks.structure.bombs import BOMBS
from benchmarks.structure.first_mask import closed
from benchmarks.structure.grammar_jobs import read_entries
from radixrt.bench.result import percentile
from radixrt.config import ModelConfig
from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.compiler import compile_constraint, load
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import Constraint
from radixrt.engine.engine import Completion, Engine
from radixrt.errors import RadixRTError, RequestError
from radixrt.messages.scheduler_stats import SchedulerStats
from radixrt.models.loading.source import prepare_model
from radixrt.models.model_config import load_model_spec

Json = dict[str, Any]
SETTLE_S = 1.0
"""The scheduler's last snapshot of a burst has come by then."""
STEP_TOKENS = 64
FIXED_SHARE = 0.5
MOST_FIXED = 24
OUTPUT_TOKENS = (24, 256)
PLAIN_STREAMS = 8
PLAIN_TOKENS = 160
BOMB_EVERY_S = 0.5


# --- cost of constrained rows in the scheduler's step ---


def scheduler(args: argparse.Namespace) -> None:
    """Seconds that the scheduler works for a step, with and without constraints, from its own counters.

    The runner has one thread: with all cores it would slow down the scheduler, whose clock continues.
    """
    rows = args.rows
    options = {"max_running_requests": rows, "kv_cache_tokens": rows * 1024, "num_threads": 1}
    prompts = [f"Record number {i} is" for i in range(rows)]
    plain = {"max_tokens": STEP_TOKENS, "temperature": 0.8, "seed": 1, "ignore_eos": True}
    word: Json = {"type": "string", "maxLength": 16}
    strings: Json = {"type": "array", "items": word, "minItems": 8, "maxItems": 8}
    records: Json = {"type": "array", "items": closed({"name": word, "on": {"type": "boolean"}}), "minItems": 4}
    kinds: dict[str, Json] = {
        "no constraint": plain,
        "strings": _constrained(strings, jump_forward=False),
        "records": _constrained(records | {"maxItems": 4}, jump_forward=False),
        "records, jump-forward": _constrained(records | {"maxItems": 4}, jump_forward=True),
        "records, limit always near": _constrained(records, jump_forward=False, max_tokens=STEP_TOKENS),
    }
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in kinds}
    with Engine(args.model, show_progress=False, **options) as engine:
        engine.generate("Before the first", {"max_tokens": 2})
        for _ in range(args.rounds + 1):  # the first round compiles
            for name, params in kinds.items():
                found[name].append(_step_costs(engine, prompts, params))
    columns = [
        "rows", "us a step, deciding", "masks", "committing", "all", "us a mask", "steps", "forced tokens",
    ]  # fmt: skip
    cells = []
    for name, rounds in found.items():
        figures = [median(values) for values in zip(*rounds[1:], strict=True)]
        cells.append([f"{rows} {name}", *(f"{value:.0f}" for value in figures)])
    print(f"\nWork of the scheduler, from its counters; {STEP_TOKENS} tokens each, median of {args.rounds} rounds\n")
    print(table(columns, cells))


def _constrained(schema: Json, *, jump_forward: bool, max_tokens: int = 8 * STEP_TOKENS) -> Json:
    return {
        "max_tokens": max_tokens,
        "temperature": 0.8,
        "seed": 1,
        "json_schema": schema,
        "structured": {"jump_forward": jump_forward},
    }


def _step_costs(engine: Engine, prompts: Sequence[str], params: Json) -> tuple[float, ...]:
    """Microseconds of a step: deciding, masks, committing, all; of a mask; steps; forced tokens."""
    before = _stats(engine)
    engine.generate(list(prompts), params, progress=False)
    after = _stats(engine)

    def spent(name: str) -> float:
        return float(getattr(after, name) - getattr(before, name))

    steps = max(1.0, spent("extend_steps") + spent("decode_steps"))
    parts = [1e6 * spent(name) / steps for name in ("schedule_s", "mask_s", "commit_s")]
    masks = 1e6 * spent("mask_s") / max(1.0, spent("mask_rows"))
    return (*parts, sum(parts), masks, steps, spent("forced_tokens"))


def _stats(engine: Engine) -> SchedulerStats:
    time.sleep(SETTLE_S)
    if engine.stats is None:
        raise RuntimeError("the scheduler has sent no figures")
    return engine.stats


# --- jump-forward ---


@dataclass(frozen=True)
class FixedSchema:
    """A schema whose outputs are mostly forced.

    Attributes:
        example, tokens: one such output, and how many tokens it has.
        share: the part of them that is forced.
    """

    schema: Any
    example: str
    tokens: int
    share: float


def fixed_schemas(model: str, entries: Sequence[Json]) -> list[FixedSchema]:
    """The schemas for whose first valid instance half or more of the tokens are forced."""
    folder = prepare_model(ModelConfig(model=model)).folder
    spec = load_model_spec(folder)
    backends = Backends(Vocabulary.from_folder(folder, spec.vocab_size, spec.eos_token_ids))
    found: list[FixedSchema] = []
    for entry in entries:
        data = next((test["data"] for test in entry.get("tests", ()) if test["valid"]), None)
        if data is None or len(found) == MOST_FIXED:
            continue
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        tokens = backends.vocabulary.encode(text)
        if OUTPUT_TOKENS[0] <= len(tokens) <= OUTPUT_TOKENS[1]:
            share = _forced_share(entry["schema"], tokens, backends)
            if share is not None and share >= FIXED_SHARE:
                found.append(FixedSchema(entry["schema"], text, len(tokens), share))
    return found


def _forced_share(schema: Any, tokens: Sequence[int], backends: Backends) -> float | None:
    """The part of the tokens that the grammar forces; None if the schema or the instance is refused."""
    try:
        constraint = Constraint(kind="json_schema", source=json.dumps(schema))
        grammar = load(compile_constraint(constraint, backends, time.thread_time() + 5.0), backends).new()
        forced, at = 0, 0
        while at < len(tokens):
            run = grammar.forced_continuation()
            same = 0
            while same < len(run) and at + same < len(tokens) and run[same] == tokens[at + same]:
                same += 1
            forced += same
            for token in tokens[at : at + max(1, same)]:
                if not grammar.accept(token):
                    return None
            at += max(1, same)
    except RadixRTError:
        return None
    return forced / len(tokens)


def throughput(args: argparse.Namespace) -> None:
    """Outputs with jump-forward on and off, alternating; greedy, the cache emptied before each side.

    Prompts show an example, so that answers have a typical length, and not that of a small model's rambling.
    """
    chosen = fixed_schemas(args.model, read_entries(args.data, args.limit))
    if not chosen:
        raise SystemExit(f"{args.data}: no schema has outputs of which half the tokens are forced")
    prompts = [f"Some objects of one kind, one on each line, as JSON:\n{one.example}\n" for one in chosen]
    sides: dict[str, list[tuple[float, int, int]]] = {"off": [], "on": []}
    texts: dict[str, list[str]] = {}
    with Engine(args.model, show_progress=False, max_running_requests=16) as engine:
        for r in range(args.rounds + 1):
            for side in sides:
                params = [
                    {
                        "json_schema": one.schema,
                        "structured": {"jump_forward": side == "on"},
                        "temperature": 0,
                        "max_tokens": 2 * one.tokens,
                    }
                    for one in chosen
                ]
                engine.flush_cache()
                started = time.perf_counter()
                done = _listed(engine.generate(prompts, params, progress=False))
                wall = time.perf_counter() - started
                texts[side] = [one.text for one in done]
                if r:  # the first round compiles
                    sides[side].append(_counts(wall, done))
    print(
        f"\n{len(chosen)} schemas, forced tokens of their instances {median(one.share for one in chosen):.0%}; "
        f"16 at a time, greedy, {args.rounds} rounds\n"
    )
    rates = {side: median(tokens / wall for wall, tokens, _ in runs) for side, runs in sides.items()}
    rows = [
        [
            side,
            f"{median(wall for wall, _, _ in runs):.2f}",
            f"{rates[side]:.0f}",
            f"{len(chosen) / median(wall for wall, _, _ in runs):.2f}",
            f"{sum(forced for _, _, forced in runs) / sum(tokens for _, tokens, _ in runs):.0%}",
        ]
        for side, runs in sides.items()
    ]
    print(table(["jump-forward", "wall s", "output tok/s", "answers/s", "forced tokens"], rows))
    same = sum(one == other for one, other in zip(texts["on"], texts["off"], strict=True))
    print(f"\noutput rate on / off: {rates['on'] / rates['off']:.2f}; the same text in {same} of {len(chosen)} answers")


def _listed(done: Completion | list[Completion]) -> list[Completion]:
    return done if isinstance(done, list) else [done]


def _counts(wall: float, done: Sequence[Completion]) -> tuple[float, int, int]:
    forced = sum(c.constraint.forced_tokens for c in done if c.constraint is not None)
    return wall, sum(len(c.token_ids) for c in done), forced


# --- a compile bomb and its neighbours ---


SETTLE_S = 8.0
"""An engine that has just started on few cores goes on to start its second compile worker."""


def bomb(args: argparse.Namespace) -> None:
    """Time per output token of plain streams, alone and while constraints that are hard to compile keep coming."""
    alone: list[float] = []
    beside: list[float] = []
    outcomes: dict[str, int] = {}
    with Engine(args.model, show_progress=False, max_running_requests=32) as engine:
        time.sleep(SETTLE_S)
        asyncio.run(_streams(engine))
        # All rounds without bombs come first: bombs keep compiling after their round.
        for _ in range(args.rounds):
            alone += asyncio.run(_streams(engine))
        for r in range(args.rounds):
            beside += asyncio.run(_bombed(engine, r, outcomes))
    rows = [
        [name, *(f"{percentile(values, q) * 1e3:.2f}" for q in (50, 90, 99)), f"{sum(values) / len(values) * 1e3:.2f}"]
        for name, values in (("alone", alone), ("beside bombs", beside))
    ]
    print(f"\nTPOT ms of {PLAIN_STREAMS} plain streams of {PLAIN_TOKENS} tokens, {args.rounds} rounds of each\n")
    print(table(["streams", "p50", "p90", "p99", "mean"], rows))
    print(f"\nmean, beside / alone: {(sum(beside) / len(beside)) / (sum(alone) / len(alone)):.3f}")
    print("bombs: " + ", ".join(f"{count} {what}" for what, count in sorted(outcomes.items())))


async def _streams(engine: Engine) -> list[float]:
    """Seconds between the tokens of all plain streams."""
    return [gap for gaps in await asyncio.gather(*(_gaps(engine, i) for i in range(PLAIN_STREAMS))) for gap in gaps]


async def _gaps(engine: Engine, i: int) -> list[float]:
    params = {"max_tokens": PLAIN_TOKENS, "temperature": 0, "ignore_eos": True}
    times: list[tuple[float, int]] = []
    async with aclosing(engine.async_stream(f"Story number {i} begins", params)) as stream:
        async for chunk in stream:
            times.append((time.perf_counter(), len(chunk.token_ids)))
    pairs = itertools.pairwise(times)
    return [(at - before) / tokens for (before, _), (at, tokens) in pairs if tokens]


async def _bombed(engine: Engine, r: int, outcomes: dict[str, int]) -> list[float]:
    async def throw() -> None:
        for i in range(1_000_000):
            options = BOMBS[i % len(BOMBS)](r * 1000 + i)
            bombs.append(asyncio.ensure_future(_one_bomb(engine, options)))
            await asyncio.sleep(BOMB_EVERY_S)

    bombs: list[asyncio.Future[str]] = []
    thrower = asyncio.ensure_future(throw())
    gaps = await _streams(engine)
    thrower.cancel()
    for waiting in bombs:
        outcome = waiting.result() if waiting.done() else "still compiling at the end"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        waiting.cancel()
    return gaps


async def _one_bomb(engine: Engine, options: Json) -> str:
    try:
        await engine.async_generate("Say it:", {"max_tokens": 1, **options}, timeout_s=20.0)
    except RequestError as error:
        return f"refused ({error.code or error.status})"
    return "answered"
