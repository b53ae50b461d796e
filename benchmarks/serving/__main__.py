"""Tables "Serving SmolLM2-135M on two cores" and "What the cache costs when it never hits" of docs/benchmarks.md.

Load generator for OpenAI-compatible servers: workloads over HTTP, streamed, greedy. One server that runs already:

    python -m benchmarks.serving --url http://127.0.0.1:8000 --workload tree

Two servers in turn, A B A B, each started, warmed by one request, measured and stopped:

    python -m benchmarks.serving --rounds 2 --json-out runs.json \\
        --server 'radixrt=radixrt launch MODEL --port {port}' --server 'vllm=/tmp/peers/run_vllm.sh {port}'

Round r uses the text of seed + r for every server, so nothing is warm and servers are compared on the same prompts.
Prompt lengths come from a fixed ratio of tokens to words (see radixrt/bench/words.py), never from the server, so
that two servers get the same text; the token counts in the tables are each server's own `usage`. No speed is asserted.
"""

import argparse
import asyncio
import json
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.common import machine
from benchmarks.common.servers import ServerError, served_model, started
from benchmarks.serving import workloads
from benchmarks.serving.client import run_workload
from benchmarks.serving.report import Run, Summary, comparison, resources, run_header, run_row, summarise
from benchmarks.serving.workloads import UniqueShape, Workload
from radixrt.bench.words import TOKENS_PER_WORD

WARM_UP_TOKENS = 8


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--url", help="a running server, with or without /v1 at the end")
    target.add_argument("--server", action="append", type=named, metavar="NAME=COMMAND", help="to start; has {port}")
    parser.add_argument("--model", help="model name to ask for (default: the first that the server lists)")
    parser.add_argument(
        "--workload", action="append", choices=workloads.NAMES, help="may be repeated (default: all but unique)"
    )
    parser.add_argument("--rounds", type=int, default=1, help="times each server runs the workloads")
    parser.add_argument("--seed", type=int, help="seed of the first round's text (default: a new one)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of each workload's conversations, to try things"
    )
    parser.add_argument("--warmup", type=int, default=1, help="requests before the first workload")
    parser.add_argument("--tokens-per-word", type=float, default=TOKENS_PER_WORD, help="ratio that sets prompt lengths")
    parser.add_argument("--time-limit", type=float, default=600.0, help="seconds for one workload; the rest are errors")
    parser.add_argument("--ready-limit", type=float, default=300.0, help="seconds for a server to get ready")
    parser.add_argument("--grace", type=float, default=15.0, help="seconds from SIGTERM to SIGKILL")
    parser.add_argument("--log-dir", type=Path, help="where the output of started servers goes (default: a new folder)")
    parser.add_argument("--json-out", type=Path, metavar="FILE", help="all figures")
    shape = UniqueShape()
    parser.add_argument("--unique-requests", type=int, default=shape.requests)
    parser.add_argument("--unique-tokens", type=int, default=shape.tokens, help="own tokens of each prompt of `unique`")
    parser.add_argument("--unique-output", type=int, default=shape.max_tokens, help="output tokens of each")
    parser.add_argument("--unique-concurrency", type=int, default=shape.concurrency)
    return parser.parse_args(argv)


def named(text: str) -> tuple[str, str]:
    name, equals, command = text.partition("=")
    if not (name and equals and command.strip()):
        raise argparse.ArgumentTypeError("wanted NAME=COMMAND")
    return name, command


def make_workloads(args: argparse.Namespace, seed: int) -> list[Workload]:
    unique = UniqueShape(args.unique_requests, args.unique_tokens, args.unique_output, args.unique_concurrency)
    names = args.workload or workloads.STANDARD
    return [workloads.build(name, seed, args.tokens_per_word, unique).scaled(args.scale) for name in names]


def measure(url: str, model: str | None, jobs: Sequence[Workload], warm_ups: int, limit_s: float) -> list[Summary]:
    """Runs the workloads one after another on a server that is ready, printing a row for each."""
    model = model or served_model(url)
    for i in range(warm_ups):
        asyncio.run(_warm_up(url, model, seed=-1 - i, limit_s=limit_s))
    print(run_header(), flush=True)
    summaries = []
    for job in jobs:
        cpu = time.process_time()
        wall, outcomes = asyncio.run(run_workload(url, model, job, limit_s))
        summary = summarise(job, wall, outcomes, time.process_time() - cpu)
        summaries.append(summary)
        print(run_row(summary), flush=True)
        for error in dict.fromkeys(summary.errors):
            print(f"  error x{summary.errors.count(error)}: {error}", file=sys.stderr)
    return summaries


async def _warm_up(url: str, model: str, seed: int, limit_s: float) -> None:
    """One short request of text that no round has."""
    job = replace(workloads.build("single", seed).scaled(0), max_tokens=WARM_UP_TOKENS)
    _, outcomes = await run_workload(url, model, job, limit_s)
    if outcomes[0].error is not None:
        raise ServerError(f"the warm-up request failed: {outcomes[0].error}")


def run_running(args: argparse.Namespace, seed: int) -> Iterator[Run]:
    for r in range(args.rounds):
        print(f"\n{args.url}, round {r}, seed {seed + r}", flush=True)
        summaries = measure(args.url, args.model, make_workloads(args, seed + r), args.warmup, args.time_limit)
        yield Run(args.url, r, seed + r, summaries=summaries)


def run_started(args: argparse.Namespace, seed: int) -> Iterator[Run]:
    folder: Path = args.log_dir or Path(tempfile.mkdtemp(prefix="serving-logs-"))
    folder.mkdir(parents=True, exist_ok=True)
    for r in range(args.rounds):
        jobs = make_workloads(args, seed + r)
        for name, command in args.server:
            log = folder / f"{name.replace('/', '_')}-{r}.log"
            print(f"\n{name}, round {r}, seed {seed + r}, log {log}", flush=True)
            with started(command, log, args.ready_limit, args.grace) as server:
                print(f"ready after {server.ready_seconds:.1f} s", flush=True)
                summaries = measure(server.url, args.model, jobs, args.warmup, args.time_limit)
                memory = machine.tree_memory(server.pid)
            print(f"memory of {memory.processes} processes: RSS {memory.rss:.0f}, PSS {memory.pss:.0f} MiB", flush=True)
            yield Run(name, r, seed + r, server.ready_seconds, memory, summaries)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = secrets.randbelow(1 << 32) if args.seed is None else args.seed
    facts = machine.facts()
    print("; ".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
    runs: list[Run] = []
    failed = False
    try:
        for run in run_running(args, seed) if args.url else run_started(args, seed):
            runs.append(run)
    except ServerError as exc:
        failed = True
        print(exc, file=sys.stderr)
    if len(runs) > 1:
        print(f"\nMedians of {args.rounds} rounds\n\n{comparison(runs)}")
    if extra := resources(runs):
        print(f"\n{extra}")
    if args.json_out:
        record = {"machine": facts, "arguments": vars(args), "seed": seed, "runs": [asdict(run) for run in runs]}
        args.json_out.write_text(json.dumps(record, indent=1, default=str) + "\n")
    return int(failed or any(summary.errors for run in runs for summary in run.summaries))


if __name__ == "__main__":
    sys.exit(main())
