"""Names of the worker processes of one engine, and the addresses and files through which they meet."""

from __future__ import annotations

from radixrt.config import Config
from radixrt.engine.settings import EngineSettings

NAMES = {"tokenizer": "tokenizer", "router": "router", "scheduler": "scheduler", "runner": "ModelRunner"}
FRONT_KINDS = ("tokenizer", "router")
"""Kinds of the processes that replicas share."""


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
    def heartbeats(self) -> str:
        """File of `radixrt.heartbeat`."""
        return f"{self.folder}/heartbeats"

    def ranks(self, epoch: int) -> str:
        """File of the rendezvous of this machine's runners."""
        return f"{self.folder}/ranks.{epoch}"

    @property
    def cluster_host(self) -> str:
        """File of `radixrt.engine.cluster.host`."""
        return f"{self.folder}/host"

    def rank_addresses(self, epoch: int) -> str:
        """File with the scheduler's addresses for ranks in a Ray cluster."""
        return f"{self.folder}/addresses.{epoch}"

    @property
    def addresses(self) -> str:
        """File with the scheduler's addresses for ranks that were started externally."""
        return f"{self.folder}/addresses"
