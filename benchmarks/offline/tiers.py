"""Makes the tables "Prefixes from the host tier" of docs/benchmarks.md: how long a prefix takes to come back, and what
moves cost the requests that decode meanwhile.

    python -m benchmarks.offline.tiers --shape llama-3.1-8b [--prefix 8000] [--rows 64] [--host-gib 24]

First table: seconds from the call to the first token for a prompt of `--prefix` tokens and 16 of its own that is
computed, that is in the pool, and that was evicted and comes from the host tier; medians of `--runs`. The pool holds
two such prompts, so that the next ones evict the first.
Second table: tokens a second of `--rows` requests that decode while one client asks for one token after another, each
after a prompt of `--prefix` tokens: prompts in turn, each of which comes from the host tier and pushes another one out,
or as many times a second the same prompt, which stays in the pool. In both cases the steps are the same, so the ratio
is what the moves cost. Medians of `--runs`, which alternate.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.engine_options import parse_options
from benchmarks.common.model_shapes import CONFIGS, shape_folder, shape_of
from benchmarks.common.tables import table
from benchmarks.offline.__main__ import machine_facts
from radixrt import Engine
from radixrt.mem_cache.granules import GRANULE_TOKENS

OWN_TOKENS = 16
DECODE_TOKENS = 400
COPY_LIMIT_S = 30.0
"""Longest wait for a prefix to be copied to the host tier, whose memory is registered with CUDA as it is first used."""
SAMPLING: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}


def first_token_s(engine: Engine, prompt: list[int]) -> tuple[float, int, int]:
    """Return the seconds of a call for one token, and the prompt tokens that were cached and fetched."""
    started = time.perf_counter()
    output = engine.generate(prompt, {**SAMPLING, "max_tokens": 1}, progress=False)
    assert not isinstance(output, list)
    usage = output.usage
    return time.perf_counter() - started, usage.cached_tokens, sum(usage.fetched_tokens.values())


def wait_until_copied(engine: Engine, tokens: int) -> None:
    """Wait until the host tier keeps so many tokens.

    Raises:
        RuntimeError: the tier does not get them.
    """
    deadline = time.perf_counter() + COPY_LIMIT_S
    while time.perf_counter() < deadline:
        stats = engine.stats
        if stats is not None and stats.tiers is not None and stats.tiers.tokens_used.get("host", 0) >= tokens:
            return
        time.sleep(0.05)
    raise RuntimeError(f"the host tier has not got {tokens} tokens in {COPY_LIMIT_S:g} s")


class Prompts:
    """Prompts with prefixes of the same length, each with other tokens of its own in every call.

    Attributes:
        page_tokens: tokens of a prefix in whole pages of the host tier.
    """

    def __init__(self, prefix: int) -> None:
        self._random = np.random.default_rng(0)
        self._prefix = prefix
        self.page_tokens = prefix // GRANULE_TOKENS * GRANULE_TOKENS
        self._prefixes: dict[int, list[int]] = {}

    def of(self, number: int) -> list[int]:
        if number not in self._prefixes:
            self._prefixes[number] = self._random.integers(10, 10_000, self._prefix).tolist()
        return self._prefixes[number] + self._random.integers(10, 10_000, OWN_TOKENS).tolist()


def measure_first_tokens(engine: Engine, prompts: Prompts, runs: int) -> list[list[str]]:
    """Return the rows of the first table."""
    times: dict[str, list[float]] = {"computed": [], "in the pool": [], "from the host tier": []}
    pages, fetched = 0, 0
    for run in range(-1, runs):
        numbers = [10 * (run + 1) + i for i in range(4)]
        computed = first_token_s(engine, prompts.of(numbers[0]))
        in_pool = first_token_s(engine, prompts.of(numbers[0]))
        for number in numbers[1:]:  # evict the first one
            pages += prompts.page_tokens
            wait_until_copied(engine, pages)
            first_token_s(engine, prompts.of(number))
        pages += prompts.page_tokens
        wait_until_copied(engine, pages)
        seconds, _, fetched = first_token_s(engine, prompts.of(numbers[0]))
        if run >= 0 and fetched:
            for name, value in zip(times, (computed[0], in_pool[0], seconds), strict=True):
                times[name].append(value)
    if not times["computed"]:
        return [["nothing was fetched", "", ""]]
    base = median(times["computed"])
    return [
        [name, f"{1e3 * median(values):.1f}", f"{base / median(values):.2f}"]
        for name, values in times.items()
    ]  # fmt: skip


def decode_rate(
    engine: Engine, rows: int, next_prompt: Callable[[], list[int]], most_calls_per_s: float = float("inf")
) -> tuple[float, float, int]:
    """Return the decoded tokens a second, the calls of the other client a second, and the tokens fetched for it."""
    stop, fetched, calls = threading.Event(), 0, 0

    def ask() -> None:
        nonlocal fetched, calls
        while not stop.is_set():
            seconds, _, tokens = first_token_s(engine, next_prompt())
            fetched, calls = fetched + tokens, calls + 1
            stop.wait(max(1 / most_calls_per_s - seconds, 0.0))

    client = threading.Thread(target=ask, daemon=True)
    client.start()
    random = np.random.default_rng(1)
    own = [random.integers(10, 10_000, 64).tolist() for _ in range(rows)]
    started = time.perf_counter()
    engine.generate(own, {**SAMPLING, "max_tokens": DECODE_TOKENS}, progress=False)
    seconds = time.perf_counter() - started
    stop.set()
    client.join()
    return rows * DECODE_TOKENS / seconds, calls / seconds, fetched


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-3.1-8b", choices=sorted(CONFIGS))
    parser.add_argument("--prefix", type=int, default=8_000)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--host-gib", type=float, default=24.0)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    options = parser.parse_args(argv)
    length = options.prefix + 2 * OWN_TOKENS
    given: dict[str, Any] = {
        "max_running_requests": options.rows + 8,
        "context_length": length,
        "kv_host_gib": options.host_gib,
        **parse_options(options.set),
    }
    token_bytes = shape_of(options.shape).kv_bytes
    folder, prompts = str(shape_folder(options.shape)), Prompts(options.prefix)
    common: dict[str, Any] = {"load_format": "dummy", "show_progress": False}
    with Engine(folder, kv_cache_tokens=5 * length // 2 // 64 * 64, **common, **given) as engine:
        rows = measure_first_tokens(engine, prompts, options.runs)
    print(table([f"{options.prefix:,} tokens ({options.prefix * token_bytes / 2**20:,.0f} MiB)", "ms", "x"], rows))
    room = options.rows * (64 + DECODE_TOKENS) + 5 * length // 2
    with Engine(folder, kv_cache_tokens=room // 64 * 64, **common, **given) as engine:
        for number in range(6):
            first_token_s(engine, prompts.of(number))
            wait_until_copied(engine, (number + 1) * prompts.page_tokens)
        numbers = iter(range(10**9))
        found: dict[str, list[tuple[float, float, float]]] = {"six prompts in turn, from the host tier": []}
        pool = found["one prompt, in the pool"] = []
        host = found["six prompts in turn, from the host tier"]
        for run in range(-1, options.runs):
            rate, calls, fetched = decode_rate(engine, options.rows, lambda: prompts.of(next(numbers) % 6))
            moved = fetched * token_bytes / 1e9 * rate / (options.rows * DECODE_TOKENS)
            first_token_s(engine, prompts.of(0))
            same = decode_rate(engine, options.rows, lambda: prompts.of(0), calls)
            if run >= 0:
                host.append((rate, calls, moved))
                pool.append((same[0], same[1], 0.0))
    base = median(rate for rate, _, _ in pool)
    cells = []
    for name, measured in found.items():
        rates, calls_per_s, gb_per_s = (median(column) for column in zip(*measured, strict=True))
        cells.append([name, f"{rates:,.0f}", f"{rates / base:.3f}", f"{calls_per_s:.1f}", f"{gb_per_s:.1f}"])
    print(table([f"beside {options.rows} decode rows", "decoded tok/s", "x", "calls/s", "GB/s fetched"], cells))
    print("; ".join(f"{name}: {value}" for name, value in machine_facts().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
