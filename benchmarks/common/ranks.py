"""Run a benchmark as several ranks, each a process of its own."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from radixrt.distributed.rank_info import RankInfo

WAIT_S = 600.0


def add_arguments(parser: argparse.ArgumentParser, ranks: int) -> None:
    """Add --ranks, with its default, and the options that `run_on_ranks` passes to each rank."""
    parser.add_argument("--ranks", type=int, default=ranks, help="GPUs that share the model")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)


def run_on_ranks(module: str, ranks: int, given: Sequence[str]) -> int:
    """Start the module once for each rank, with --rank and --store behind the given arguments; returns the worst exit
    status."""
    with tempfile.TemporaryDirectory() as folder:
        started = [
            subprocess.Popen([sys.executable, "-m", module, *given, f"--store={folder}/store", f"--rank={rank}"])
            for rank in range(ranks)
        ]
        try:
            while any(process.poll() is None for process in started):
                if any(process.poll() for process in started):
                    break  # the others would wait for it
                time.sleep(0.05)
            return max((process.poll() or 0 for process in started), key=abs)
        finally:
            for process in started:
                process.kill()


def rank_info_of(args: argparse.Namespace, *, one_shot: bool) -> RankInfo:
    """The rank_info of this process among the ranks."""
    return RankInfo(args.rank, args.ranks, args.rank, args.ranks, args.store, WAIT_S, one_shot)
