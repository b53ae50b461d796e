"""Table "A soak" of docs/operations.md.

A server under a full mixed load for some minutes: plain, streamed, constrained, tools, n > 1, scored choices and
programs of the frontend language; clients that leave; input that is wrong. Prints the memory and the file descriptors
of each process and the slots of the KV pool over time, plots, and a verdict. Exit code 0 if all is flat and nothing
leaks.

    python -m benchmarks.soak --minutes 30 --svg soak.svg

It stops by itself. Growth is the Theil-Sen slope over the second half of the time.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import machine
from benchmarks.common.metrics import wait_idle
from benchmarks.common.servers import RunningServer, started
from benchmarks.soak import report
from benchmarks.soak.load import Tally, run_load
from benchmarks.soak.samples import Sample, watch

MAX_MINUTES = 600.0
SAMPLES = 360
"""Samples of one soak, at most; never more than one in a second."""

IDLE_LIMIT_S = 120.0
SERVER = f"{sys.executable} -m radixrt launch --port {{port}} --kv-cache-tokens 16384 --log-level warning"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help=f"time under load, at most {MAX_MINUTES:g}")
    parser.add_argument("--clients", type=int, default=16, help="requests that are open at once")
    parser.add_argument("--programs", type=int, default=2, help="programs that run at once, beside them")
    parser.add_argument("--seed", type=int, default=0, help="seed of the requests")
    parser.add_argument("--server", default=SERVER, metavar="COMMAND", help="to start; has {port}")
    parser.add_argument("--pss", action="store_true", help="count memory that processes share once, as for host tiers")
    parser.add_argument("--svg", type=Path, help="file for the plot of the memory")
    parser.add_argument("--log", type=Path, help="file for the server's output (default: a temporary one)")
    args = parser.parse_args(argv)
    if not 0 < args.minutes <= MAX_MINUTES:
        parser.error(f"--minutes must be above 0 and at most {MAX_MINUTES:g}")
    if args.clients < 1 or args.programs < 0:
        parser.error("--clients must be at least 1, and --programs at least 0")
    return args


async def soak(server: RunningServer, args: argparse.Namespace) -> tuple[list[Sample], Tally, bool]:
    """Return the samples, the last one after the load; the tally; and whether the server was idle at the end."""
    samples: list[Sample] = []
    seconds = args.minutes * 60
    watching = asyncio.create_task(watch(server.url, server.pid, samples, max(1.0, seconds / SAMPLES), pss=args.pss))
    tally = await run_load(server.url, clients=args.clients, programs=args.programs, seconds=seconds, seed=args.seed)
    idle = await wait_idle(server.url, IDLE_LIMIT_S)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    after: list[Sample] = []
    last = asyncio.create_task(watch(server.url, server.pid, after, 0.1, pss=args.pss))
    while not after:
        await asyncio.sleep(0.05)
    last.cancel()
    return [*samples, Sample(samples[-1].seconds + 1, after[0].rss, after[0].fds, after[0].slots)], tally, idle


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    for name, value in machine.facts().items():
        print(f"{name}: {value}")
    with tempfile.TemporaryDirectory() as folder:
        log = args.log or Path(folder) / "server.log"
        with started(args.server, log, 300.0, 30.0) as server:
            samples, tally, idle = asyncio.run(soak(server, args))
        errors = [line for line in log.read_text(errors="replace").splitlines() if " ERROR " in line]
    if args.svg is not None:
        report.plot(args.svg, samples)
    judged = report.verdicts(samples, tally, idle=idle)
    parts = [report.tally_table(tally), report.timeline(samples), report.text_plot(samples)]
    print("\n" + "\n\n".join(parts) + "\n")
    for line in [*tally.broken, *errors[-10:]]:
        print(line)
    for holds, line in judged:
        print(f"{'flat' if holds else 'NOT FLAT'}: {line}")
    return 0 if all(holds for holds, _ in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
