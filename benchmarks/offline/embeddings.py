"""Table "Embeddings" of docs/benchmarks.md: texts a second, beside the prefill rate of the same decoder.

    own        texts with nothing in common
    generate   the same number of such prompts, each generating one token: the prefill rate of the decoder
    shared     texts that begin with the same instruction, --shared of their tokens
    single     one text after another, nothing in common: the time that one user waits

Texts are token ids, uniform in 10..10000, so that nothing is tokenized; all are embedded in one call, pooled by the
last token. Their lengths are uniform in --least-tokens..--tokens; `own` and `generate` have the same texts. Workloads
run in turn, once to warm up and then --runs times, with other texts each time and an empty prefix cache; figures are
medians. "computed" is the share of prompt tokens that were not in the cache. "to own" compares texts a second with
those of `own` (or of the first of --workloads) in the same round.

Run: python -m benchmarks.offline.embeddings --texts 64 --tokens 128              (the embedded model, on a CPU)
     python -m benchmarks.offline.embeddings --shape qwen3-0.6b                   (on a GPU, dummy weights)
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
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

    def __init__(self, engine: Any, *, texts: int, tokens: int, least: int, shared: float) -> None:
        self._engine = engine
        self._texts, self._tokens, self._least, self._shared = texts, tokens, least, shared

    def count(self, name: str) -> int:
        """Texts of a workload."""
        return SINGLES if name == "single" else self._texts

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
        longest = max(texts, key=len)
        cuts = [int(len(text) * self._shared) for text in texts]
        return self._embed([longest[:cut] + text[cut:] for text, cut in zip(texts, cuts, strict=True)])

    def single(self, seed: int) -> Measured:
        runs = [self._embed([text]) for text in self._draw(seed, SINGLES)]
        seconds, tokens, cached = zip(*runs, strict=True)
        return sum(seconds), sum(tokens), sum(cached)

    def _draw(self, seed: int, count: int) -> Texts:
        rng = np.random.default_rng(seed)
        lengths = rng.integers(self._least, self._tokens, count, endpoint=True).tolist()
        return [rng.integers(LOWEST_ID, HIGHEST_ID, length, endpoint=True).tolist() for length in lengths]

    def _embed(self, texts: Texts) -> Measured:
        started = time.perf_counter()
        found = self._engine.embed(texts)
        seconds = time.perf_counter() - started
        if found.vectors.shape[0] != len(texts) or not np.isfinite(found.vectors).all():
            raise RuntimeError("the engine did not embed all texts")
        return seconds, found.usage.prompt_tokens, found.usage.cached_tokens


def measure(engine: Any, works: Workloads, names: Sequence[str], *, runs: int, seed: int) -> dict[str, dict[str, Any]]:
    """Rates of workloads: the medians of `runs` measured rounds of all of them after one to warm up."""
    found: dict[str, list[Measured]] = {name: [] for name in names}
    for i in range(-1, runs):
        for name in names:
            engine.flush_cache()
            one = getattr(works, name)(seed + i + 1)
            if i >= 0:
                found[name].append(one)
    return {name: rates(found[name], found[names[0]], works.count(name), works.count(names[0])) for name in names}


def rates(found: list[Measured], first: list[Measured], count: int, first_count: int) -> dict[str, Any]:
    """Rates of one workload.

    Args:
        found, first: the rounds of the workload, and of the one that it is compared with.
        count, first_count: their texts.
    """
    per_text = [seconds / count for seconds, _, _ in found]
    against = [seconds / first_count for seconds, _, _ in first]
    tokens, cached = sum(each[1] for each in found), sum(each[2] for each in found)
    return {
        "texts": count,
        "seconds": [each[0] for each in found],
        "texts_per_s": 1 / median(per_text),
        "tokens_per_s": median(prompt / seconds for seconds, prompt, _ in found),
        "computed": 1 - cached / tokens,
        "to_first": median(other / own for own, other in zip(per_text, against, strict=True)),
    }


def row(name: str, found: dict[str, Any]) -> list[str]:
    """Row of the table."""
    spread = f"{min(found['seconds']):.3f}-{max(found['seconds']):.3f}"
    return [
        name, f"{found['texts_per_s']:,.1f}", f"{found['tokens_per_s']:,.0f}", f"{found['computed']:.0%}",
        f"{1000 / found['texts_per_s']:.2f}", spread, f"{found['to_first']:.2f}",
    ]  # fmt: skip


NAMES = ("own", "generate", "shared", "single")
HEADER = ["workload", "texts/s", "prompt tok/s", "computed", "ms a text", "s, all runs", "to own"]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(CONFIGS), help="with dummy weights; default: the embedded model")
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=512, help="of a text, at most")
    parser.add_argument("--least-tokens", type=int, help="of a text; default: as many as --tokens")
    parser.add_argument("--workloads", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--shared", type=float, default=0.75, help="part of each text's tokens that all begin with")
    parser.add_argument("--runs", type=int, default=3, help="measured runs of each workload")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="an option of the engine")
    parser.add_argument("--json", type=Path, help="write everything there too")
    args = parser.parse_args(argv)
    if min(args.runs, args.texts, args.tokens) < 1 or not 0 <= args.shared <= 1:
        parser.error("--runs, --texts and --tokens must be at least 1, and --shared from 0 to 1")
    least = args.tokens if args.least_tokens is None else args.least_tokens
    if not 1 <= least <= args.tokens:
        parser.error("--least-tokens must be from 1 to --tokens")
    from radixrt import Engine

    options: dict[str, Any] = {"log_level": "warning"}
    if args.shape is not None:
        options |= {**(TINY_OPTIONS if args.shape.startswith("tiny") else CUDA_OPTIONS), "load_format": "dummy"}
        options["model"] = str(shape_folder(args.shape))
    options |= parse_options(args.set)
    machine = machine_facts()
    print("\n".join(f"{name}: {value}" for name, value in machine.items()))
    with Engine(show_progress=False, **options) as engine:
        info = engine.client.info
        assert info is not None
        lengths = f"{least}-{args.tokens}" if least < args.tokens else str(least)
        title = f"{args.shape or info.model}: {args.texts} texts of {lengths} tokens, {info.device}, {info.dtype}"
        print(f"\n## {title}", flush=True)
        works = Workloads(engine, texts=args.texts, tokens=args.tokens, least=least, shared=args.shared)
        results = measure(engine, works, args.workloads, runs=args.runs, seed=args.seed)
    print("\n" + table(HEADER, [row(name, found) for name, found in results.items()]))
    if args.json is not None:
        arguments = {**vars(args), "json": str(args.json)}
        args.json.write_text(json.dumps({"machine": machine, "arguments": arguments, "results": results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
