"""`ProcessGroup`: processes that one supervisor looks after; `Owner`: the object for which they work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from radixrt.channel import Outbox
from radixrt.client.engine_client import EngineStatus
from radixrt.messages.client import EngineReady, ToMain, ToTokenizer
from radixrt.messages.scheduler import SchedulerReady
from radixrt.messages.scheduler_stats import SchedulerStats


@dataclass(frozen=True)
class ProcessGroup:
    """Processes that one supervisor looks after.

    Attributes:
        kinds: of the processes.
        folder: private folder with their sockets and shared files.
        core: kind that main sends to; it holds the requests.
        owner_kind: kind that the group's owner sends to.
        messages: union of the messages that the owner reads.
        replica: number of the replica that they are, if there are replicas.
    """

    kinds: tuple[str, ...]
    folder: str
    core: str = "scheduler"
    owner_kind: str = "tokenizer"
    messages: Any = ToMain
    replica: int | None = None


class Owner(Protocol):
    """Object for which a group of processes works, e.g. an `EngineClient`; called from the supervisor's threads."""

    @property
    def info(self) -> EngineReady | SchedulerReady | None:
        """Latest announcement that the processes are ready."""

    @property
    def stats(self) -> SchedulerStats | None: ...

    @property
    def status(self) -> EngineStatus: ...

    @property
    def open_requests(self) -> int: ...

    def dispatch(self, message: Any) -> None:
        """Take a message of the processes."""

    def runners_restart(self, reason: str, names: Iterable[str], epoch: int) -> None:
        """Note that ModelRunners are started anew, and that requests wait for them."""

    def reconnect(self, reason: str, names: Iterable[str], epoch: int, outbox: Outbox[ToTokenizer]) -> None:
        """Note that processes which know the requests are started anew."""

    def fail(self, reason: str) -> None:
        """Note that the processes are not started anew any more."""

    def close(self) -> None: ...
