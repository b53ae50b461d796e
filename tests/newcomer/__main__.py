"""A newcomer's first hour, timed: commands of the documents, every example, first calls of clients, tools.

    python -m tests.newcomer [--seeds 8] [--rounds 100] [--limit-s 60] [--only command example call tool]

Starts one server on the embedded model and prints a line for each step that fails or takes longer than the limit, and
a table of the kinds. Run it on a quiet machine: all of it takes half an hour on two cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.common.servers import free_port
from tests.newcomer.steps import Outcome, Step, calls, commands, examples, perform, tools
from tests.server_process import ServerProcess

KINDS = ("command", "example", "call", "tool")
MODEL = "smollm2-135m-instruct"


def steps(url: str, folder: Path, kinds: list[str], seeds: int, rounds: int) -> Iterator[Step]:
    """Yield the steps of some kinds."""
    if "command" in kinds:
        yield from commands(url, folder, free_port())
    if "example" in kinds:
        yield from examples(url, folder)
    if "call" in kinds:
        yield from calls(url, MODEL, seeds)
    if "tool" in kinds:
        yield from tools(url, MODEL, rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8, help="times that each client calls")
    parser.add_argument("--rounds", type=int, default=100, help="calls of a tool by each client")
    parser.add_argument("--limit-s", type=float, default=60.0, help="seconds that a step may take")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    args = parser.parse_args()
    outcomes: list[Outcome] = []
    server = ServerProcess().wait_ready()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for step in steps(server.url, Path(folder), args.only, args.seeds, args.rounds):
                outcome = perform(step)
                outcomes.append(outcome)
                if outcome.wrong or outcome.seconds > args.limit_s:
                    print(f"{step.kind} {step.name}: {outcome.seconds:.1f} s {outcome.wrong}", flush=True)
    finally:
        server.stop()
    for kind in args.only:
        found = [each for each in outcomes if each.step.kind == kind]
        seconds = [each.seconds for each in found] or [0.0]
        good = sum(not each.wrong for each in found)
        print(f"{kind:8} {good} of {len(found)} good; median {median(seconds):.1f} s, longest {max(seconds):.1f} s")
    return int(any(each.wrong or each.seconds > args.limit_s for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
