"""Messages of a fleet: replicas of an engine behind a router.

main      -> router      ReplicaNotice
router    -> scheduler   Reset (`radixrt.messages.scheduler`), and what a tokenizer sends to a scheduler
scheduler -> router      what a scheduler sends to a tokenizer
router    -> main        ReplicaStats, which the tokenizer process passes on

The tokenizer process and the router exchange the messages that a tokenizer and a scheduler do. Between the router and a
scheduler every frame has a tag (`radixrt.channel.Tag`): the replica, and the epoch, which is one life of the replica
for the router. Messages of another epoch are dropped.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from radixrt.messages.cache_events import FromWatched, PageWatched
from radixrt.messages.scheduler import ControlReply, SchedulerReady, TokenBatch, ToScheduler
from radixrt.messages.scheduler_stats import SchedulerStats
from radixrt.messages.wire import Message


class ReplicaNotice(Message, frozen=True, array_like=True, tag=True):
    """State of a replica as the main process, which owns its processes, knows it. Notices are sent again to a router
    that was started anew.

    Attributes:
        life: number of this life of the scheduler process; larger than every earlier one of any replica.
        is_up: the scheduler takes messages; False once it is dead, or is to be forgotten.
        takes_new: new requests may go there: it has a ModelRunner and is not draining.
        endpoint: inbox of the scheduler.
        ready: sizes of its pools; None if it is not up.
    """

    replica: int
    life: int
    is_up: bool
    takes_new: bool = True
    endpoint: str = ""
    ready: SchedulerReady | None = None


ReplicaState = Literal["serving", "draining", "fenced"]
"""Condition of a replica in the router; draining: it gets no new requests; fenced: it was silent for too long."""


class RouterView(msgspec.Struct, frozen=True, array_like=True):
    """Load of a replica as its router sees it.

    Attributes:
        open: requests that it was sent and that have not ended.
        queued: requests that are bound to it and wait in the router.
        predicted_wait_s: predicted seconds until a small request that arrives now has its first token.
        fences: number of times that it was fenced since the router was started.
    """

    state: ReplicaState
    open: int
    queued: int
    predicted_wait_s: float
    fences: int = 0


class ReplicaStats(Message, frozen=True, array_like=True, tag=True):
    """Latest numbers of one replica.

    Attributes:
        stats: latest snapshot of its scheduler; None before the first.
        unbound: requests that wait in the router because no replica takes new ones.
    """

    replica: int
    life: int
    view: RouterView
    stats: SchedulerStats | None = None
    unbound: int = 0


ToRouter = ToScheduler | ReplicaNotice
"""Messages from the tokenizer and from main."""

FromReplica = TokenBatch | SchedulerStats | ControlReply | FromWatched | PageWatched
"""Messages from schedulers."""
