"""Scheduler end of watch: streams of `CacheEvents`. `Watch` has two streams (`CacheStream`): a stream for the main
process or a router, and a stream for a page beside a router. A router may ask for streams of the tiers' trees besides.
The loop sends the messages that a stream returns.

A tree has a journal only while a reader watches. Each iteration of the loop takes the events that the journal has
recorded. A reader that does not acknowledge in time loses events, but never delays the scheduler: recording stops when
WINDOW events are unacknowledged, and continues with a snapshot when all events are acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from radixrt.mem_cache.cache_journal import CacheJournal
from radixrt.mem_cache.granules import GRANULE_TOKENS, seed_of
from radixrt.mem_cache.results import InsertResult
from radixrt.mem_cache.tree_node import path_of
from radixrt.messages.cache_events import (
    CacheAck,
    CacheEvents,
    FromWatched,
    NodeTokens,
    NodeTokensReq,
    PageWatch,
    PageWatched,
    ProgramHold,
    QueueView,
    RequestAdmitted,
    RequestEnded,
    RequestPublished,
    RequestView,
    RequestViews,
    SnapshotHeader,
    ToWatched,
    WatchCacheReq,
)
from radixrt.messages.parts import ProgramHint
from radixrt.parts.programs.scheduler import Programs
from radixrt.parts.watch.queue_views import QueueViews
from radixrt.scheduler.part import Core, End, Part, WatchedTree
from radixrt.scheduler.req import Req, ReqState

WINDOW = 65_536
"""Maximum number of unacknowledged events. The snapshot of a large tree proceeds as the reader acknowledges events."""

SLICE_TOKENS = 32_768
"""Number of the tree's tokens that one iteration of the loop adds to a snapshot, which takes about 1 ms."""

VIEWS_INTERVAL_S = 0.25
MAX_VIEWS = 512
MAX_MATCHED = 64
"""Maximum number of waiting requests that are matched with the tree for each set of views. Further requests have
cached_tokens -1 and no `QueueView`."""


