"""`CacheStream`: the scheduler's end of a stream of `CacheEvents`. Sans-io: the loop sends what it returns.
`CacheStreams`: that of the main process, or of a router, and beside a router's that of a page.

While nobody watches, the cache has no journal. While somebody watches, each turn of the loop takes what the journal has
recorded. A reader that does not acknowledge in time loses events, never the scheduler time: recording stops when WINDOW
events are unacknowledged, and goes on with a snapshot when all of them are acknowledged.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from radixrt.mem_cache.cache_journal import CacheJournal
from radixrt.mem_cache.granules import GRANULE_TOKENS, seed_of
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
    RequestView,
    RequestViews,
    SnapshotHeader,
    ToWatched,
    WatchCacheReq,
)
from radixrt.scheduler.queue_views import QueueViews
from radixrt.scheduler.req import Req, ReqState
from radixrt.scheduler.scheduler import Scheduler

WINDOW = 65_536
"""Maximum number of unacknowledged events; the snapshot of a large tree proceeds as the reader acknowledges it."""

SLICE_TOKENS = 32_768
"""Tokens of the tree that one turn of the loop adds to a snapshot: about 1 ms."""

VIEWS_INTERVAL_S = 0.25
MAX_VIEWS = 512
MAX_MATCHED = 64
"""Waiting requests that are matched with the tree for each view; the others' cached_tokens are -1, without a
`QueueView`."""


class CacheStream:
    """See the module's docstring. At most one reader watches at a time; another one takes its place.

    Attributes:
        window: maximum number of unacknowledged events.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._core = scheduler
        self._cache = scheduler.kv.cache
        self._records = False
        self._journal = CacheJournal()
        self._watched = False
        self._requests = False
        self._usage = True
        self.window = WINDOW
        self._header: SnapshotHeader | None = None  # of the snapshot that the next batch begins
        self._seq = 0
        self._unacknowledged: deque[tuple[int, int]] = deque()  # (seq, number of events)
        self._num_unacknowledged = 0
        self._views_at = 0.0
        self._queue = QueueViews(self._cache, scheduler.admission, scheduler.recovery)

    @property
    def is_on(self) -> bool:
        """Somebody watches: call `turn`."""
        return self._watched

    @property
    def is_busy(self) -> bool:
        """A snapshot is under way, and `turn` goes on with it without other events."""
        return self._records and not self._journal.is_complete and self._room > 0

    @property
    def _room(self) -> int:
        """Events that a snapshot may add: it takes half of the window, and leaves the rest to other events."""
        return self.window // 2 - self._num_unacknowledged

    def handle(self, message: ToWatched) -> list[FromWatched]:
        """Take a message of the reader; returns what to answer at once."""
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
        """The messages of one turn of the loop, often none."""
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
        batch = CacheEvents(self._seq, self._cache.clock, journal.is_complete, events, header)
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
        return NodeTokens(request.id, None if node is None else node.key_bytes[: 4 * max(request.limit, 0)])

    def _views(self, now: float) -> RequestViews:
        core = self._core
        active, waiting = core.active, core.waiting
        views = [self._view(req, now) for req in active[:MAX_VIEWS]]
        shown = waiting[: MAX_VIEWS - len(views)]
        views += [self._view(req, now, queue) for req, queue in zip(shown, self._queue.views(shown[:MAX_MATCHED], now))]
        views += [self._view(req, now) for req in shown[MAX_MATCHED:]]
        holds = [
            ProgramHold(self._journal.number(node), program, retention)
            for program, node, retention in islice(core.programs.holders(), MAX_VIEWS)
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
            *req.hint_names, seed_of(req.namespace),
            "generate" if req.member is None else "score", req.priority, req.prompt_len, cached,
            0 if is_waiting else self._core.kv.computed_len(req), req.num_output, req.max_len - req.prompt_len,
            req.constraint is not None, stats.retractions, max(admitted_at - stats.arrived_at, 0.0),
            max(now - stats.arrived_at, 0.0), queue,
        )  # fmt: skip


class CacheStreams:
    """All streams of one scheduler; see the module's docstring."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._own = CacheStream(scheduler)
        self._page = CacheStream(scheduler)
        self._replica = 0

    @property
    def is_on(self) -> bool:
        return self._own.is_on or self._page.is_on

    @property
    def is_busy(self) -> bool:
        return self._own.is_busy or self._page.is_busy

    def handle(self, message: ToWatched | PageWatch) -> list[FromWatched | PageWatched]:
        """Take a message of a reader; returns what to answer at once."""
        if isinstance(message, PageWatch):
            self._replica = message.replica
            return [PageWatched(self._replica, answer) for answer in self._page.handle(message.message)]
        return [*self._own.handle(message)]

    def turn(self, now: float) -> list[FromWatched | PageWatched]:
        """The messages of one turn of the loop, often none."""
        own = self._own.turn(now) if self._own.is_on else []
        page = self._page.turn(now) if self._page.is_on else []
        return [*own, *(PageWatched(self._replica, message) for message in page)]
