"""Simulate replicas with and without roles: long prompts beside chats; docs/benchmarks.md.

    python -m benchmarks.fleet.roles

Chats have 500 prompt tokens and 300 output tokens; long prompts have 32,000 and 100. Replicas are 8B models on an H200
each, with `--max-gap-ms 50`, the default on CUDA, or without a bound. Prints a table; times are simulated.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.common.tables import table
from benchmarks.fleet.device import KV_BYTES, Device
from benchmarks.fleet.fleet import Fleet, Outcome
from benchmarks.fleet.programs import FIRST_TOKEN, Call, Program
from benchmarks.fleet.variants import make_router
from radixrt.bench.result import percentile
from radixrt.config.roles import Role, parse_roles

CHAT, LONG = (500, 300), (32_000, 100)
"""Prompt and output tokens."""
LAG_S, EVENT_LAG_S = 0.001, 0.01
DEVICE = Device(num_slots=900_000)
LAYOUTS = ("", "prefill,decode", "", "prefill,decode,decode,decode", "prefill,prefill,decode,decode")
"""Roles of the replicas; the first of each number of replicas has none."""


@dataclass(frozen=True)
class Case:
    """A layout under a load.

    Attributes:
        roles: empty for replicas without roles.
        chats, longs: requests per second.
    """

    replicas: int
    roles: tuple[Role, ...]
    chats: float
    longs: float
    max_gap_ms: float


def mixed(case: Case, seconds: float, seed: int) -> Iterator[Program]:
    """Yield chats and long prompts, each with a prompt of its own, that arrive at random."""
    rng = np.random.default_rng(seed)
    arrivals = [
        (at, prompt, output)
        for rate, (prompt, output) in ((case.chats, CHAT), (case.longs, LONG))
        for at in np.cumsum(rng.exponential(1 / rate, int(rate * seconds))) if rate
    ]  # fmt: skip
    for number, (at, prompt, output) in enumerate(sorted(arrivals)):
        tokens = rng.integers(FIRST_TOKEN, 2**31 - 1, prompt, dtype=np.int32)
        call = Call(tokens, np.full(output, FIRST_TOKEN, np.int32))
        name = f"{'long' if prompt == LONG[0] else 'chat'}{number}"
        yield Program(float(at), name, iter([[call]]))


def run(case: Case, seconds: float, seed: int, link: float) -> Outcome:
    """Play a load to its end."""
    device = replace(DEVICE, max_gap_ms=case.max_gap_ms, move_s=KV_BYTES / (link * 1e9))
    router = make_router("moves", case.replicas, device, case.roles)
    fleet = Fleet(
        device, router, case.replicas, lag_s=LAG_S, event_lag_s=EVENT_LAG_S, seed=seed, measures_gaps=True
    )  # fmt: skip
    return fleet.run(mixed(case, seconds, seed))


def row(case: Case, outcomes: Sequence[Outcome]) -> list[str]:
    """Return a row of the table: means over seeds of percentiles and means."""

    def mean(of: Callable[[Outcome], float]) -> float:
        return statistics.fmean(of(each) for each in outcomes)

    def gap(percent: float) -> str:
        return f"{1e3 * mean(lambda each: percentile(each.gaps, percent)):.0f}"

    return [
        f"{case.chats:g} + {case.longs:g}", ",".join(case.roles) or f"{case.replicas} replicas",
        "none" if case.max_gap_ms == math.inf else f"{case.max_gap_ms:g} ms", gap(50), gap(99), gap(99.9),
        f"{1e3 * mean(lambda each: max(each.gaps)):.0f}", f"{mean(lambda each: statistics.fmean(each.ttft)):.2f}",
        f"{mean(lambda each: percentile(each.ttft, 99)):.2f}",
        f"{mean(lambda each: statistics.fmean(each.request_s)):.1f}",
    ]  # fmt: skip


COLUMNS = [
    "chats + long prompts a second", "layout", "max-gap", "gap p50 ms", "p99", "p99.9", "max", "first token mean s",
    "p99", "request mean s",
]  # fmt: skip


def cases(loads: Sequence[tuple[int, float, float]], bounds: Sequence[float]) -> Iterator[Case]:
    """Yield every layout under every load of its number of replicas."""
    for replicas, chats, longs in loads:
        for roles in dict.fromkeys(LAYOUTS):
            if roles == "" or len(parse_roles(roles)) == replicas:
                for bound in bounds:
                    yield Case(replicas, parse_roles(roles or None), chats, longs, bound)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.roles", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=20.0, help="simulated seconds of arrivals; default: 20")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds; default: 1")
    parser.add_argument("--link", type=float, default=4.0, help="GB/s between replicas; default: 4")
    parser.add_argument(
        "--load", nargs=3, action="append", type=float, metavar=("REPLICAS", "CHATS", "LONGS"),
        help="replicas, and requests a second; may be given several times",
    )  # fmt: skip
    options = parser.parse_args(argv)
    loads = [(int(n), chats, longs) for n, chats, longs in options.load or []] or [
        (2, 10.0, 0.5), (2, 20.0, 0.8), (4, 20.0, 1.0), (4, 20.0, 3.0),
    ]  # fmt: skip
    rows = [
        row(case, [run(case, options.seconds, seed, options.link) for seed in range(options.seeds)])
        for case in cases(loads, (50.0, math.inf))
    ]
    print(table(COLUMNS, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
