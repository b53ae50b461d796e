"""Scheduler end of tiers: prefixes that leave the KV pool stay in host memory and on disk, and come back when requests
ask for them.

Out: nothing moves before the pool has evicted something. From then on the coldest prefixes are copied to the host tier
ahead of their eviction (`AHEAD`), so that evicting stays free. When the scheduler is idle, all prefixes are copied for
which the host tier has room, and prefixes of the host tier are saved to disk: a start and a crash find them there.
In: a request that could be admitted waits while a prefix comes from the host tier, or from disk by way of the host
tier, if that is predicted to take less time than computing the prefix (`Prices`). From other replicas: see `Peers`.

A move that is late, lost, damaged or refused means that tokens are computed; no step waits for a move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from radixrt.mem_cache.allocator import Int32Array
from radixrt.mem_cache.tree_node import RETAIN_DONE, TreeNode, path_of
from radixrt.mem_cache.tree_observer import TreeObserver
from radixrt.messages.kv_moves import (
    KEY_BYTES,
    MAX_MOVES,
    MOVE_BYTES,
    TIERS,
    KVConnectorOutput,
    KVDrop,
    KVOpen,
    KVOrder,
)
from radixrt.messages.scheduler_stats import TierStats
from radixrt.messages.wire import pack_i32
from radixrt.parts.tiers.ends import PageEnds, StateEnds
from radixrt.parts.tiers.moves import MoveKind, Moves, Transfer, pieces
from radixrt.parts.tiers.peers import Links, Peers
from radixrt.parts.tiers.policy import DISK, HOST, PEER, Prices, compute_s
from radixrt.parts.tiers.tier import Tier, TierJournal, root_name
from radixrt.scheduler.part import Core, End, Part, WatchedTree
from radixrt.scheduler.req import Req
from radixrt.scheduler.schedule_batch import ScheduleBatch

AHEAD = 2
"""Prefixes that would be evicted next are copied ahead of their eviction, for this number of the largest steps."""
IDLE_S = 0.25
"""Time without open requests after which idle moves begin."""
IDLE_LEAVES = 64
"""Leaves that one iteration of the loop looks at while the scheduler is idle."""
LATE_S, LATE_SHARE = 1.0, 4.0
"""A request waits for a fetch for at most LATE_S seconds and LATE_SHARE times the predicted time and the time of a
step, because a CPU makes moves between steps. After that the request is computed."""
FIRST = {HOST: MoveKind.IN, DISK: MoveKind.LOAD, PEER: MoveKind.PULL}
"""Move with which a fetch from a tier begins."""
MAX_FETCHES = 4
"""Largest number of fetches for one request; after that the request computes what was evicted again."""


class _Known(TreeObserver):
    """Nodes of a tree that need no copy any more.

    Attributes:
        nodes: the nodes, each until it is evicted.
        are_all: no other node of the tree needs a copy, and the tree has not changed since that was found out.
    """

    def __init__(self) -> None:
        self.nodes: set[TreeNode] = set()
        self.are_all = False

    def inserted(self, leaf: TreeNode) -> None:
        self.are_all = False

    def evicted(self, node: TreeNode) -> None:
        self.nodes.discard(node)
        self.are_all = False

    def locked(self, node: TreeNode, change: int) -> None:
        self.are_all = False

    def retained(self, node: TreeNode) -> None:
        self.are_all = False

    def state_changed(self, node: TreeNode) -> None:
        self.nodes.discard(node)
        self.are_all = False

    def cleared(self) -> None:
        self.nodes.clear()
        self.are_all = False


@dataclass(eq=False)
class Fetch:
    """A prefix on its way into the pool, or from disk into the host tier.

    Attributes:
        tokens: tokens of the prefix, from position 0 on.
        key: the tokens under which tiers keep the prefix (`PageEnds.key`).
        root: name of the namespace's root in the tiers.
        start: position of the first token that moves, or need not be computed because of the move.
        rids: requests that wait for the prefix, each with the tier that its tokens come from.
        until: time until which requests wait.
    """

    tokens: Int32Array
    key: Int32Array
    root: str
    start: int
    rids: dict[str, str]
    until: float


class Tiers(Part):
    """See the module's docstring.

    Args:
        host: prefixes in the arena.
        disk: prefixes in files; None without a disk tier.
        opening: the ranks' memory, for the first order.
        num_ranks: number of ranks.
        token_bytes: bytes of one token's keys and values in one rank.
        max_receiving: moves towards the pool at a time.
        records: path of the records of the host tier, for other replicas.
        receive_bytes: largest size of a `KVIn` in one rank.

    `opening.state_rows` says whether prefixes have states of recurrent layers.

    Attributes:
        prices: fitted times of moves.
        moves: moves under way, set by `attach`.
    """

    name = TIERS

    def __init__(
        self,
        host: Tier,
        disk: Tier | None,
        opening: KVOpen,
        num_ranks: int,
        token_bytes: int,
        max_receiving: int = MAX_MOVES,
        records: str = "",
        receive_bytes: int = MOVE_BYTES,
    ) -> None:
        self.host = host
        self.disk = disk
        self.prices = Prices(token_bytes)
        layout = repr((opening.model, host.page, num_ranks, token_bytes, opening.state_rows)).encode()
        self.peers = Peers(host, layout, opening.arena, records)
        self._opening = opening
        self._num_ranks = num_ranks
        self._max_receiving = max_receiving
        self._receive_bytes = receive_bytes
        self._token_bytes = token_bytes
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(KVConnectorOutput)
        self._fetches: list[Fetch] = []
        self._begun: dict[str, int] = {}  # number of fetches for each open request
        self._loaded: set[str] = set()  # requests whose prefix came from disk into the host tier
        self._copied, self._saved = _Known(), _Known()
        self._leaving: set[TreeNode] = set()  # leaves that are being copied or saved
        self._behind: list[tuple[TreeNode, Callable[[], None]]] = []  # held nodes to copy for other replicas
        self._evicted = 0  # tokens that the pool had evicted at the last step
        self._host_evicted = 0
        self._idle_since: float | None = None
        self._dropping = False

    def attach(self, core: Core) -> None:
        self._core = core
        self._cache = core.kv.cache
        self._ends = PageEnds(core.kv, self.host.page)
        states = self._cache.node_states
        if states is not None:
            self._ends = StateEnds(core.kv, self.host.page, states, self._opening.state_rows)
        self.moves = Moves(
            self._num_ranks,
            self._order,
            lambda kind, size, s: self.prices.moved(kind.value, size, s),
            self._max_receiving,
        )
        refused = self.moves.counters.refused
        self.peers.attach(
            core,
            self._ends,
            Links(self._start, self._pull_until, self._pull_pays, self._copy_for_peer, self._may_pull, refused),
        )
        self._cache.watch(self._copied)
        self.host.cache.watch(self._saved)
        self._order(self._opening)

    def _order(self, order: KVOrder) -> None:
        self._core.order(self, self._encoder.encode(order))

    def _start(
        self,
        kind: MoveKind,
        columns: Iterable[tuple[bytes, int]],
        count: int,
        tokens: int,
        ended: Callable[[bool], None],
        ordered: Callable[[], None] | None = None,
        source: tuple[str, ...] = (),
    ) -> None:
        """Start a transfer of `count` entries of `tokens` tokens each; see `pieces` for the columns and `Transfer` for
        the calls."""
        entry_bytes = tokens * self._token_bytes
        most = max((self._receive_bytes if kind is MoveKind.IN else MOVE_BYTES) // entry_bytes, 1)
        self.moves.start(Transfer(kind, pieces(tuple(columns), count, most, entry_bytes), ended, ordered, source))

    def reported(self, rank: int, data: bytes, now: float) -> None:
        # After a failed step the slots that moves have copied may hold anything. `emptying` follows.
        if not self._core.requests.recovering:
            self.moves.reported(rank, self._decoder.decode(data))

    # --- in ---

    def fetches(self, req: Req, now: float) -> bool:
        """Return True while a prefix of the request is on its way; begin a fetch if that is predicted to pay."""
        tokens, root, page = req.reusable_ids, root_name(req.namespace), self.host.page
        cached = self._cache.match_len(tokens, req.namespace)
        if self.peers.awaits(req, cached, now):
            return True
        for fetch in self._fetches:
            if fetch.root == root and self._ends.helps(fetch.tokens, fetch.start, tokens, cached):
                if now >= fetch.until:
                    self.moves.counters.refused("late")
                    return False
                fetch.rids.setdefault(req.rid, HOST)
                return True
        in_host = self._ends.found(self.host, tokens, root)
        on_disk = 0 if self.disk is None else self._ends.found(self.disk, tokens, root)
        tier, end = (DISK, on_disk) if on_disk > max(in_host, cached) else (HOST, in_host)
        if end < cached + page or self._begun.get(req.rid, 0) >= MAX_FETCHES:
            return False
        fetch_s = self._fetch_s(tier, self._ends.num_places(tokens[:end], req.namespace, cached))
        if not self._pays(tier, cached, end, fetch_s):
            self.moves.counters.refused("price")
            return False
        until = self._until(fetch_s, now)
        begin = self._load if tier == DISK else self._fetch
        if not begin(req, tokens[:end].copy(), root, until):
            return False
        self._begun[req.rid] = self._begun.get(req.rid, 0) + 1
        return True

    def _until(self, fetch_s: float, now: float) -> float:
        """Return the time until which a request waits for a fetch of so many predicted seconds."""
        return now + LATE_S + LATE_SHARE * (fetch_s + self._core.step_time.recent_s)

    def _pull_until(self, tokens: int, now: float) -> float:
        return self._until(self._fetch_s(PEER, tokens), now)

    def _may_pull(self) -> bool:
        return self.moves.has_room(MoveKind.PULL)

    def _pull_pays(self, start: int, end: int, places: int) -> bool:
        return self._pays(PEER, start, end, self._fetch_s(PEER, places))

    def _fetch_s(self, tier: str, places: int) -> float:
        """Return the predicted seconds of a fetch that begins now."""
        queued = self.moves.queued_bytes(FIRST[tier])
        return self.prices.fetch_s(tier, places, queued)

    def _pays(self, tier: str, start: int, end: int, fetch_s: float) -> bool:
        """Return True if fetching the tokens [start, end) of a waiting request is predicted to cost less time than
        computing them. A fetch from memory may take longer, because the device computes other requests meanwhile. A
        disk is so slow that its queue then grows without end."""
        requests, fetching = self._core.requests, sum(len(fetch.rids) for fetch in self._fetches)
        others = 0 if tier == DISK else max(len(requests.active) + len(requests.waiting) - fetching - 1, 0)
        return self.prices.pays(tier, fetch_s, compute_s(self._core.step_time.times, start, end - start), others)

    def _fetch(self, req: Req, tokens: Int32Array, root: str, until: float) -> bool:
        """Begin to copy a request's prefix from the host tier into the pool; return False if slots are missing."""
        key = self._ends.key(tokens)
        found, coming = self.host.match(key, root), self._ends.begin(tokens, req.namespace)
        if coming is None:
            self.moves.counters.refused("slots")
            return False
        self.host.copies.hold(found.node)
        start, slots = coming.arrival.start, coming.slots
        places = found.slots[start : start + len(slots)]
        tier = DISK if req.rid in self._loaded else PEER if req.rid in self.peers.pulled else HOST
        fetch = Fetch(tokens, key, root, coming.start, {req.rid: tier}, until)
        self._fetches.append(fetch)

        def ended(ok: bool) -> None:
            self._fetches.remove(fetch)
            self.host.copies.let_go(found.node)
            self._ends.end(coming, copied=ok)
            if ok:
                self._note(fetch)
            else:
                self._failed(self.host, fetch)

        columns = [(pack_i32(places), 4), (pack_i32(slots), 4)]
        self._start(MoveKind.IN, columns, len(slots), 1, ended)
        return True

    def _load(self, req: Req, tokens: Int32Array, root: str, until: float) -> bool:
        """Begin to copy a request's prefix from disk into the host tier, from where a fetch continues; return False if
        places are missing."""
        assert self.disk is not None
        disk, copies, page, key = self.disk, self.host.copies, self.host.page, self._ends.key(tokens)
        found = disk.match(key, root)
        arrival = copies.begin(key, root)
        if arrival is None:
            self.moves.counters.refused("places")
            return False
        disk.copies.hold(found.node)
        start, places = arrival.start, arrival.slots
        fetch = Fetch(tokens, key, root, start, {req.rid: DISK}, until)
        self._fetches.append(fetch)

        def ended(ok: bool) -> None:
            self._fetches.remove(fetch)
            disk.copies.let_go(found.node)
            copies.end(arrival, copied=ok)
            if ok:
                disk.touch(found.slots)
                self._loaded.update(fetch.rids)
            else:
                self._failed(disk, fetch)

        files, pages = pack_i32(found.slots[start::page] // page), pack_i32(places[::page] // page)
        keys = disk.keys(key, root)[start // page * KEY_BYTES :]
        self._start(MoveKind.LOAD, [(files, 4), (keys, KEY_BYTES), (pages, 4)], len(places) // page, page, ended)
        return True

    def _failed(self, tier: Tier, fetch: Fetch) -> None:
        """Forget what could not be read. No report tells which page is damaged, so all pages of the fetch are
        forgotten."""
        if not self._dropping:
            self.moves.counters.refused("failed")
            tier.forget(fetch.key, fetch.start - fetch.start % tier.page, fetch.root)

    def _note(self, fetch: Fetch) -> None:
        """Note a prefix that came into the pool, at the requests that wait for it."""
        for rid, tier in fetch.rids.items():
            if (req := self._core.requests.by_rid.get(rid)) is not None:
                req.stats.note_fetched(tier, fetch.start, len(fetch.tokens))

    # --- out ---

    def committed(self, batch: ScheduleBatch) -> None:
        """Copy the prefixes that would be evicted next, once the pool has evicted anything."""
        if self._ends.has_evicted:
            evicted = self._cache.evicted_tokens
            self._copy_out(AHEAD * self._core.config.chunked_prefill_size + evicted - self._evicted)
            self._evicted = evicted

    def _copy_out(self, ahead: int) -> None:
        """Begin to copy the coldest leaves of the pool to the host tier, as far as moves are free.

        Args:
            ahead: tokens to look at, the coldest first.
        """
        self._forget_copied()
        for leaf in self._dirty(ahead):
            if not self.moves.has_room(MoveKind.OUT):
                return
            self._copy_leaf(leaf, evicts=True)

    def _forget_copied(self) -> None:
        """Look at all leaves again after the host tier has evicted a part of its prefixes."""
        if self.host.cache.evicted_tokens - self._host_evicted > self.host.allocator.num_slots // 16:
            self._host_evicted = self.host.cache.evicted_tokens
            self._copied.cleared()

    def _dirty(self, ahead: int) -> list[TreeNode]:
        """Return the ends of the coldest prefixes of the pool that are not known to be in the host tier."""
        known = (self._copied.nodes, self._leaving)
        ends = self._ends.coldest(ahead)
        return [end for end in ends if end.retention != RETAIN_DONE and not any(end in each for each in known)]

    def _copy_for_peer(self, node: TreeNode, then: Callable[[], None]) -> None:
        """Copy the prefix that ends in a node to the host tier, behind the copies that share most of it."""
        if self._ends.overlaps(node, self._leaving):
            self._ends.hold(node)
            self._behind.append((node, then))
        else:
            self._copy_leaf(node, evicts=True, then=then)

    def _copy_behind(self) -> None:
        """Copy the prefixes that have waited for another copy, which has ended."""
        behind, self._behind = self._behind, []
        for node, then in behind:
            self._ends.let_go(node)
            if self._dropping:
                then()
            else:
                self._copy_for_peer(node, then)

    def _copy_leaf(self, leaf: TreeNode, *, evicts: bool, then: Callable[[], None] = lambda: None) -> None:
        """Begin to copy the prefix that ends in a leaf, or in any other node, of the pool to the host tier.

        Args:
            evicts: prefixes of the host tier may be evicted for the leaf.
            then: called when the copy has ended, or does not begin.
        """
        if self._ends.overlaps(leaf, self._leaving):
            then()
            return
        key, slots, namespace = self._ends.leaving(leaf)
        copies = self.host.copies
        arrival = copies.begin(key, root_name(namespace), evicts=evicts)
        if arrival is None or not len(arrival.slots):
            self._copied.nodes.add(leaf)  # it is there, or there is no room for the leaf now
            if arrival is None:
                self.moves.counters.refused("places")
            else:
                copies.end(arrival, copied=False)
            then()
            return
        # The leaf is held until its last piece is ordered: ranks gather the piece before a later step writes its slots.
        held = [leaf]
        self._ends.hold(leaf)
        self._leaving.add(leaf)

        def release() -> None:
            if held:
                self._ends.let_go(held.pop())

        def ended(ok: bool) -> None:
            release()
            self._leaving.discard(leaf)
            if leaf.parent is not None and not self._dropping:
                self._copied.nodes.add(leaf)  # also if it failed: memory that cannot be used fails again at once
            copies.end(arrival, copied=ok)
            then()
            self._copy_behind()

        columns = [(pack_i32(slots[arrival.start :]), 4), (pack_i32(arrival.slots), 4)]
        self._start(MoveKind.OUT, columns, len(arrival.slots), 1, ended, release)

    # --- idle moments, and the end ---

    def turn(self, now: float) -> Iterable[Any]:
        """Copy and save while no request is open. Return answers to other replicas."""
        if not self._core.scheduler.is_idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since >= IDLE_S:
            self.save()
        self.peers.take_handed(now)
        answers, self.peers.outgoing = self.peers.outgoing, []
        return answers

    def save(self) -> bool:
        """Begin moves that make the cache outlive the processes; return True while moves are under way.

        Prefixes of the pool are copied to the host tier as long as that has room, and prefixes of the host tier to
        disk, the last used ones first.
        """
        if not self._core.scheduler.has_runner:
            return False
        self._forget_copied()
        # Leaves that are being copied or saved are not among those found, and may need another copy.
        if not self._copied.are_all:
            leaves = list(islice(self._idle_leaves(), IDLE_LEAVES))
            self._copied.are_all = not leaves and not self._leaving
            for leaf in leaves:
                if self.moves.has_room(MoveKind.OUT):
                    self._copy_leaf(leaf, evicts=False)
        if self.disk is not None and not self._saved.are_all:
            nodes = list(islice(self._unsaved(), IDLE_LEAVES))
            self._saved.are_all = not nodes and not self._leaving
            for node in nodes:
                if self.moves.has_room(MoveKind.SAVE):
                    self._save_leaf(self.disk, node)
        return not self.moves.is_idle

    def _idle_leaves(self) -> Iterator[TreeNode]:
        return reversed(self._dirty(self._cache.total_size + 1))

    def _unsaved(self) -> Iterator[TreeNode]:
        """Yield the leaves of the host tier that are not known to be on disk, the last used one first."""
        leaves = list(self.host.cache.coldest())
        known = (self._saved.nodes, self._leaving)
        return (
            leaf for leaf in reversed(leaves) if self._ends.is_kept(leaf) and not any(leaf in each for each in known)
        )

    def _save_leaf(self, disk: Tier, leaf: TreeNode) -> None:
        """Begin to save the path to a leaf of the host tier."""
        tokens, root = path_of(leaf)
        arrival, page = disk.copies.begin(tokens, root), disk.page
        if arrival is None or not len(arrival.slots):
            self._saved.nodes.add(leaf)
            if arrival is not None:
                disk.copies.end(arrival, copied=False)
            return
        self.host.copies.hold(leaf)
        self._leaving.add(leaf)

        def ended(ok: bool) -> None:
            self._leaving.discard(leaf)
            self.host.copies.let_go(leaf)
            if not self._dropping:
                self._saved.nodes.add(leaf)  # also if it failed: a full disk stays full
            disk.copies.end(arrival, copied=ok)

        start, files = arrival.start, arrival.slots
        pages = pack_i32(self.host.cache.path_slots(leaf)[start::page] // page)
        keys = disk.keys(tokens, root)[start // page * KEY_BYTES :]
        columns = [(pages, 4), (pack_i32(files[::page] // page), 4), (keys, KEY_BYTES)]
        self._start(MoveKind.SAVE, columns, len(files) // page, page, ended)

    # --- requests and operators ---

    def handles(self) -> Mapping[type, Callable[[Any, float], Iterable[Any]]]:
        return self.peers.handles()

    def forgotten(self) -> None:
        self.peers.forgotten()

    def ended(self, end: End) -> None:
        self.peers.ended(end.rid)
        self._begun.pop(end.rid, None)
        self._loaded.discard(end.rid)

    def forgetting(self, namespace: str, *, whole_owner: bool) -> None:
        """Drop a namespace from all tiers, with the moves that might bring its tokens back."""
        self.emptying()
        self.peers.forgotten()  # answers may name pages with these tokens
        for tier in (self.host, self.disk):
            if tier is not None:
                tier.forget_namespace(namespace, whole_owner=whole_owner)

    def flushing(self) -> None:
        """Empty the host tier, but for what moves hold. Files stay."""
        self.host.cache.evict(self.host.cache.evictable_size)
        self._copied.cleared()

    def emptying(self) -> None:
        """Drop all moves: the slots that they copy are about to be reused. The tiers stay as they are."""
        self._dropping = True
        self.moves.drop()
        self._dropping = False
        self._order(KVDrop())
        self._order(self._opening)  # the ranks may be new

    def trees(self) -> dict[str, WatchedTree]:
        tiers = [tier for tier in (self.host, self.disk) if tier is not None]
        return {tier.name: WatchedTree(tier.cache, TierJournal()) for tier in tiers}

    def kept(self, tokens: Int32Array, namespace: str) -> dict[str, int]:
        root = root_name(namespace)
        return {tier.name: self._ends.found(tier, tokens, root) for tier in (self.host, self.disk) if tier is not None}

    def stats(self, now: float) -> dict[str, TierStats]:
        tiers = [tier for tier in (self.host, self.disk) if tier is not None]
        total = {tier.name: tier.allocator.num_slots for tier in tiers}
        used = {tier.name: tier.num_tokens for tier in tiers}
        fetched, token_s = self._core.counters.fetched_tokens, self.prices.fetch_token_s()
        return {"tiers": self.moves.counters.stats(total, used, fetched, token_s, self._opening.state_rows)}

    def check(self) -> None:
        for tier in (self.host, self.disk):
            if tier is not None:
                tier.check()
