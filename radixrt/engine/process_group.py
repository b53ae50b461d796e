"""`ProcessGroup`: the processes of a supervisor; `Owner`: the object on whose behalf a supervisor runs them."""

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
    """The processes of a supervisor.

    Attributes:
        kinds: kinds of the processes.
        folder: private folder with the sockets and shared files of the group.
        core: kind of the process that has the state of the requests; the supervisor sends its messages there.
        owner_kind: kind of the process that the group's owner sends messages to.
        messages: union of the messages that the owner reads.
        replica: number of the replica that the processes form, if there are replicas.
    """

    kinds: tuple[str, ...]
    folder: str
    core: str = "scheduler"
    owner_kind: str = "tokenizer"
    messages: Any = ToMain
    replica: int | None = None


class Owner(Protocol):
    """The object on whose behalf a supervisor runs its processes: an `EngineClient`, or a replica of `ReplicaSet`. The
    supervisor's threads call the methods."""

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
        """Handle a message from the processes."""

    def runners_restart(self, reason: str, names: Iterable[str], epoch: int) -> None:
        """Record that the ModelRunners restart, while requests wait in the scheduler."""

    def reconnect(self, reason: str, names: Iterable[str], epoch: int, outbox: Outbox[ToTokenizer]) -> None:
        """Record that the core restarts, which loses the state of all requests.

        Args:
            reason: why, for clients and the log.
            names: names of the processes that restart.
            epoch: epoch of the new processes.
            outbox: connection to the new process of kind `ProcessGroup.owner_kind`.
        """

    def fail(self, reason: str) -> None:
        """Record that the processes have failed for good."""

    def close(self) -> None: ...
