"""Table "Start" of docs/cpu.md: from the command `radixrt launch` until the server answers.

    python -m benchmarks.serving.start [--starts 5] [--cold] [--options '--dtype float32']

With --cold, each start converts the model; kernels that were compiled before are kept, as a wheel brings them. Columns:
seconds until /health answers, and the processor time of each process until then, in seconds, which other work on the
machine changes less. No time is asserted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.common import machine
from benchmarks.common.servers import started
from benchmarks.common.tables import table
from benchmarks.soak.samples import process_name
from radixrt.models.loading.source import cache_folder
from radixrt.os_process import read_stat

PROCESSES = ("main", "tokenizer", "scheduler", "runner", "grammar compilers")
READY_LIMIT_S = 600.0


def cpu_seconds(root: int) -> dict[str, float]:
    """Return the processor time of a server's processes so far, by their names."""
    found = dict.fromkeys(PROCESSES, 0.0)
    for pid in machine.tree(root):
        stat = read_stat(pid)
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        name = process_name(words, is_main=pid == root)
        if stat is not None and name in found:
            found[name] += stat.cpu_s
    return found


def start_once(options: str, folder: Path) -> tuple[float, dict[str, float]]:
    """Start and stop a server; return its seconds until it answered, and `cpu_seconds`."""
    command = f"{sys.executable} -m radixrt launch --port {{port}} {options}"
    with started(command, folder / "log", READY_LIMIT_S, 15.0) as server:
        return server.ready_seconds, cpu_seconds(server.pid)


def row(name: str, ready: float, cpu: dict[str, float]) -> list[str]:
    return [name, f"{ready:.1f}", *(f"{cpu[process]:.2f}" for process in PROCESSES), f"{sum(cpu.values()):.2f}"]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="each start converts the model")
    parser.add_argument("--options", default="", help="of `radixrt launch`")
    args = parser.parse_args(argv)
    print("; ".join(f"{name}: {value}" for name, value in machine.facts().items()), flush=True)
    found, kernels = [], cache_folder() / "kernels"
    for _ in range(args.starts):
        with tempfile.TemporaryDirectory(prefix="start-") as folder:
            if args.cold:
                os.environ["RADIXRT_CACHE"] = f"{folder}/cache"
                shutil.copytree(kernels, f"{folder}/cache/kernels")
            found.append(start_once(args.options, Path(folder)))
    rows = [row(str(i + 1), *each) for i, each in enumerate(found)]
    medians = {process: median(cpu[process] for _, cpu in found) for process in PROCESSES}
    rows.append(row("median", median(ready for ready, _ in found), medians))
    print(table(["start", "ready s", *PROCESSES, "sum"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
