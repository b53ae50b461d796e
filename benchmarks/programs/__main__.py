"""Table "Programs" of docs/benchmarks.md: programs in the frontend language and the same calls made plainly.

    python -m benchmarks.programs [--cache 3072] [--rounds 5] [--runs 8] [--concurrency 8]

For each size of the KV pool a server is started, and every workload is run through `rt.Endpoint` and as concurrent
requests to `/v1/chat/completions`, in turn, the cache emptied before each. Tokens are the server's own counts; p50 and
p95 are of the seconds from the begin of a program to its end, over all rounds. The last columns compare the hit rate
with that of the best offline cache of the pool's size, on the trace of the language's run. Nothing here asserts a time.
"""

import argparse
import asyncio
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean, median, quantiles
from tempfile import TemporaryDirectory

import httpx

import radixrt as rt
from benchmarks.common import machine
from benchmarks.common.metrics import read_metrics
from benchmarks.common.servers import served_model, started
from benchmarks.common.tables import table
from benchmarks.programs.measure import Side, measured
from benchmarks.programs.optimal_cache import Traced, best_hit_rate
from benchmarks.programs.workloads import CONCURRENCY, NAMES, POOL, RUNS, Ask, Messages, Workload, workloads
from radixrt.lang.observe.run_log import Event, Record, RunLog, observe


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.programs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", action="append", choices=NAMES, help="may be repeated; default: all")
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of each program")
    parser.add_argument("--concurrency", type=int, default=CONCURRENCY, help="runs at once")
    parser.add_argument("--cache", type=int, nargs="+", default=[POOL], help="sizes of the KV pool in tokens")
    parser.add_argument("--rounds", type=int, default=5, help="times that each side runs")
    parser.add_argument("--options", default="", help="further options of `radixrt launch`")
    return parser.parse_args(argv)


# --- in the language ---


def in_language(
    url: str, workload: Workload, trace: list[Traced], seconds: list[float], latencies: list[float] | None = None
) -> None:
    """Run all programs; `trace` becomes their calls in order of admission, their times are added to `seconds`, and the
    times of their calls to `latencies`."""
    logs: dict[str, RunLog] = {}

    def note(log: RunLog, event: Event, record: Record | None) -> None:
        logs.setdefault(log.program, log)

    stop = observe(note)
    try:
        items = workload.function.batch(
            workload.items,
            backend=rt.Endpoint(url),
            sampling={"temperature": 0, "ignore_eos": True},
            concurrency=workload.concurrency,
            progress=False,
        )
    finally:
        stop()
    for item in items:
        if item.exception is not None:
            raise item.exception
    seconds += [log.end - log.start for log in logs.values() if log.end is not None]
    calls = [call for log in logs.values() for call in log.calls if call.same_as is None]
    calls.sort(key=lambda call: call.admitted or call.start or 0.0)
    if latencies is not None:
        latencies += [call.end - call.start for call in calls if call.end is not None and call.start is not None]
    trace[:] = [Traced(call.prompt_ids or (), call.output_ids or ()) for call in calls]


# --- plainly ---


def plainly(url: str, workload: Workload, seconds: list[float], latencies: list[float] | None = None) -> None:
    """Run all programs; their times are added to `seconds`, and the times of their calls to `latencies`."""
    asyncio.run(_plainly(url, workload, seconds, latencies))


async def _plainly(url: str, workload: Workload, seconds: list[float], latencies: list[float] | None) -> None:
    model = served_model(url)
    slots = asyncio.Semaphore(workload.concurrency)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=600.0, limits=limits) as http:
        ask = _asker(http, model, [] if latencies is None else latencies)

        async def one(item: dict[str, object]) -> None:
            async with slots:
                begin = time.perf_counter()
                await workload.plain(ask, **item)
                seconds.append(time.perf_counter() - begin)

        await asyncio.gather(*(one(item) for item in workload.items))


