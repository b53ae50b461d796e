"""Tables "States of hybrid models" of docs/benchmarks.md: prompt tokens that a model with recurrent layers computes.

The first table counts, with any number of states, what the real scheduler computes, what the rules of vLLM and SGLang
would (`state_rules`), and the fewest possible. Requests come one at a time, but for "together". The second one is the
hit rate, the share of prompt tokens that need not be computed, by the number of states that the cache can hold, with
conversations and forks mixed; the optimum knows the whole trace (`state_optimum`).

Counts, not times: the result is the same on every machine.

Run: python -m benchmarks.cache.hybrid [--states 2 4 8 16 32 64] [--svg FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cache.hybrid_engine import HybridEngine
from benchmarks.cache.hybrid_workloads import Request, chats, fork, interleaved
from benchmarks.cache.state_optimum import optimum
from benchmarks.cache.state_rules import VLLM, SGLang
from benchmarks.common.plots import line_plot
from benchmarks.common.tables import table

MANY = 4096
POLICIES = ("radixrt", "vLLM's rules", "SGLang's rules", "optimum")


def shares() -> str:
    """The first table."""
    eight, two = (8, 4096, 200), (2, 1500, 700)
    rows = [
        ("fork 8 × (4,096 + 200)", fork(*eight), 1),
        ("the same, with the program's hint", fork(*eight, hinted=True), 1),
        ("the same, all 8 together", fork(*eight), 8),
        ("fork 2 × (1,500 + 700)", fork(*two), 1),
        ("the same, with the program's hint", fork(*two, hinted=True), 1),
        ("the same, both together", fork(*two), 2),
        ("16 chats of 8 turns (300 + 60, answers of 120)", chats(), 1),
        ("one prompt of 1,000 tokens, 8 times", fork(1, 900, 100, groups=1) * 8, 1),
    ]  # fmt: skip
    body = [_share_row(*row) for row in rows]
    return table(["workload", *POLICIES], body)


def _share_row(name: str, requests: Sequence[Request], together: int) -> list[str]:
    engine = HybridEngine(MANY, rows=together)
    values = [engine.run(requests, together=together), VLLM().run(requests), SGLang().run(requests), optimum(requests)]
    return [name, *(f"{100 * value:.1f} %" for value in values)]


def hit_rates(states: Sequence[int]) -> list[tuple[int, list[float]]]:
    """Hit rate of each policy, by the number of states that it can keep beside that of the running request."""
    requests = interleaved()
    rates = []
    for count in states:
        computed = [
            HybridEngine(2 + 1 + count).run(requests), VLLM(count).run(requests), SGLang(count).run(requests),
            optimum(requests, count),
        ]  # fmt: skip
        rates.append((count, [1 - value for value in computed]))
    return rates


def plot(path: Path, rates: Sequence[tuple[int, list[float]]]) -> None:
    """Write the hit rates over the number of states as an SVG file."""
    lines = {policy: [(count, values[number]) for count, values in rates] for number, policy in enumerate(POLICIES)}
    line_plot(path, lines, x_label="cached states", y_label="hit rate", log="x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--svg", type=Path, help="file for the plot of the hit rates")
    args = parser.parse_args()
    print("share of prompt tokens that are computed\n")
    print(shares(), flush=True)
    rates = hit_rates(args.states)
    print("\nhit rate by number of cached states\n")
    body = [[str(count), *(f"{100 * value:.1f} %" for value in values)] for count, values in rates]
    print(table(["states", *POLICIES], body))
    if args.svg is not None:
        plot(args.svg, rates)


if __name__ == "__main__":
    main()