class CacheStream:
    """Stream of events for one reader; see the module's docstring. A new reader replaces the previous reader.

    Args:
        tier: tier of the tree; "" for the KV pool.
        tree: tree of the tier; default: the KV pool's.

    Attributes:
        window: maximum number of unacknowledged events.
    """

    def __init__(self, core: Core, tier: str = "", tree: WatchedTree | None = None) -> None:
        self._core = core
        self._tier = tier
        self._cache, self._journal = tree or (core.kv.cache, CacheJournal())
        self._programs = core.scheduler.part(Programs)
        self._records = False
        self._watched = False
        self._requests = False
        self._usage = True
        self.window = WINDOW
        self._header: SnapshotHeader | None = None  # of the snapshot that the next batch begins
        self._seq = 0
        self._unacknowledged: deque[tuple[int, int]] = deque()  # (seq, number of events)
        self._num_unacknowledged = 0
        self._views_at = 0.0
        self._queue = QueueViews(core)

    @property
    def is_on(self) -> bool:
        """True while a reader watches, so that `turn` must be called."""
        return self._watched

    @property
    def is_busy(self) -> bool:
        """True while a snapshot is under way, which `turn` continues without new events."""
        return self._records and not self._journal.is_complete and self._room > 0

    @property
    def _room(self) -> int:
        """Number of events that a snapshot may add. A snapshot uses half of the window; the rest is for other
        events."""
        return self.window // 2 - self._num_unacknowledged

    def handle(self, message: ToWatched) -> list[FromWatched]:
        """Handle a message of the reader; return the answers to send at once."""
        if isinstance(message, NodeTokensReq):
            return [self._tokens(message)]
        if isinstance(message, CacheAck):
            self._acknowledge(message.seq)
        elif isinstance(message, WatchCacheReq):
            self._watched, self._requests, self._usage = message.watch, message.requests, message.usage
            self._unacknowledged.clear()
            self._num_unacknowledged = 0
            self._views_at = 0.0
            self._queue.clear()
            self._pause()
            if message.watch:
                self._begin()
        return []

    def turn(self, now: float) -> list[FromWatched]:
        """Return the messages of one iteration of the loop."""
        found: list[FromWatched] = []
        journal = self._journal
        if self._records:
            if not journal.is_complete and self._room > 0:
                journal.visit(self._cache, SLICE_TOKENS, self._room)
            if journal.events or self._header is not None:
                found.append(self._batch())
        if self._requests and now - self._views_at >= VIEWS_INTERVAL_S:
            self._views_at = now
            found.append(self._views(now))
        return found

    def _batch(self) -> CacheEvents:
        journal = self._journal
        events, journal.events = journal.events, []
        header, self._header = self._header, None
        self._seq += 1
        self._unacknowledged.append((self._seq, len(events) + 1))
        self._num_unacknowledged += len(events) + 1
        batch = CacheEvents(self._seq, self._cache.clock, journal.is_complete, events, header, self._tier)
        if self._num_unacknowledged > self.window:
            self._pause()
        return batch

    def _acknowledge(self, seq: int) -> None:
        unacknowledged = self._unacknowledged
        while unacknowledged and unacknowledged[0][0] <= seq:
            self._num_unacknowledged -= unacknowledged.popleft()[1]
        if self._watched and not self._records and not unacknowledged:
            self._begin()

    def _begin(self) -> None:
        cache = self._cache
        self._header = SnapshotHeader(
            cache.allocator.num_slots, cache.page_size, GRANULE_TOKENS, cache.policy, cache.shares
        )
        self._journal.begin(cache)
        self._journal.records_requests = self._requests
        self._journal.records_usage = self._usage
        self._records = True
        self._cache.watch(self._journal)

    def _pause(self) -> None:
        self._records = False
        self._cache.unwatch(self._journal)
        self._journal.clear()
        self._header = None

    # --- answers ---

    def _tokens(self, request: NodeTokensReq) -> NodeTokens:
        node = self._journal.node(request.node)
        if node is None:
            return NodeTokens(request.id)
        kept = self._core.scheduler.parts.kept_outside(*path_of(node))
        return NodeTokens(request.id, node.key_bytes[: 4 * max(request.limit, 0)], kept)

    def _views(self, now: float) -> RequestViews:
        core = self._core
        active, waiting = core.requests.active, core.requests.waiting
        views = [self._view(req, now) for req in active[:MAX_VIEWS]]
        shown = waiting[: MAX_VIEWS - len(views)]
        views += [self._view(req, now, queue) for req, queue in zip(shown, self._queue.views(shown[:MAX_MATCHED], now))]
        views += [self._view(req, now) for req in shown[MAX_MATCHED:]]
        holds = [
            ProgramHold(self._journal.number(node), program, retention)
            for program, node, retention in islice(self._programs.holders(), MAX_VIEWS)
        ]
        return RequestViews(len(active), len(waiting), views, [hold for hold in holds if hold.node])

    def _view(self, req: Req, now: float, queue: QueueView | None = None) -> RequestView:
        stats = req.stats
        is_waiting = req.state is ReqState.WAITING
        cached = stats.cached_tokens
        if queue is not None:
            cached = min(self._core.kv.match_len(req), req.prompt_len)
        admitted_at = now if stats.admitted_at is None else stats.admitted_at
        return RequestView(
            req.rid, req.state.value, self._journal.number(req.kv.last_node),
            *_names(self._programs.hint_of(req)), seed_of(req.namespace),
            "generate" if req.member is None else "score", req.priority, req.prompt_len, cached,
            0 if is_waiting else self._core.kv.computed_len(req), req.num_output, req.max_len - req.prompt_len,
            req.taker is not None, stats.retractions, max(admitted_at - stats.arrived_at, 0.0),
            max(now - stats.arrived_at, 0.0), queue,
        )  # fmt: skip


