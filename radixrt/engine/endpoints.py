"""Names of the worker processes of one engine, and the addresses and files through which they meet."""

from __future__ import annotations

import os
import time
from pathlib import Path

from radixrt.config import Config
from radixrt.engine.settings import EngineSettings
from radixrt.errors import EngineError

NAMES = {"tokenizer": "tokenizer", "router": "router", "scheduler": "scheduler", "runner": "ModelRunner"}
FRONT_KINDS = ("tokenizer", "router")
"""Kinds of the processes that replicas share."""

MISTAKE = 2
"""Exit code of a worker that cannot start because an option or the model is at fault."""


def process_kinds(config: Config, settings: EngineSettings) -> tuple[str, ...]:
    """Kinds of the processes to start for an engine without replicas: keys of `NAMES`, with a rank for runners if there
    are several."""
    if settings.num_ranks == 1:
        return ("tokenizer", "scheduler", "runner")
    here = 1 if config.executor.executor == "external" else settings.num_ranks
    return ("tokenizer", "scheduler", *(f"runner-{rank}" for rank in range(here)))


def replica_kinds(config: Config, settings: EngineSettings) -> tuple[str, ...]:
    """Kinds of the processes of one replica."""
    return tuple(kind for kind in process_kinds(config, settings) if kind not in FRONT_KINDS)


def process_name(kind: str, replica: int | None = None) -> str:
    """Return the display name of a process, e.g. "ModelRunner 1", or "replica 0 scheduler"."""
    base, _, rank = kind.partition("-")
    owner = "" if replica is None else f"replica {replica} "
    return f"{owner}{NAMES[base]} {rank}".rstrip()


def is_runner(kind: str) -> bool:
    return kind.startswith("runner")


class Endpoints:
    """Addresses (ipc://) and files of one engine, all in its private folder.

    Sockets belong to one epoch of the supervisor: nothing that was sent to a process reaches its successor.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def of(self, name: str, epoch: int) -> str:
        """Inbox of main, the tokenizer, the router or the scheduler."""
        return f"ipc://{self.folder}/{name}.{epoch}"

    def runner(self, rank: int, epoch: int) -> str:
        """Inbox of a rank."""
        return self.of(f"runner-{rank}", epoch)

    def answers(self, epoch: int) -> str:
        """Inbox of the scheduler for the ranks."""
        return self.of("answers", epoch)

    def replies(self, epoch: int) -> str:
        """Inbox of the router for replicas."""
        return self.of("replies", epoch)

    @property
    def masks(self) -> str:
        """File that the scheduler and the runners map to share grammar masks; the supervisor keeps it in memory."""
        return f"{self.folder}/masks"

    @property
    def images(self) -> str:
        """Folder of the tokenizer's files with pixels of images."""
        return f"{self.folder}/images"

    @property
    def image_links(self) -> str:
        """Folder of the scheduler's own names of these files."""
        return f"{self.folder}/image_links"

    @property
    def heartbeats(self) -> str:
        """File of `radixrt.heartbeat`."""
        return f"{self.folder}/heartbeats"

    @property
    def arena(self) -> str:
        """Prefix of the files with the host tier's keys and values, one for each rank (`kv_moves.arena_path`)."""
        return f"{self.folder}/arena"

    @property
    def page_records(self) -> str:
        """File with the records of the host tier's pages."""
        return f"{self.folder}/page_records"

    def ranks(self, epoch: int) -> str:
        """File of the rendezvous of this machine's runners."""
        return f"{self.folder}/ranks.{epoch}"

    def write_cluster_host(self, host: str) -> None:
        """Store the address at which a Ray cluster's nodes reach this machine. The process that speaks with Ray knows
        the address, and the scheduler reads it from a file in the engine's folder."""
        # The file gets its name when it is complete, so that a reader never sees a part of the address.
        Path(f"{self._cluster_host}.new").write_text(host, encoding="utf-8")
        os.rename(f"{self._cluster_host}.new", self._cluster_host)

    def read_cluster_host(self, timeout_s: float) -> str:
        """Wait for the address that `write_cluster_host` stores, and return it.

        Raises:
            EngineError: the address was not stored within timeout_s.
        """
        deadline = time.monotonic() + timeout_s
        while not Path(self._cluster_host).exists():
            if time.monotonic() > deadline:
                raise EngineError(f"the cluster had no place for the ranks within {timeout_s:g} s (start_timeout_s)")
            time.sleep(0.01)
        return Path(self._cluster_host).read_text(encoding="utf-8")

    @property
    def _cluster_host(self) -> str:
        return f"{self.folder}/host"

    def rank_addresses(self, epoch: int) -> str:
        """File with the scheduler's addresses for ranks in a Ray cluster."""
        return f"{self.folder}/addresses.{epoch}"

    @property
    def addresses(self) -> str:
        """File with the scheduler's addresses for ranks that were started externally."""
        return f"{self.folder}/addresses"
