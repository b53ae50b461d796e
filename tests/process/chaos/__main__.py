"""`python -m tests.process.chaos --kills 1000`: faults on a server with a tiny model, and their table."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.process.chaos.campaign import Campaign, Result, start_server, watched_folders
from tests.process.chaos.faults import Fault
from tests.process.chaos.report import report
from tests.tiny_models import make_tiny_model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no fault after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=6, help="requests that are sent at a time")
    parser.add_argument("--tp", type=int, default=1, help="ranks of the ModelRunner")
    parser.add_argument("--replicas", type=int, default=0, help="engines behind a router; 0: one without a router")
    arguments = parser.parse_args()
    started = time.monotonic()

    def progress(number: int, fault: Fault) -> None:
        print(
            f"{time.monotonic() - started:7.1f} s  {number:4d}  {fault.signal.name} to the {fault.process}, "
            f"{len(fault.open_requests)} open: {fault.recovery_s:.2f} s",
            file=sys.stderr, flush=True,
        )  # fmt: skip

    folders = Result()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder  # apart from other engines' files
        model = make_tiny_model(Path(folder) / "model", max_position_embeddings=2048)
        with watched_folders(folders):
            behind_router = ("--replicas", str(arguments.replicas)) if arguments.replicas else ()
            server = start_server(model, "--tp", str(arguments.tp), *behind_router)
            try:
                campaign = Campaign(
                    server, seed=arguments.seed, clients=arguments.clients, replicas=arguments.replicas > 0
                )  # fmt: skip
                result = campaign.run(arguments.kills, limit_s=60 * arguments.minutes, on_fault=progress)
            finally:
                if server.process.poll() is None:
                    server.stop()
    result.leftovers += folders.leftovers
    print(report(result))
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
