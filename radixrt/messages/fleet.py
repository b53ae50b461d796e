"""Messages of a fleet: replicas of an engine behind a router.

main      -> router      ReplicaNotice
router    -> scheduler   Reset (`radixrt.messages.scheduler`), and all messages from a tokenizer to a scheduler
scheduler -> router      all messages from a scheduler to a tokenizer
router    -> main        ReplicaStats and, while a page watches, RouterQueue, which the tokenizer process passes on

The tokenizer process and the router exchange the messages that a tokenizer and a scheduler do. Between the router and a
scheduler every frame has a tag (`radixrt.channel.Tag`): the replica, and the epoch, which is one life of the replica
for the router. Messages of another epoch are dropped.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from radixrt.config.roles import Role
from radixrt.messages.cache_events import FromWatched, PageWatched
from radixrt.messages.peers import FromPeer
from radixrt.messages.scheduler import ControlReply, SchedulerReady, TokenBatch, ToScheduler
from radixrt.messages.scheduler_stats import SchedulerStats
from radixrt.messages.wire import Message


class ReplicaNotice(Message, frozen=True, array_like=True, tag=True):
    """State of a replica, from the main process, which owns the replicas' processes. A restarted router gets all
    notices again.

    Attributes:
        life: number of this life of the scheduler process; larger than all earlier numbers of any replica.
        is_up: the scheduler takes messages; False if the scheduler is dead, or the router has to forget it.
        takes_new: the replica may get new requests: there is a ModelRunner, and the replica is not draining.
        endpoint: inbox of the scheduler.
        ready: sizes of the scheduler's pools; None if the scheduler is not up.
        leaves: the replica is about to be stopped, has no requests any more, and hands its prefixes over.
        role: see `Role`.
    """

    replica: int
    life: int
    is_up: bool
    takes_new: bool = True
    endpoint: str = ""
    ready: SchedulerReady | None = None
    leaves: bool = False
    role: Role = "both"


ReplicaState = Literal["serving", "draining", "fenced"]
"""Condition of a replica in the router; draining: gets no new requests; fenced: was silent for too long."""


class RouterView(msgspec.Struct, frozen=True, array_like=True):
    """Load of a replica as its router sees it.

    Attributes:
        open: number of requests that were sent to the replica and have not ended.
        queued: number of requests that are bound to the replica and wait in the router.
        predicted_wait_s: predicted seconds until a small request that arrives now has its first token.
        fences: number of times that the replica was fenced since the router was started.
        has_handed_over: other replicas have what they take of the replica's prefixes (`ReplicaNotice.leaves`).
        prefills: number of prompts that the replica has computed for other replicas.
    """

    state: ReplicaState
    open: int
    queued: int
    predicted_wait_s: float
    fences: int = 0
    has_handed_over: bool = False
    prefills: int = 0


class ReplicaStats(Message, frozen=True, array_like=True, tag=True):
    """Latest numbers of one replica.

    Attributes:
        stats: latest snapshot of the replica's scheduler; None before the first.
        unbound: number of requests that wait in the router because no replica takes new requests.
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
        prompt_tokens: input tokens, of all rows of a group.
        output_tokens: tokens that replicas sampled before they died.
        max_tokens: maximum number of output tokens.
        age_s: seconds since its arrival.
        replica: replica to which the request is bound; None if no replica takes new requests.
        cached_tokens: input tokens that `replica` need not compute.
        best_replica, best_tokens: replica with the longest cached prefix of the request, and this prefix's length; None
            and 0 if no replica has any.
        obstacle: one of ROUTER_OBSTACLES.
        needed_slots: KV slots that the request is expected to take on `replica`.
        free_slots: free and evictable slots there, less the slots that open requests are expected to take yet.
        tokens_ahead: prompt tokens of requests on `replica` without output.
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
"""Reasons why the router holds a request.

- "": none but the order of the queue.
- "replicas": no replica takes new requests.
- "prompts": the replica has prompts for two steps ahead.
- "requests": the maximum number of requests runs on the replica.
- "slots": open requests will take all slots of the replica.
- "program_slots": the request begins a program, and programs that began earlier get the slots.
- "programs": the request begins a program, which would make all the programs that began earlier late.
"""


class RouterQueue(Message, frozen=True, array_like=True, tag=True):
    """Requests that the router holds, a few times a second while a page watches.

    Attributes:
        waiting: number of all requests that the router holds.
        requests: the first requests of each replica's queue, in order, then requests that no replica takes; at most
            `radixrt.router.queue_view.MAX_HELD`.
    """

    waiting: int
    requests: list[HeldRequest] = []


FromRouter = ReplicaStats | RouterQueue
"""Messages to main, besides the messages that a scheduler sends."""

ToRouter = ToScheduler | ReplicaNotice
"""Messages from the tokenizer and from main."""

FromReplica = TokenBatch | SchedulerStats | ControlReply | FromWatched | PageWatched | FromPeer
"""Messages from schedulers."""
