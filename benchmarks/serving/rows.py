"""Table "A GGUF file beside llama.cpp" of docs/benchmarks.md: servers in turn, by the number of rows in a step.

    python -m benchmarks.serving.rows --rounds 3 --rows 1 8 \\
        --server 'radixrt=radixrt launch --model FILE.gguf --num-threads 2 --port {port}' \\
        --server 'llama.cpp=llama-server -m FILE.gguf -t 2 -np 8 -c 8192 --port {port}'

Each round starts every server once, warms it, and sends unique prompts, greedy and without an end: for each number of
rows, so many requests at once of a short prompt and many output tokens; then prompts alone, one at a time. All servers
get the same text in a round, and another one in the next. Figures are medians of rounds: milliseconds between two
tokens of a request (TPOT), output tokens a second of all rows, prompt tokens a second. No speed is asserted.
"""

import argparse
import asyncio
import json
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.common import machine
from benchmarks.common.servers import ServerError, served_model, started
from benchmarks.common.tables import table
from benchmarks.serving.__main__ import named
from benchmarks.serving.client import run_workload
from benchmarks.serving.report import Summary, summarise
from benchmarks.serving.workloads import UniqueShape, Workload, build

SHORT_PROMPT, LONG_PROMPT = 32, 512
PROMPTS = 6
WAVES = 2
"""Times that each row of a step is taken by a new request."""


@dataclass(frozen=True)
class Round:
    """One server in one round.

    Attributes:
        decode: the summary for each number of rows.
        prefill: of prompts with one output token.
        pss: MiB of the server's processes afterwards; a page that two processes share counts once.
    """

    server: str
    number: int
    ready: float
    pss: float
    decode: dict[int, Summary] = field(default_factory=dict)
    prefill: Summary | None = None


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving.rows", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--server", action="append", type=named, required=True, metavar="NAME=COMMAND")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8], help="requests at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=int, default=96, help="output tokens of a request")
    parser.add_argument("--seed", type=int, help="of the first round's text (default: a new one)")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds for one number of rows")
    parser.add_argument("--ready-limit", type=float, default=300.0)
    parser.add_argument("--json-out", type=Path, metavar="FILE", help="all figures")
    return parser.parse_args(argv)


def shape(rows: int, output: int) -> UniqueShape:
    return UniqueShape(WAVES * rows, SHORT_PROMPT, output, rows)


def measure(url: str, job: Workload, limit_s: float) -> Summary:
    """Run a workload on a server that is ready. Raises ServerError if a request fails."""
    cpu = time.process_time()
    wall, outcomes = asyncio.run(run_workload(url, served_model(url), job, limit_s))
    summary = summarise(job, wall, outcomes, time.process_time() - cpu)
    if summary.errors:
        raise ServerError(f"{len(summary.errors)} of {summary.requests} requests failed: {summary.errors[0]}")
    return summary


def run_round(args: argparse.Namespace, name: str, command: str, number: int, seed: int, log: Path) -> Round:
    with started(command, log, args.ready_limit, grace_s=15.0) as server:
        measure(server.url, build("unique", -1, unique=shape(max(args.rows), 8)), args.time_limit)  # warm
        decode = {
            rows: measure(server.url, build("unique", seed + rows, unique=shape(rows, args.output)), args.time_limit)
            for rows in args.rows
        }
        prompts = build("unique", seed, unique=UniqueShape(PROMPTS, LONG_PROMPT, 1, 1))
        prefill = measure(server.url, prompts, args.time_limit)
        return Round(name, number, server.ready_seconds, machine.tree_memory(server.pid).pss, decode, prefill)


def report(rounds: Sequence[Round]) -> str:
    """A row for each server: medians of its rounds."""
    counts = list(rounds[0].decode)
    header = ["server", *(f"{n} rows: TPOT ms, tok/s" for n in counts), "prompt tok/s", "ready s", "PSS MiB"]
    lines = []
    for name in dict.fromkeys(each.server for each in rounds):
        own = [each for each in rounds if each.server == name]
        cells = [
            f"{1e3 * median(each.decode[n].tpot[0] for each in own):.1f},"
            f" {median(each.decode[n].output_rate for each in own):.0f}"
            for n in counts
        ]
        prompt_rate = median(each.prefill.prompt_rate for each in own if each.prefill is not None)
        others = f"{prompt_rate:.0f}", f"{median(each.ready for each in own):.1f}"
        lines.append([name, *cells, *others, f"{median(each.pss for each in own):.0f}"])
    return table(header, lines)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = secrets.randbelow(1 << 32) if args.seed is None else args.seed
    facts = machine.facts()
    print("; ".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
    folder = Path(tempfile.mkdtemp(prefix="serving-rows-"))
    rounds = []
    try:
        for r in range(args.rounds):
            for name, command in args.server:
                log = folder / f"{name.replace('/', '_')}-{r}.log"
                rounds.append(run_round(args, name, command, r, seed + 100 * r, log))
                print(f"round {r}\n{report(rounds[-1:])}", flush=True)
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"\nMedians of {args.rounds} rounds, seed {seed}\n\n{report(rounds)}")
    if args.json_out:
        record = {"machine": facts, "arguments": vars(args), "seed": seed, "rounds": [asdict(each) for each in rounds]}
        args.json_out.write_text(json.dumps(record, indent=1, default=str) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
