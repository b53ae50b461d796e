"""Makes the table "Long prompts beside decoding requests" of docs/benchmarks.md: the tail that a prompt causes.

    python -m benchmarks.offline.long_prompts --shape llama-3.1-8b [--rows 64] [--prompt 32000] [--gaps inf 100 50 25]

`--rows` requests decode. In the middle of their output, one request with a prompt of `--prompt` tokens arrives. A
prompt is computed in chunks beside the decode rows, so a chunk is the longest pause of the other requests. For each
value of `max_gap_ms` the table has the gaps between two tokens of a decoding request without and with the prompt, the
seconds until the prompt's first token, and the decode rows' tokens a second meanwhile. Prefill apart from decode
(`--set replicas=2 --set roles=prefill,decode`) leaves the gaps of the first columns; the difference is the gain.
"""

from __future__ import annotations

import argparse
import math
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.common.engine_options import parse_options
from benchmarks.common.model_shapes import CONFIGS, shape_folder
from benchmarks.common.tables import table
from benchmarks.offline.__main__ import machine_facts
from radixrt import Engine

OWN_TOKENS = 512
"""Prompt tokens of a decoding request."""


class Reader(threading.Thread):
    """A client that notes the time of each chunk of one request's output."""

    def __init__(self, engine: Engine, prompt: list[int], tokens: int) -> None:
        super().__init__(daemon=True)
        self._engine, self._prompt, self._tokens = engine, prompt, tokens
        self.times: list[float] = []

    def run(self) -> None:
        sampling = {"temperature": 0.0, "ignore_eos": True, "max_tokens": self._tokens, "detokenize": False}
        for _ in self._engine.stream(self._prompt, sampling):
            self.times.append(time.perf_counter())


def measure(engine: Engine, rows: int, prompt: int, output: int, seed: int) -> list[str]:
    """Run the decoding requests with the long prompt among them; return the cells of a row of the table."""
    random = np.random.default_rng(seed)
    readers = [Reader(engine, random.integers(10, 10_000, OWN_TOKENS).tolist(), output) for _ in range(rows)]
    for reader in readers:
        reader.start()
    while min(len(reader.times) for reader in readers) < output // 3:
        time.sleep(0.002)
    begun = time.perf_counter()
    long = Reader(engine, random.integers(10, 10_000, prompt).tolist(), 1)
    long.start()
    long.join()
    ended = time.perf_counter()
    for reader in readers:
        reader.join()
    without, beside = [], []
    for reader in readers:
        for last, current in zip(reader.times, reader.times[1:], strict=False):
            if current < begun and last > readers[-1].times[0]:
                without.append(current - last)
            elif last < ended and current > begun:
                beside.append(current - last)
    tokens = sum(begun < at < ended for reader in readers for at in reader.times)
    cells = [f"{1e3 * value:.1f}" for gaps in (without, beside) for value in np.quantile(gaps, [0.5, 0.99, 1.0])]
    return [*cells, f"{ended - begun:.2f}", f"{tokens / (ended - begun):,.0f}"]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-3.1-8b", choices=sorted(CONFIGS))
    parser.add_argument("--model", help="model with its weights, in place of a shape, such as the embedded one")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=32_000)
    parser.add_argument("--output", type=int, default=600, help="tokens of a decoding request")
    parser.add_argument("--gaps", type=float, nargs="+", default=[math.inf, 100.0, 50.0, 25.0], help="max_gap_ms")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    options = parser.parse_args(argv)
    model: dict[str, Any] = {"model": options.model}
    if not options.model:
        model = {"model": str(shape_folder(options.shape)), "load_format": "dummy"}
    given: dict[str, Any] = {
        **model,
        "max_running_requests": options.rows + 8,
        "context_length": options.prompt + 1024,
        **parse_options(options.set),
    }
    rows = []
    for gap in options.gaps:
        with Engine(show_progress=False, max_gap_ms=gap, **given) as engine:
            measure(engine, options.rows, options.prompt, options.output, 0)
            rows.append([f"{gap:g}", *measure(engine, options.rows, options.prompt, options.output, 1)])
    columns = ["p50, ms", "p99", "longest", "p50 beside", "p99 beside", "longest beside"]
    print(table(["max_gap_ms", *columns, "prompt, s", "decoded tok/s"], rows))
    print("; ".join(f"{name}: {value}" for name, value in machine_facts().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
