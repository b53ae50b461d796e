"""Messages of a fleet: replicas of an engine behind a router.

main      -> router      ReplicaNotice
router    -> scheduler   Reset (`radixrt.messages.scheduler`), and what a tokenizer sends to a scheduler
scheduler -> router      what a scheduler sends to a tokenizer
router    -> main        ReplicaStats and, while a page watches, RouterQueue, which the tokenizer process passes on

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


class HeldRequest(msgspec.Struct, frozen=True, array_like=True):
    """Request that waits in the router, and the reason why no replica has it yet.

    Attributes:
        program, branch: see `radixrt.messages.parts.ProgramHint`; empty without a hint.
        kind: "generate", or "score" for a scoring or embedding request.
        prompt_tokens: input tokens; of a group those of all its rows.
        output_tokens: tokens that replicas sampled before they died.
        max_tokens: maximum number of output tokens.
        age_s: seconds since its arrival.
        replica: replica that it is bound to, and would go to now; None if none takes new requests.
        cached_tokens: input tokens that `replica` need not compute.
        best_replica, best_tokens: replica that has the longest cached prefix of it, and its length; None and 0 if no
            replica has any.
        obstacle: one of ROUTER_OBSTACLES.
        needed_slots, free_slots: KV slots that it is expected to take on `replica`, and those that are free or
            evictable there, less what open requests are expected to take yet.
        tokens_ahead: prompt tokens that `replica` has been sent and has not begun to answer.
    """

    rid: str
    program: str
    branch: str
    kind: str
    priority: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    constrained: bool
    age_s: float
    replica: int | None
    cached_tokens: int
    best_replica: int | None
    best_tokens: int
    obstacle: str
    needed_slots: int
    free_slots: int
    tokens_ahead: int


ROUTER_OBSTACLES = ("", "replicas", "prompts", "requests", "slots", "program_slots", "programs")
"""Reasons why the router holds a request: "" none but the order of the queue; "replicas": no replica takes new
requests; "prompts": its replica has as many prompts ahead as two steps compute; "requests": as many run there as may;
"slots": open requests will take all slots there; "program_slots", "programs": it begins a program, and those that began
earlier get the slots, or are so many that another one would make all of them late."""


class RouterQueue(Message, frozen=True, array_like=True, tag=True):
    """Requests that the router holds, a few times a second while a page watches.

    Attributes:
        waiting: their number.
        requests: the first ones of each replica's queue, about in its order, then those that no replica takes; at most
            `radixrt.router.queue_view.MAX_HELD`.
    """

    waiting: int
    requests: list[HeldRequest] = []


FromRouter = ReplicaStats | RouterQueue
"""Messages to main, beside those that a scheduler sends."""

ToRouter = ToScheduler | ReplicaNotice
"""Messages from the tokenizer and from main."""

FromReplica = TokenBatch | SchedulerStats | ControlReply | FromWatched | PageWatched
"""Messages from schedulers."""
