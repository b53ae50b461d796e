"""Table "Embeddings" of docs/benchmarks.md: texts a second, beside the prefill rate of the same decoder.

    own        texts with nothing in common
    generate   the same number of such prompts, each generating one token: the prefill rate of the decoder
    shared     texts that begin with the same instruction, --shared of their tokens
    single     one text after another, nothing in common: the time that one user waits

Texts are token ids, uniform in 10..10000, so that nothing is tokenized; all are embedded in one call, pooled by the
last token. Each workload runs once to warm up and then --runs times, with other tokens each time and an empty prefix
cache; the figure is the median. "computed" is the share of prompt tokens that were not in the cache.

Run: python -m benchmarks.offline.embeddings --texts 64 --tokens 128              (the embedded model, on a CPU)
     python -m benchmarks.offline.embeddings --shape qwen3-0.6b                   (on a GPU, dummy weights)
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.engine_options import parse_options
from benchmarks.common.model_shapes import CONFIGS, shape_folder
from benchmarks.common.tables import table
from benchmarks.offline.__main__ import CUDA_OPTIONS, TINY_OPTIONS, machine_facts

LOWEST_ID, HIGHEST_ID = 10, 10_000
SINGLES = 8
"""Texts of the workload `single`."""

Texts = list[list[int]]
Measured = tuple[float, int, int]
"""Seconds, prompt tokens and cached tokens of one run."""


class Workloads:
    """The workloads on one engine; each method runs one, with texts of its own for each seed."""

    def __init__(self, engine: Any, *, texts: int, tokens: int, shared: int) -> None:
        self._engine = engine
        self._texts, self._tokens, self._shared = texts, tokens, shared

    def own(self, seed: int) -> Measured:
        return self._embed(self._draw(seed, self._texts))

    def generate(self, seed: int) -> Measured:
        prompts = self._draw(seed, self._texts)
        sampling = {"temperature": 0.0, "max_tokens": 1, "ignore_eos": True, "detokenize": False}
        started = time.perf_counter()
        outputs = self._engine.generate(prompts, sampling, progress=False)
        seconds = time.perf_counter() - started
        cached = sum(output.usage.cached_tokens for output in outputs)
        return seconds, sum(map(len, prompts)), cached

    def shared(self, seed: int) -> Measured:
        texts = self._draw(seed, self._texts)
        return self._embed([texts[0][: self._shared] + text[self._shared :] for text in texts])

    def single(self, seed: int) -> Measured:
        runs = [self._embed([text]) for text in self._draw(seed, SINGLES)]
        seconds, tokens, cached = zip(*runs, strict=True)
        return sum(seconds), sum(tokens), sum(cached)

    def _draw(self, seed: int, count: int) -> Texts:
        drawn = np.random.default_rng(seed).integers(LOWEST_ID, HIGHEST_ID, (count, self._tokens), endpoint=True)
        return drawn.tolist()  # type: ignore[no-any-return]

    def _embed(self, texts: Texts) -> Measured:
        started = time.perf_counter()
        found = self._engine.embed(texts)
        seconds = time.perf_counter() - started
        if found.vectors.shape[0] != len(texts) or not np.isfinite(found.vectors).all():
            raise RuntimeError("the engine did not embed all texts")
        return seconds, found.usage.prompt_tokens, found.usage.cached_tokens


def measure(engine: Any, run: Callable[[int], Measured], count: int, *, runs: int, seed: int) -> dict[str, Any]:
    """Rates of a workload of `count` texts: the median of `runs` measured runs after one to warm up."""
    found: list[Measured] = []
    for i in range(-1, runs):
        engine.flush_cache()
        one = run(seed + i + 1)
        if i >= 0:
            found.append(one)
    seconds = [one[0] for one in found]
    tokens, cached = found[-1][1], found[-1][2]
    return {
        "texts": count,
        "seconds": seconds,
        "texts_per_s": count / median(seconds),
        "tokens_per_s": tokens / median(seconds),
        "computed": 1 - cached / tokens,
    }


def row(name: str, found: dict[str, Any], first: dict[str, Any]) -> list[str]:
    """Row of the table; `first` is the first workload's, with whose rate others are compared."""
    spread = f"{min(found['seconds']):.3f}-{max(found['seconds']):.3f}"
    return [
        name, f"{found['texts_per_s']:,.1f}", f"{found['tokens_per_s']:,.0f}", f"{found['computed']:.0%}",
        f"{1000 * median(found['seconds']) / found['texts']:.2f}", spread,
        f"{found['texts_per_s'] / first['texts_per_s']:.2f}",
    ]  # fmt: skip


HEADER = ["workload", "texts/s", "prompt tok/s", "computed", "ms a text", "s, all runs", "texts/s to own"]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(CONFIGS), help="with dummy weights; default: the embedded model")
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=512, help="of each text")
    parser.add_argument("--shared", type=float, default=0.75, help="part of each text's tokens that all begin with")
    parser.add_argument("--runs", type=int, default=3, help="measured runs of each workload")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="an option of the engine")
    parser.add_argument("--json", type=Path, help="write everything there too")
    args = parser.parse_args(argv)
    if min(args.runs, args.texts, args.tokens) < 1 or not 0 <= args.shared <= 1:
        parser.error("--runs, --texts and --tokens must be at least 1, and --shared from 0 to 1")
    from radixrt import Engine

    options: dict[str, Any] = {"log_level": "warning"}
    if args.shape is not None:
        options |= {**(TINY_OPTIONS if args.shape.startswith("tiny") else CUDA_OPTIONS), "load_format": "dummy"}
        options["model"] = str(shape_folder(args.shape))
    options |= parse_options(args.set)
    machine = machine_facts()
    print("\n".join(f"{name}: {value}" for name, value in machine.items()))
    results: dict[str, dict[str, Any]] = {}
    with Engine(show_progress=False, **options) as engine:
        info = engine.client.info
        assert info is not None
        print(
            f"\n## {args.shape or info.model}: {args.texts} texts of {args.tokens} tokens, {info.device}, {info.dtype}"
        )
        works = Workloads(engine, texts=args.texts, tokens=args.tokens, shared=int(args.tokens * args.shared))
        for run, count in (
            (works.own, args.texts), (works.generate, args.texts), (works.shared, args.texts), (works.single, SINGLES),
        ):  # fmt: skip
            found = measure(engine, run, count, runs=args.runs, seed=args.seed)
            results[run.__name__] = found
            print(f"{run.__name__}: {found['texts_per_s']:,.1f} texts/s", flush=True)
    print("\n" + table(HEADER, [row(name, found, results["own"]) for name, found in results.items()]))
    if args.json is not None:
        arguments = {**vars(args), "json": str(args.json)}
        args.json.write_text(json.dumps({"machine": machine, "arguments": arguments, "results": results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
