"""Tables "Policies of the host tier" of docs/benchmarks.md: the real scheduler and part `tiers`, a simulated device.

The first table compares when prefixes are copied to the host tier, for the 8B shape on one H200: traces
(`tiers_traces`, synthetic) by working set and size of the host tier, both in sizes of the KV pool. The working set is
the largest number of tokens that are to be used again at one time. The last row of each case has the best hit rate of a
cache as large as both tiers that knows the trace in advance, and the other figures of a pool as large as both tiers.
The second table compares the part with no tiers for a smaller model and for a small CPU.

Figures are the same on every machine, which computes for about three minutes.

With --images, the command draws the hit rate and the time of a session of agents over the size of the host tier
instead, beside the optimum.

Run: python -m benchmarks.cache.tiers [--quick] [--images docs/images]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.cache import tiers_traces
from benchmarks.cache.tiers_optimum import Pages
from benchmarks.cache.tiers_policies import Ghosts, SecondHit, WriteBack, WriteThrough
from benchmarks.cache.tiers_simulation import Links, Result, Shape, Simulation
from benchmarks.cache.tiers_traces import Session
from benchmarks.common.plots import line_plot
from benchmarks.common.tables import table
from benchmarks.fleet.device import H200_8B
from benchmarks.programs.simulation import CPU as SMOLLM2
from radixrt.config import SchedulerConfig
from radixrt.mem_cache.granules import GRANULE_TOKENS as PAGE
from radixrt.messages.kv_moves import MAX_MOVES, KVOpen
from radixrt.messages.kv_moves import MAX_RECEIVING_ON_DEVICE as ON_DEVICE
from radixrt.messages.scheduler_stats import StepTimes
from radixrt.parts.simulated import make_scheduler
from radixrt.parts.tiers.records import PageRecords
from radixrt.parts.tiers.scheduler import Tiers
from radixrt.parts.tiers.tier import Tier

H200 = Links(out=50e9, into=50e9, save=1.2e9, load=1.8e9, pool=1e12, fixed_s=5e-5)
CPU = Links(out=4e9, into=4e9, save=0.12e9, load=1.3e9, pool=4e9, fixed_s=2e-4)
SMALL = StepTimes(step=1.5e-3, row=8e-6, context=114_688 / 3.4e12, extend=0.0, token=114_688 / 35e9, pair=0.0)
SHAPES = {
    "8B on H200": Shape(H200_8B, 131_072, H200, ON_DEVICE),
    "0.6B on H200": Shape(SMALL, 114_688, H200, ON_DEVICE, 0.13),
    "SmolLM2-135M on 2 cores": Shape(SMOLLM2, 23_040, CPU, MAX_MOVES, 11.0),
}
POLICIES: dict[str, type[Tiers] | None] = {
    "no tiers": None,
    "write-through": WriteThrough,
    "write-back": WriteBack,
    "second hit": SecondHit,
    "cleaner": Tiers,
    "cleaner + ghosts": Ghosts,
}
OPTIMUM = "optimum"
EVERY = (*POLICIES, OPTIMUM)
TRACES: dict[str, Callable[[int], list[Session]]] = {
    "agents": tiers_traces.agents,
    "forks": tiers_traces.forks,
    "chats": tiers_traces.chats,
    "mixed": tiers_traces.mixed,
}
COUNTS = {"agents": 32, "forks": 32, "chats": 300, "mixed": 300}
QUICK_COUNTS = {"agents": 4, "forks": 3, "chats": 30, "mixed": 30}
PLOTTED = ("no tiers", "write-through", "second hit", "cleaner", OPTIMUM)
HOSTS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0)
"""Sizes of the host tier in the plots, in sizes of the pool."""
COLUMNS = ("hit rate", "requests/s", "first token ms", "session s", "out GB", "in GB")


@dataclass(frozen=True)
class Case:
    """One simulation.

    Attributes:
        count: sessions of the trace.
        load: working set in sizes of the pool.
        host: size of the host tier in sizes of the pool.
    """

    shape: str
    trace: str
    count: int
    load: float
    host: float
    policy: str


def cases(counts: dict[str, int]) -> list[Case]:
    """Return the cases of the first table."""
    made = []
    for trace, count in counts.items():
        for load, host, policies in (
            (0.5, 4.0, ("no tiers", "write-through", "cleaner")),
            (1.0, 4.0, ("no tiers", "write-through", "cleaner", OPTIMUM)),
            (4.0, 4.0, EVERY),
            (4.0, 1.0, EVERY[1:]),
        ):
            made += [Case("8B on H200", trace, count, load, host, policy) for policy in policies]
    return made


def shape_cases(counts: dict[str, int]) -> list[Case]:
    """Return the cases of the second table."""
    made = []
    for shape in list(SHAPES)[1:]:
        for trace, count in (
            ("agents", counts["agents"]),
            ("agents", counts["agents"] // 8),
            ("mixed", counts["mixed"]),
        ):
            for load in (1.0, 4.0) if count > 1 else ():
                made += [Case(shape, trace, count, load, 4.0, policy) for policy in ("no tiers", "cleaner")]
    return made


def simulate(
    shape: Shape, sessions: Sequence[Session], pool: int, host: int = 0, policy: type[Tiers] | None = None
) -> Result:
    """Serve a trace.

    Args:
        pool: tokens of the KV pool.
        host: tokens of the host tier.
    """
    tiers = None
    if policy is not None:
        pages = host // PAGE
        with tempfile.TemporaryDirectory() as folder:
            records = PageRecords(str(Path(folder) / "records"), pages, PAGE, create=True)
        opening = KVOpen("", pages * PAGE, PAGE)
        tiers = policy(Tier("host", pages * PAGE, PAGE, records), None, opening, 1, shape.token_bytes, shape.receiving)
    config = SchedulerConfig(max_running_requests=64, chunked_prefill_size=2048)
    scheduler = make_scheduler(config, pool, context_length=131_072, eos_ids=[0], vocab_size=1000, tiers=tiers)
    return Simulation(scheduler, sessions, shape, waits=policy is WriteBack).run()


@cache
def _pages(shape: str, trace: str, count: int) -> Pages:
    """Return the pages of a trace, in the order in which an engine with an endless pool ends the requests."""
    sessions = TRACES[trace](count)
    endless = sum(len(call.prompt) + len(call.output) for s in sessions for wave in s.waves for call in wave.calls)
    return Pages(simulate(SHAPES[shape], sessions, endless).order)


def outcome(case: Case) -> tuple[float, Result]:
    """Return the hit rate of a case, and all other figures."""
    shape, pages = SHAPES[case.shape], _pages(case.shape, case.trace, case.count)
    sessions = TRACES[case.trace](case.count)
    longest = max(len(call.prompt) + len(call.output) for s in sessions for wave in s.waves for call in wave.calls)
    pool = max(int(pages.working_set() / case.load), longest + PAGE)
    host = int(pool * case.host)
    if case.policy == OPTIMUM:
        result = simulate(shape, sessions, pool + host)
        hit_rate = pages.best_hit_rate(pool + host)
    else:
        result = simulate(shape, sessions, pool, host, POLICIES[case.policy])
        hit_rate = result.hit_rate
    return hit_rate, result


def run(case: Case) -> list[str]:
    """Return the cells of a case."""
    hit_rate, result = outcome(case)
    return [
        f"{hit_rate:.1%}",
        f"{result.requests_per_s:.2f}",
        f"{1e3 * result.mean_first_s:.0f}",
        f"{result.mean_session_s:.2f}",
        f"{result.moved['out'] / 1e9:.1f}",
        f"{result.moved['in'] / 1e9:.1f}",
    ]


def tables(counts: dict[str, int]) -> list[str]:
    """Return both tables."""
    first, second = cases(counts), shape_cases(counts)
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 8)) as executor:
        cells = list(executor.map(run, [*first, *second]))
    rows = [[c.trace, f"{c.load:g}", f"{c.host:g}", c.policy, *row] for c, row in zip(first, cells)]
    others = [
        [c.shape, f"{c.count} {c.trace}", f"{c.load:g}", c.policy, *row]
        for c, row in zip(second, cells[len(first) :], strict=True)
    ]
    return [
        table(("trace", "working set", "host", "policy", *COLUMNS), rows),
        table(("shape", "sessions", "working set", "policy", *COLUMNS), others),
    ]


def plot(folder: Path, counts: dict[str, int]) -> list[Path]:
    """Write plots of agents whose working set has four sizes of the pool; return their files."""
    plotted = [
        Case("8B on H200", "agents", counts["agents"], 4.0, host, policy) for policy in PLOTTED for host in HOSTS
    ]
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 8)) as executor:
        found = dict(zip(plotted, executor.map(outcome, plotted), strict=True))
    written = []
    for name, label, value in (
        ("hits", "hit rate, %", lambda hits, result: 100 * hits),
        ("sessions", "session without pauses, s", lambda hits, result: result.mean_session_s),
    ):
        lines = {
            policy: [(case.host, value(*found[case])) for case in plotted if case.policy == policy]
            for policy in PLOTTED
        }
        path = folder / f"tiers-agents-{name}.svg"
        line_plot(path, lines, x_label="host tier, in sizes of the KV pool", y_label=label)
        written.append(path)
    return written


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sessions")
    parser.add_argument("--images", type=Path, metavar="FOLDER", help="write the plots there")
    args = parser.parse_args(argv)
    counts = QUICK_COUNTS if args.quick else COUNTS
    if args.images is None:
        print("\n\n".join(tables(counts)))
        return
    args.images.mkdir(parents=True, exist_ok=True)
    for path in plot(args.images, counts):
        print(path)


if __name__ == "__main__":
    main()
