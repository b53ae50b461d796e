"""`Hub`: the copy of the tree that all open pages share, and a feed of lines for each page.

The first page makes the hub watch the scheduler. The hub stops LINGER_S after the last page was closed. The work is
done in the hub's thread, so that neither the receiver thread nor the event loop waits.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque

from radixrt.client.engine_client import EngineClient, ToReader
from radixrt.messages.cache_events import (
    CacheAck,
    CacheEvent,
    CacheEvents,
    NodeTokens,
    NodeTokensReq,
    RequestViews,
    WatchCacheReq,
)
from radixrt.messages.client import EngineReady
from radixrt.messages.fleet import RouterQueue
from radixrt.server.ui.lines import line, requests_line, router_line, shown_event, snapshot_line, tiers_line
from radixrt.server.ui.misses import Causes, MissLog
from radixrt.server.ui.optimum import Window
from radixrt.server.ui.samples import Samples

logger = logging.getLogger(__name__)

LINGER_S = 30.0
FLUSH_S = 0.2
BOUNDS_S = 3.0
TICK_S = 1.0
MAX_FEED_BYTES = 16 * 1024 * 1024
"""Maximum size of the lines that a page has not read; a page with more loses all of them, and gets a snapshot."""
MAX_FEEDS = 16
MAX_NODE_TOKENS = 512


class Feed:
    """Lines for one page. The hub's thread appends, the event loop takes.

    Attributes:
        ended: the hub has failed and writes no more; the page has to connect again.
        needs_snapshot: the next lines must be a snapshot, because the page has none or has lost lines.
    """

    def __init__(self) -> None:
        self.ended = False
        self._lines: list[bytes] = []
        self._bytes = 0
        self._lock = threading.Lock()
        self.needs_snapshot = True

    def append(self, data: bytes) -> None:
        with self._lock:
            if self._bytes + len(data) > MAX_FEED_BYTES and self._lines:
                self._lines.clear()
                self._bytes, self.needs_snapshot = 0, True
                return
            self._lines.append(data)
            self._bytes += len(data)

    def take(self) -> bytes:
        """Return all lines since the last call."""
        with self._lock:
            taken, self._lines, self._bytes = b"".join(self._lines), [], 0
        return taken


class Hub:
    """See the module's docstring.

    Args:
        replica: number of the replica whose tree is watched; None for an engine without a router.

    Attributes:
        samples: numbers for plots, taken while no page is open as well; sums over all replicas.
    """

    def __init__(self, client: EngineClient, samples: Samples | None = None, replica: int | None = None) -> None:
        self._client = client
        self._replica = replica
        self.samples = samples or Samples(client)
        self._inbox: queue.SimpleQueue[ToReader] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._feeds: set[Feed] = set()
        self._emptied_at = 0.0
        self._asked: dict[str, queue.SimpleQueue[NodeTokens]] = {}
        self._asks = 0

    # --- pages, in the event loop ---

    def open(self) -> Feed | None:
        """Return a feed for a new page, which the caller has to close; None if too many are open."""
        with self._lock:
            if len(self._feeds) >= MAX_FEEDS:
                return None
            feed = Feed()
            self._feeds.add(feed)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="radixrt-ui", daemon=True)
                self._thread.start()
        return feed

    def close(self, feed: Feed) -> None:
        with self._lock:
            self._feeds.discard(feed)
            self._emptied_at = time.monotonic()

    def node(self, node: int, limit: int = MAX_NODE_TOKENS, timeout_s: float = 5.0) -> NodeTokens | None:
        """Return the first `limit` tokens of a node and where its path is kept, or None if there is no such node;
        blocks."""
        answer: queue.SimpleQueue[NodeTokens] = queue.SimpleQueue()
        with self._lock:
            if self._thread is None:
                return None  # nobody watches, so no page has learnt of a node
            self._asks += 1
            ask_id = str(self._asks)
            self._asked[ask_id] = answer
        try:
            self._client.send_watch(NodeTokensReq(ask_id, node, limit), self._replica)
            found = answer.get(timeout=timeout_s)
            return None if found.token_ids is None else found
        except queue.Empty:
            return None
        finally:
            self._asked.pop(ask_id, None)

    # --- the hub's thread ---

    def _run(self) -> None:
        try:
            watcher = _Watcher(self._client, self.samples, self._replica)
            self._client.watch(self._inbox.put, self._replica)
            watcher.begin()
            while self._serve(watcher):
                pass
        except Exception:
            if self._client.draining or self._client.failure is not None:
                return  # the connection to the engine is closed
            logger.exception("the pages of /ui are not served any more")
            with self._lock:
                for feed in self._feeds:
                    feed.ended = True
                self._end()

    def _end(self) -> None:
        """Stop watching. The caller holds the lock, so that the thread of the next page starts after this."""
        self._client.watch(None, self._replica)
        self._client.send_watch(WatchCacheReq(False), self._replica)
        self._thread = None

    def _serve(self, watcher: _Watcher) -> bool:
        """Handle the messages of FLUSH_S seconds, and write to the feeds; returns False at the end."""
        until = time.monotonic() + FLUSH_S
        while (wait := until - time.monotonic()) > 0:
            try:
                message = self._inbox.get(timeout=wait)
            except queue.Empty:
                break
            if isinstance(message, NodeTokens):
                asked = self._asked.pop(message.id, None)
                if asked is not None:
                    asked.put(message)
            elif isinstance(message, (CacheEvents, RequestViews, RouterQueue, EngineReady)):
                watcher.take(message)
        with self._lock:
            feeds = list(self._feeds)
            if not feeds and time.monotonic() - self._emptied_at > LINGER_S:
                self._end()
                return False
        watcher.write(feeds)
        return True


class _Watcher:
    """Tree, misses and bounds of one period of watching. Used by the hub's thread alone."""

    def __init__(self, client: EngineClient, samples: Samples, replica: int | None) -> None:
        self._client = client
        self._number = replica
        self._samples = samples
        self._window = Window()
        self._tree = MissLog(self._window.add)
        ticks = samples.ticks() if replica is None else []  # with replicas, samples are sums over all of them
        self._ticks: deque[tuple[int, float]] = deque(ticks, maxlen=1800)
        self._events: list[CacheEvent] = []
        self._latest: dict[str, bytes] = {}  # lines of which a page needs only the last
        self._began = time.time()
        self._sampled = samples.count
        self._bounds_at = 0.0
        self._snapshot_due = False
        self._hashes: dict[str, bytes] = {}  # of waiting requests, because the scheduler sends hashes once

    def begin(self) -> None:
        """Ask the scheduler for a snapshot."""
        self._client.send_watch(WatchCacheReq(True, requests=True), self._number)

    def take(self, message: CacheEvents | RequestViews | RouterQueue | EngineReady) -> None:
        if isinstance(message, EngineReady):
            self.begin()
        elif isinstance(message, RouterQueue):
            self._latest["router"] = router_line(message)
        elif isinstance(message, RequestViews):
            self._latest["requests"] = requests_line(message, self._expected(message))
        else:
            self._apply(message)
            self._client.send_watch(CacheAck(message.seq), self._number)

    def _expected(self, message: RequestViews) -> dict[str, Causes]:
        """Return why tokens of waiting requests would not be found in the cache, by request."""
        queued = [(view, view.queue) for view in message.views if view.queue is not None]
        known = {view.rid: queue.hashes or self._hashes.get(view.rid) for view, queue in queued}
        self._hashes = {rid: hashes for rid, hashes in known.items() if hashes is not None}
        return {
            view.rid: self._tree.causes(self._hashes[view.rid], queue.matched_tokens, view.prompt_tokens)
            for view, queue in queued
            if view.rid in self._hashes
        }

    def _apply(self, batch: CacheEvents) -> None:
        if batch.header is not None:
            self._events.clear()
            self._snapshot_due = True
            if self._ticks and batch.clock < self._ticks[-1][0]:
                self._ticks.clear()  # the clock of a new scheduler begins at 0
        if not self._tree.apply(batch):
            self.begin()
            return
        self._events += [shown for event in batch.events if (shown := shown_event(event)) is not None]
        now = time.time()
        if not self._ticks or now - self._ticks[-1][1] >= TICK_S:
            self._ticks.append((batch.clock, round(now, 2)))

    def write(self, feeds: list[Feed]) -> None:
        """Write new lines to the feeds, and a snapshot with all that is known to feeds that need one."""
        if self._snapshot_due and self._tree.is_complete:
            self._snapshot_due = False
            self._events = []
            for feed in feeds:
                feed.needs_snapshot = True
        lines = self._new_lines()
        whole: bytes | None = None
        for feed in feeds:
            if feed.needs_snapshot and self._tree.is_complete:
                feed.needs_snapshot = False
                whole = whole or self._whole()
                feed.append(whole)
            elif not feed.needs_snapshot:
                feed.append(lines)
            else:
                feed.append(b"\n")  # the page sees that the connection lives

    def _new_lines(self) -> bytes:
        parts = []
        if self._events and not self._snapshot_due:
            parts.append(line("events", clock=self._tree.clock, at=round(time.time(), 2), events=self._events))
            self._events = []
        parts += self._latest.values()
        self._latest.clear()
        rows, self._sampled = self._samples.since(self._sampled), self._samples.count
        if rows:
            parts.append(line("samples", rows=rows))
            parts.append(self._tiers())
        changed = list(self._tree.changed.values())
        if changed:
            parts.append(line("misses", rows=[miss.body() for miss in changed[-512:]]))
            self._tree.changed.clear()
        if time.monotonic() - self._bounds_at > BOUNDS_S:
            self._bounds_at = time.monotonic()
            parts.append(self._bounds())
        return b"".join(parts) or b"\n"

    def _tiers(self) -> bytes:
        """Return the line of the tiers of all replicas; nothing without tiers."""
        stats = self._client.stats
        return b"" if stats is None or stats.tiers is None else tiers_line(stats.tiers)

    def _bounds(self) -> bytes:
        header = self._tree.header
        bounds = None if header is None else self._window.bounds(header.num_slots)
        return line("bounds", since=round(self._began, 2), **({} if bounds is None else bounds._asdict()))

    def _whole(self) -> bytes:
        misses = [miss.body() for miss in (*self._tree.ended, *self._tree.open.values())]
        return b"".join(
            [
                snapshot_line(self._tree, list(self._ticks)),
                line("samples", rows=list(self._samples.rows)),
                self._tiers(),
                line("misses", rows=misses),
                self._bounds(),
            ]
        )