def _asker(http: httpx.AsyncClient, model: str, latencies: list[float]) -> Ask:
    async def ask(messages: Messages, max_tokens: int) -> str:
        begin = time.perf_counter()
        body = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        answer = await http.post("/v1/chat/completions", json=body)
        answer.raise_for_status()
        latencies.append(time.perf_counter() - begin)
        return str(answer.json()["choices"][0]["message"]["content"])

    return ask


# --- the whole ---


def compare(url: str, workload: Workload, rounds: int, cache: int) -> tuple[float, list[str]]:
    """One row of the table, and the ratio of the wall times."""
    sides: dict[str, list[Side]] = {"plain": [], "language": []}
    seconds: dict[str, list[float]] = {"plain": [], "language": []}
    trace: list[Traced] = []
    for _ in range(rounds):
        sides["plain"].append(measured(url, lambda: plainly(url, workload, seconds["plain"])))
        sides["language"].append(measured(url, lambda: in_language(url, workload, trace, seconds["language"])))
    best, distinct = best_hit_rate(trace, cache)
    both = (sides["plain"], sides["language"])

    def middle(each: list[Side], of: Callable[[Side], float]) -> float:
        return median(of(side) for side in each)

    walls = [middle(each, lambda side: side.wall) for each in both]
    hits = [middle(each, lambda side: side.hit_rate) for each in both]
    row = [
        workload.name,
        str(cache),
        str(distinct),
        *(f"{wall:.1f}" for wall in walls),
        f"{walls[0] / walls[1]:.2f}",
        *(f"{median(each):.2f}" for each in seconds.values()),
        *(f"{quantiles(each, n=20)[-1]:.2f}" for each in seconds.values()),
        *(f"{middle(each, lambda side: side.computed) / 1e3:.1f}" for each in both),
        *(f"{hit:.1%}" for hit in hits),
        f"{best:.1%}",
        f"{hits[1] / best if best else 1.0:.1%}",
    ]
    return walls[0] / walls[1], row


def step_model(url: str) -> str:
    """The server's fitted model of step times, as `benchmarks.programs.simulated` takes it."""
    found = read_metrics(url)
    parts = ("step", "row", "context", "extend", "token", "pair")
    return ",".join(f"{part}={found[f'radixrt_step_model_seconds:{part}']:.3g}" for part in parts)


COLUMNS = (
    "program", "pool", "distinct tokens", "plain s", "language s", "plain / language", "p50 plain", "p50", "p95 plain",
    "p95", "computed k plain", "computed k", "hit rate plain", "hit rate", "offline best", "of the best",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    print("; ".join(f"{name}: {value}" for name, value in machine.facts().items()), flush=True)
    names = args.workload or list(NAMES)
    rows: list[list[str]] = []
    means: list[str] = []
    models: list[str] = []
    for cache in args.cache:
        ratios = []
        with TemporaryDirectory() as folder:
            command = f"{shlex.quote(sys.executable)} -m radixrt launch --port {{port}} --kv-cache-tokens {cache}"
            with started(f"{command} {args.options}", Path(folder) / "server.log", 120.0, 10.0) as server:
                for workload in workloads(names, args.runs, args.concurrency, seed=1):
                    ratio, row = compare(server.url, workload, args.rounds, cache)
                    ratios.append(ratio)
                    rows.append(row)
                    print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
                    models.append(f"pool of {cache}, after {workload.name}: --times {step_model(server.url)}")
        means.append(f"pool of {cache}: plain / language {geometric_mean(ratios):.2f} on geometric average")
    print(f"\n{args.runs} runs of each program, {args.concurrency} at once; median of {args.rounds} rounds\n")
    print(table(COLUMNS, rows))
    print("\n" + "\n".join(means))
    print("\nmodels of step times that the server has fitted, for benchmarks.programs.simulated:\n" + "\n".join(models))
    return 0


if __name__ == "__main__":
    sys.exit(main())
