"""`RouterLoop`: the router process's loop, sockets around `Router`.

One inbox has the messages of the tokenizer and main, another inbox those of all replicas. Main decides which replicas
there are (`ReplicaNotice`). Each replica first gets a `Reset` with the address of this router. Main owns the replicas'
processes, so main notices that a replica is dead, and tells the router of the replica's next life.
"""

from __future__ import annotations

import gc
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import msgspec
import zmq

from radixrt.channel import Outbox, Tag, TaggedInbox, TaggedOutbox, ZmqInbox
from radixrt.messages.cache_events import (
    CacheEvents,
    FromWatched,
    PageWatch,
    PageWatched,
    ToWatched,
    WatchCacheReq,
)
from radixrt.messages.client import ToTokenizer
from radixrt.messages.fleet import FromReplica, ReplicaNotice, ReplicaState, ReplicaStats, RouterView, ToRouter
from radixrt.messages.request import Request
from radixrt.messages.scheduler import (
    AbortReq,
    ControlReply,
    ControlReq,
    ReleaseReq,
    Reset,
    RunnerRestarted,
    SchedulerReady,
    TokenBatch,
    ToScheduler,
)
from radixrt.messages.scheduler_stats import SchedulerStats
from radixrt.router.controls import Controls
from radixrt.router.forgets import Forgets, still_open
from radixrt.router.prices import wait_s
from radixrt.router.queue_view import router_queue
from radixrt.router.replica_load import ReplicaInfo
from radixrt.router.routed_request import Work
from radixrt.router.router import Router

logger = logging.getLogger(__name__)

TICK_S = 0.1
VIEW_S = 0.25
GATHER_S = 0.5
"""Maximum time for which a new router holds requests until snapshots show the caches of all replicas."""
MAX_BATCH = 256
"""Maximum number of messages that are read from one inbox before the loop reads the next inbox."""
GC_THRESHOLD = 100_000
"""Objects by which the process grows before a garbage collection. The router's objects make no reference cycles, so a
collection finds nothing, and would halt all streams for milliseconds if many requests are open or the index is large.
"""


@dataclass
class _Replica:
    """Replica that is up.

    Attributes:
        notice: latest notice of main.
        outbox: to the replica's scheduler.
        is_known: a snapshot has shown the replica's whole cache.
        stats: latest numbers of the replica's scheduler; None before the first.
        told: numbers that main was sent last.
    """

    notice: ReplicaNotice
    outbox: TaggedOutbox[ToScheduler]
    is_known: bool = False
    stats: SchedulerStats | None = None
    told: ReplicaStats | None = None