class Watch(Part):
    """All streams of one scheduler; see the module's docstring."""

    name = "watch"

    def attach(self, core: Core) -> None:
        self._core = core
        self._cache = core.kv.cache
        self._programs = core.scheduler.part(Programs)
        self._own = {"": CacheStream(core)}  # by tier; the tiers' streams are made once a reader asks for them
        self._page = CacheStream(core)
        self._replica = 0  # number of the replica that the page shows
        self._parts = core.scheduler.parts
        self._watch_turns()

    def _watch_turns(self) -> None:
        """Let turns of the loop call the part while somebody watches."""
        self._parts.enable(self, ("turn",), on=any(stream.is_on for stream in self._streams()))

    def _streams(self) -> Iterable[CacheStream]:
        return (*self._own.values(), self._page)

    @property
    def is_busy(self) -> bool:
        return any(stream.is_busy for stream in self._streams())

    # --- messages ---

    def handles(self) -> Mapping[type, Callable[[Any, float], Iterable[Any]]]:
        own: dict[type, Callable[[Any, float], Iterable[Any]]] = dict.fromkeys(
            (WatchCacheReq, CacheAck, NodeTokensReq), self._handle
        )
        return own | {PageWatch: self._handle_page}

    def _handle(self, message: ToWatched, now: float) -> list[FromWatched]:
        if isinstance(message, WatchCacheReq):
            self._watch_tiers(message)
        stream = self._own.get(message.tier) if isinstance(message, CacheAck) else self._own[""]
        answers = [] if stream is None else stream.handle(message)
        self._watch_turns()
        return answers

    def _watch_tiers(self, message: WatchCacheReq) -> None:
        """Begin or end the streams of tiers."""
        wanted = message.watch and message.tiers
        if wanted and len(self._own) == 1:
            for trees in self._parts.trees:
                self._own |= {tier: CacheStream(self._core, tier, tree) for tier, tree in trees().items()}
        for tier, stream in self._own.items():
            if tier:
                stream.handle(WatchCacheReq(watch=wanted, usage=message.usage))

    def _handle_page(self, message: PageWatch, now: float) -> list[PageWatched]:
        self._replica = message.replica
        answers = self._page.handle(message.message)
        self._watch_turns()
        return [PageWatched(self._replica, answer) for answer in answers]

    def turn(self, now: float) -> list[FromWatched | PageWatched]:
        own = [message for stream in self._own.values() if stream.is_on for message in stream.turn(now)]
        page = self._page.turn(now) if self._page.is_on else []
        return [*own, *(PageWatched(self._replica, message) for message in page)]

    def forgotten(self) -> None:
        self._handle(WatchCacheReq(watch=False), 0.0)

    # --- moments of requests ---

    def _requests(self) -> Iterator[CacheJournal]:
        """Yield the journals that record events of requests."""
        journals = (each for each in self._cache.observers if isinstance(each, CacheJournal))
        return (journal for journal in journals if journal.records_requests)

    def admitted(self, req: Req, prompt_tokens: int, cached_tokens: int, *, again: bool) -> None:
        if again:
            return
        for journal in self._requests():
            reusable, stats = min(len(req.reusable_ids), req.prompt_len), req.stats
            node = journal.number(req.kv.last_node) if stats.matched_tokens else 0
            names = _names(self._programs.hint_of(req))
            journal.events.append(
                RequestAdmitted(
                    req.rid,
                    node,
                    req.prompt_len,
                    stats.cached_tokens,
                    stats.matched_tokens,
                    reusable,
                    *names,
                    stats.fetched_tokens(),
                )
            )

    def published(self, req: Req, start: int, result: InsertResult) -> None:
        if result.retained_len <= start:
            return
        for journal in self._requests():
            node = journal.number(result.node)
            journal.events.append(RequestPublished(req.rid, node, start, result.existing_len, result.retained_len))

    def ended(self, end: End) -> None:
        req = end.req
        if req is None:
            return
        for journal in self._requests():
            first = req.stats.first_token_at
            waited = None if first is None else first - req.stats.arrived_at
            journal.events.append(RequestEnded(req.rid, end.finish.reason, req.num_output, waited))


def _names(hint: ProgramHint | None) -> tuple[str, str]:
    """Return the program and the branch of a hint; empty without one."""
    return ("", "") if hint is None else (hint.program, hint.branch)
