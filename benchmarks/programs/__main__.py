"""Table "Programs" of docs/benchmarks.md: programs in the frontend language and the same calls made plainly.

    python -m benchmarks.programs [--runs 8] [--concurrency 8] [--cache 32768 4096] [--rounds 2]

For each size of the KV pool a server is started, and every workload is run through `rt.Endpoint` and as concurrent
requests to `/v1/chat/completions`, in turn, the cache emptied before each. Tokens are the server's own counts. The last
columns compare the hit rate with that of the best offline cache of the pool's size, on the trace of the language's run.
Nothing here asserts a time.
"""

import argparse
import asyncio
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import httpx

import radixrt as rt
from benchmarks.common import machine
from benchmarks.common.servers import served_model, started
from benchmarks.common.tables import table
from benchmarks.programs.measure import Side, measured
from benchmarks.programs.optimal_cache import Traced, best_hit_rate
from benchmarks.programs.workloads import NAMES, Ask, Messages, Workload, workloads
from radixrt.lang.observe.run_log import Event, Record, RunLog, observe


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.programs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", action="append", choices=NAMES, help="may be repeated; default: all")
    parser.add_argument("--runs", type=int, default=8, help="runs of each program")
    parser.add_argument("--concurrency", type=int, default=8, help="runs at once")
    parser.add_argument("--cache", type=int, nargs="+", default=[32768, 4096], help="sizes of the KV pool in tokens")
    parser.add_argument("--rounds", type=int, default=2, help="times that each side runs")
    parser.add_argument("--options", default="", help="further options of `radixrt launch`")
    return parser.parse_args(argv)


# --- in the language ---


def in_language(url: str, workload: Workload, trace: list[Traced]) -> None:
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
    calls = [call for log in logs.values() for call in log.calls]
    calls.sort(key=lambda call: call.admitted or call.start or 0.0)
    trace[:] = [Traced(call.prompt_ids or (), call.output_ids or ()) for call in calls]


# --- plainly ---


def plainly(url: str, workload: Workload) -> None:
    asyncio.run(_plainly(url, workload))


async def _plainly(url: str, workload: Workload) -> None:
    model = served_model(url)
    slots = asyncio.Semaphore(workload.concurrency)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=600.0, limits=limits) as http:
        ask = _asker(http, model)

        async def one(item: dict[str, object]) -> None:
            async with slots:
                await workload.plain(ask, **item)

        await asyncio.gather(*(one(item) for item in workload.items))


def _asker(http: httpx.AsyncClient, model: str) -> Ask:
    async def ask(messages: Messages, max_tokens: int) -> str:
        body = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        answer = await http.post("/v1/chat/completions", json=body)
        answer.raise_for_status()
        return str(answer.json()["choices"][0]["message"]["content"])

    return ask


# --- the whole ---


def compare(url: str, workload: Workload, rounds: int, cache: int) -> list[str]:
    """One row of the table."""
    sides: dict[str, list[Side]] = {"plain": [], "language": []}
    trace: list[Traced] = []
    for _ in range(rounds):
        sides["plain"].append(measured(url, lambda: plainly(url, workload)))
        sides["language"].append(measured(url, lambda: in_language(url, workload, trace)))
    best, distinct = best_hit_rate(trace, cache)
    plain, language = sides["plain"], sides["language"]

    def middle(each: list[Side], of: Callable[[Side], float]) -> float:
        return median(of(side) for side in each)

    hits = middle(language, lambda side: side.hit_rate)
    return [
        workload.name,
        str(cache),
        str(distinct),
        *(f"{middle(each, lambda side: side.wall):.1f}" for each in (plain, language)),
        f"{middle(plain, lambda side: side.wall) / middle(language, lambda side: side.wall):.2f}",
        *(f"{middle(each, lambda side: side.computed) / 1e3:.1f}" for each in (plain, language)),
        *(f"{middle(each, lambda side: side.hit_rate):.1%}" for each in (plain, language)),
        f"{best:.1%}",
        f"{hits / best if best else 1.0:.1%}",
    ]


COLUMNS = (
    "program", "pool", "distinct tokens", "plain s", "language s", "plain / language", "computed k plain", "language",
    "hit rate plain", "language", "offline best", "of the best",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    print("; ".join(f"{name}: {value}" for name, value in machine.facts().items()), flush=True)
    names = args.workload or list(NAMES)
    rows: list[list[str]] = []
    for cache in args.cache:
        with TemporaryDirectory() as folder:
            command = f"{shlex.quote(sys.executable)} -m radixrt launch --port {{port}} --kv-cache-tokens {cache}"
            with started(f"{command} {args.options}", Path(folder) / "server.log", 120.0, 10.0) as server:
                for workload in workloads(names, args.runs, args.concurrency, seed=1):
                    rows.append(compare(server.url, workload, args.rounds, cache))
                    print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    print(f"\n{args.runs} runs of each program, {args.concurrency} at once; median of {args.rounds} rounds\n")
    print(table(COLUMNS, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