class RouterLoop:
    """See the module's docstring.

    Args:
        inbox: messages of the tokenizer and of main.
        replies: messages of replicas.
        connect: opens an outbox to a scheduler at an endpoint.
        epoch: epoch of the router and the tokenizer, for `SchedulerReady`.
        chunked_prefill_size, max_gap_s: options of all schedulers.
    """

    def __init__(
        self,
        router: Router,
        inbox: ZmqInbox[ToRouter],
        replies: TaggedInbox[FromReplica],
        tokenizer: Outbox[ToTokenizer],
        connect: Callable[[str], TaggedOutbox[ToScheduler]],
        *,
        epoch: int,
        chunked_prefill_size: int,
        max_gap_s: float = math.inf,
    ) -> None:
        self._router = router
        self._inbox = inbox
        self._replies = replies
        self._tokenizer = tokenizer
        self._connect = connect
        self._epoch = epoch
        self._chunk, self._max_gap_s = chunked_prefill_size, max_gap_s
        self._replicas: dict[int, _Replica] = {}
        self._fences: Counter[int] = Counter()  # by replica, through all of its lives
        self._controls = Controls()
        self._forgets = Forgets()
        self._drains: list[ControlReq] = []
        self._gathers_until: float | None = time.monotonic() + GATHER_S
        self._held: list[ToScheduler] = []
        self._paged: set[int] = set()  # replicas that pages show
        self._next_tick = self._next_views = 0.0
        self._poller = zmq.Poller()
        self._poller.register(inbox.socket, zmq.POLLIN)
        self._poller.register(replies.socket, zmq.POLLIN)

    def serve(self, beat: Callable[[], None]) -> NoReturn:
        """Run for ever, and call `beat` several times a second."""
        gc.set_threshold(GC_THRESHOLD)
        while True:
            self.run_once()
            beat()

    def run_once(self) -> None:
        """Handle the messages that have come, or wait for one for at most TICK_S."""
        wait_ms = max(1, round((self._next_tick - time.monotonic()) * 1000))
        ready = [socket for socket, _ in self._poller.poll(wait_ms)]
        now = time.monotonic()
        if self._replies.socket in ready:
            self._read_replies(now)
        if self._inbox.socket in ready:
            self._read_inbox(now)
        # A new router holds requests until it knows the caches of the replicas that served its predecessor.
        if self._gathers_until is not None and self._has_gathered(now):
            self._gathers_until = None
            for held in self._held:
                self._take(held, now)
            self._held.clear()
        if now >= self._next_tick:
            self._next_tick = now + TICK_S
            fenced = self._router.tick(now)
            self._flush()
            self._tick(fenced, now)

    def _read_inbox(self, now: float) -> None:
        for _ in range(MAX_BATCH):
            message = self._inbox.recv()
            if message is None:
                return
            if isinstance(message, ReplicaNotice):
                self._change(message, now)
                self._flush()
            elif self._gathers_until is not None:
                self._held.append(message)
            else:
                self._take(message, now)

    def _read_replies(self, now: float) -> None:
        for _ in range(MAX_BATCH):
            tagged = self._replies.recv_tagged()
            if tagged is None:
                return
            self._receive(*tagged, now)

    def _has_gathered(self, now: float) -> bool:
        assert self._gathers_until is not None
        replicas = self._replicas.values()
        return now > self._gathers_until or (bool(replicas) and all(each.is_known for each in replicas))

    def _flush(self) -> None:
        """Send the messages that the router has made."""
        for target, epoch, message in self._router.take():
            if isinstance(message, TokenBatch):
                self._tokenizer.send(message)
            elif isinstance(message, Reset):
                self._reset(target, epoch, message)
            else:
                self._replicas[target].outbox.send_tagged(Tag(target, epoch), message)

    def _reset(self, replica: int, epoch: int, message: Reset) -> None:
        """Begin the life of a replica that joins. Commands that it was not up for are before any request."""
        outbox, tag = self._replicas[replica].outbox, Tag(replica, epoch)
        outbox.send_tagged(tag, msgspec.structs.replace(message, answers=self._replies.endpoint))
        for request in self._forgets.owed(replica):
            outbox.send_tagged(tag, request)

    # --- the tokenizer and main ---

    def _take(self, message: ToScheduler, now: float) -> None:
        router = self._router
        if isinstance(message, Request):
            router.submit(message, now)
        elif isinstance(message, AbortReq):
            router.abort(message)
        elif isinstance(message, ReleaseReq):
            router.release(message)
        elif isinstance(message, ControlReq):
            self._control(message, now)
        elif isinstance(message, PageWatch):
            self._watch(message)
        else:
            assert isinstance(message, (ToWatched, RunnerRestarted, Reset))
            logger.debug("dropped a message for a scheduler: %s", type(message).__name__)
        self._flush()

    def _watch(self, message: PageWatch) -> None:
        """Pass a page's message on to its replica, and note whether any page is open."""
        replica, asked = message.replica, message.message
        if isinstance(asked, WatchCacheReq):
            (self._paged.add if asked.watch else self._paged.discard)(replica)
        load = self._router.placement.loads.get(replica)
        if load is not None and not load.is_fenced:
            self._replicas[replica].outbox.send_tagged(Tag(replica, load.epoch), message)

    def _control(self, request: ControlReq, now: float) -> None:
        if request.op == "drain":
            self._drains.append(request)
            return
        self._forgets.ask(request)
        loads = self._router.placement.loads
        asked = [replica for replica in self._replicas if not loads[replica].is_fenced]
        for replica in asked:
            self._replicas[replica].outbox.send_tagged(Tag(replica, loads[replica].epoch), request)
        # Answers of replicas may name pages with prompts that the command drops.
        self._router.placement.transfers.clear()
        fenced = self._replicas.keys() - asked
        held = (each for each in self._router.open.values() if not each.is_sent)
        failure = still_open(request, held)
        self._answer(self._controls.ask(request, asked, now, fenced=fenced, failure=failure))

    def _answer(self, replies: list[ControlReply]) -> None:
        for reply in replies:
            self._tokenizer.send(reply)

    def _change(self, notice: ReplicaNotice, now: float) -> None:
        """Bring a replica into the state of a notice."""
        replica, known = notice.replica, self._replicas.get(notice.replica)
        if known is not None and known.notice.life > notice.life:
            return  # an old notice
        if known is not None and (not notice.is_up or known.notice.life < notice.life):
            self._lose(replica, now)
            known = None
        if not notice.is_up or notice.ready is None:
            return
        if known is None:
            self._add(notice, notice.ready, now)
        else:
            known.notice = notice
            if notice.takes_new:
                self._router.resume(replica, now)
            else:
                self._router.drain(replica, now)
            if notice.leaves:
                self._router.hand_over(replica)
        self._announce()

    def _add(self, notice: ReplicaNotice, ready: SchedulerReady, now: float) -> None:
        replica = notice.replica
        self._replicas[replica] = _Replica(notice, self._connect(notice.endpoint))
        has_states = ready.num_states > 0
        info = ReplicaInfo(
            ready.num_slots,
            ready.max_running_requests,
            self._chunk,
            has_states=has_states,
            max_gap_s=self._max_gap_s,
            role=notice.role,
        )
        epoch = self._router.add_replica(replica, info, now, takes_new=notice.takes_new)
        self._reset(replica, epoch, Reset(keeps_cache=True))  # a scheduler that served an earlier router has a cache
        role = "" if notice.role == "both" else f", for {notice.role}"
        logger.info("replica %d has joined, with %d slots%s", replica, ready.num_slots, role)

    def _lose(self, replica: int, now: float) -> None:
        load = self._router.placement.loads[replica]
        requests = len(load.open) + len(load.queue)
        if load.is_draining and not requests:
            logger.info("replica %d has left", replica)
        else:
            logger.warning("replica %d is gone; %d requests go on elsewhere", replica, requests)
        self._router.died(replica, now)
        self._replicas.pop(replica).outbox.close()
        self._answer(self._controls.lost(replica))

    def _announce(self) -> None:
        """Tell that requests can be served, and how large they may be."""
        readies = [each.notice.ready for each in self._replicas.values() if each.notice.ready is not None]
        if not any(load.takes_new for load in self._router.placement.loads.values()):
            return
        first = readies[0]
        self._tokenizer.send(
            SchedulerReady(
                num_slots=min(ready.num_slots for ready in readies),
                max_running_requests=sum(ready.max_running_requests for ready in readies),
                device=first.device,
                dtype=first.dtype,
                epoch=self._epoch,
                num_states=first.num_states,
                kv_cache_dtype=first.kv_cache_dtype,
                weights=first.weights,
            )
        )

    # --- replicas ---

    def _receive(self, tag: Tag, message: FromReplica, now: float) -> None:
        replica, epoch = tag
        load = self._router.placement.loads.get(replica)
        if load is None:
            return
        was_fenced = load.is_fenced
        if isinstance(message, ControlReply):
            self._router.heard(replica, epoch, now)
            self._forgets.answered(replica, message)
            self._answer(self._controls.answered(replica, message))
        elif isinstance(message, PageWatched):
            self._tokenizer.send(message)
        elif isinstance(message, CacheEvents) or not isinstance(message, FromWatched):
            self._router.receive(replica, epoch, message, now)
            if isinstance(message, CacheEvents) and message.complete and not message.tier:
                self._replicas[replica].is_known = True
        self._flush()  # at once: tokens must not wait for further messages
        if was_fenced:
            logger.warning("replica %d is heard again, and begins anew with an empty cache", replica)
        elif isinstance(message, SchedulerStats) and epoch == load.epoch:
            self._replicas[replica].stats = message
            self._tell(replica)

    def _tell(self, replica: int) -> None:
        """Send the numbers of a replica to main if they have changed."""
        load, known = self._router.placement.loads[replica], self._replicas[replica]
        state: ReplicaState = "fenced" if load.is_fenced else "draining" if load.is_draining else "serving"
        wait = wait_s(load, Work(1, 1, 0.0))
        has_handed_over = self._router.placement.transfers.has_handed_over(replica)
        view = RouterView(
            state, len(load.open), len(load.queue), wait, self._fences[replica], has_handed_over, load.prefills
        )
        found = ReplicaStats(replica, known.notice.life, view, known.stats, len(self._router.unbound))
        if found != known.told:
            known.told = found
            self._tokenizer.send(found)

    def _tick(self, fenced: dict[int, int], now: float) -> None:
        """Do the loop's part of a tick.

        Args:
            fenced: replicas that the router has fenced now, with the number of requests that each one had.
        """
        loads = self._router.placement.loads
        for replica, lost in fenced.items():
            self._fences[replica] += 1
            logger.warning(
                "replica %d is silent (replica_stall_s) and counts as dead until heard; %d requests go on elsewhere",
                replica,
                lost,
            )
            self._tell(replica)
            self._answer(self._controls.lost(replica, is_fenced=True))
        for replica, asked_at in self._controls.owing():
            if self._router.is_silent(replica, asked_at, now):
                self._answer(self._controls.lost(replica, silent_s=now - asked_at))
        if now >= self._next_views:
            self._next_views = now + VIEW_S
            for replica in loads:
                self._tell(replica)
            if self._paged:
                self._tokenizer.send(router_queue(self._router.placement, self._router.unbound.values(), now))
        if self._drains and not self._router.open:
            self._answer([ControlReply(request.id, ok=True) for request in self._drains])
            self._drains.clear()
