"""`Peers`: prefixes that come from another replica of the engine, and prefixes that other replicas ask for.

The replica that has a prefix (A) copies the prefix to its host tier if only the KV pool has it, and answers which pages
have it. The replica that needs the prefix (B) copies the pages from A's memory into its own host tier, from where a
fetch continues. The main process owns the memory of all replicas, so a copy needs neither a connection nor A's
processes.

A holds nothing for B, so A may evict a page while B copies the page. The ranks of B compare the page's record before
and after the copy (`records.SharedRecords`): if the record has changed, the copy has failed. The hashes that the ranks
expect are computed from tokens and namespace, so B gets the keys and values of these tokens, or none.

A request waits for A's answer and for the copy for a bounded time, and is computed otherwise.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from radixrt.mem_cache.allocator import Int32Array
from radixrt.mem_cache.tree_node import RETAIN_DONE, TreeNode, path_of
from radixrt.messages.kv_moves import KEY_BYTES
from radixrt.messages.peers import FromPeer, HandedOver, HandOver, PrefixAsk, PrefixComing, PrefixPages, PrefixTaken
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.parts.tiers.ends import PageEnds
from radixrt.parts.tiers.moves import MoveKind
from radixrt.parts.tiers.tier import Tier, root_name
from radixrt.scheduler.part import Core
from radixrt.scheduler.prefix_index import common_len
from radixrt.scheduler.req import Req


@dataclass(frozen=True)
class Links:
    """What `Peers` needs of the part.

    Attributes:
        start: starts a transfer; see `Tiers`.
        until: returns the time until which a request waits for so many tokens that are pulled from now on.
        pays: returns True if pulling the tokens [start, end), by so many places, is predicted to take less time than
            computing them.
        copy_out: copies the prefix that ends in a node of the pool to the host tier, and calls a function when the copy
            has ended.
        has_room: returns True if a pull would start at once.
        refused: counts a pull that does not begin, or is not waited for, by its reason.
    """

    start: Callable[..., None]
    until: Callable[[int, float], float]
    pays: Callable[[int, int, int], bool]
    copy_out: Callable[[TreeNode, Callable[[], None]], None]
    has_room: Callable[[], bool]
    refused: Callable[[str], None]


@dataclass(eq=False)
class _Pull:
    """Prefix on its way from another replica into the host tier.

    Attributes:
        tokens: tokens of the prefix, from position 0 on.
        rids: requests that wait for the prefix.
        until: time until which they wait.
    """

    tokens: Int32Array
    root: str
    start: int
    rids: set[str]
    until: float


class Peers:
    """See the module's docstring.

    Args:
        host: host tier of this replica.
        layout: value of `PrefixPages.layout` for pages of this replica's host tier.
        arena, records: where the host tier is.

    Attributes:
        outgoing: answers to send.
        pulled: open requests with a prefix that was pulled.
    """

    def __init__(self, host: Tier, layout: bytes, arena: str, records: str) -> None:
        self._host = host
        self._layout = layout
        self._arena = arena
        self._records = records
        self._coming: dict[str, tuple[int, float]] = {}  # tokens, and the time until which the request waits
        self._pulls: list[_Pull] = []
        self._handed: deque[PrefixPages] = deque()  # prefixes that are not being copied yet
        self.outgoing: list[FromPeer] = []
        self.pulled: set[str] = set()

    def attach(self, core: Core, ends: PageEnds, links: Links) -> None:
        """Keep what is needed of the core and of the part."""
        self._core = core
        self._ends = ends
        self._links = links

    def handles(self) -> Mapping[type, Callable[[Any, float], tuple[()]]]:
        return {
            PrefixAsk: self._asked,
            PrefixComing: self._announced,
            PrefixPages: self._answered,
            HandOver: self._hand_over,
        }

    # --- the replica that has the prefix ---

    def _asked(self, message: PrefixAsk, now: float) -> tuple[()]:
        tokens, root = unpack_i32(message.token_ids), root_name(message.namespace)
        in_pool = self._ends.in_pool(tokens, message.namespace)
        if in_pool <= self._ends.found(self._host, tokens, root) or not self._core.scheduler.has_runner:
            self._answer(message, tokens, root)
        else:
            node = self._core.kv.cache.match_prefix(tokens[:in_pool], message.namespace).node
            self._links.copy_out(node, lambda: self._answer(message, tokens, root))
        return ()

    def _hand_over(self, message: HandOver, now: float) -> tuple[()]:
        left, leaves, nodes = message.tokens, list[TreeNode](), set[TreeNode]()
        for leaf in self._ends.warmest() if self._core.scheduler.has_runner else ():
            room = self._ends.room(leaf, nodes)
            if leaf.retention != RETAIN_DONE and room <= left:
                left -= room
                leaves.append(leaf)
                nodes.update(leaf.path())
        under_way = len(leaves)

        def copied(tokens: Int32Array, namespace: str) -> None:
            nonlocal under_way
            self._answer(PrefixAsk("", b"", namespace), tokens, root_name(namespace))
            under_way -= 1
            if not under_way:
                self.outgoing.append(HandedOver(len(leaves)))

        for leaf in leaves:
            self._links.copy_out(leaf, partial(copied, *path_of(leaf)))
        if not leaves:
            self.outgoing.append(HandedOver(0))
        return ()

    def _answer(self, message: PrefixAsk, tokens: Int32Array, root: str) -> None:
        page = self._host.page
        length = self._ends.found(self._host, tokens, root)
        key = self._ends.key(tokens[:length]) if length else tokens[:0]
        places = self._host.match(key, root).slots
        self.outgoing.append(
            PrefixPages(
                message.rid,
                key.tobytes(),
                message.namespace,
                self._layout,
                self._arena,
                self._records,
                pack_i32(places[::page] // page),
            )
        )

    # --- the replica that needs the prefix ---

    def _announced(self, message: PrefixComing, now: float) -> tuple[()]:
        self._coming[message.rid] = message.tokens, self._links.until(message.tokens, now)
        return ()

    def _answered(self, message: PrefixPages, now: float) -> tuple[()]:
        if message.source >= 0:
            self._handed.append(message)
            self.take_handed(now)
            return ()
        if self._coming.pop(message.rid, None) is None or not message.pages:
            return ()  # it has ended, or the answer is late; or nothing comes
        if not self._fits(message):
            return ()
        key, root = unpack_i32(message.token_ids), root_name(message.namespace)
        tokens = key[: self._ends.length(key)]
        cached = max(
            self._core.kv.cache.match_len(tokens, message.namespace), self._ends.found(self._host, tokens, root)
        )
        if len(tokens) < cached + self._host.page:
            return ()
        places = self._ends.num_places(tokens, message.namespace, cached)
        if not self._core.scheduler.has_runner or not self._links.pays(cached, len(tokens), places):
            self._links.refused("price")
        else:
            self._pull(message, key, unpack_i32(message.pages), root, now)
        return ()

    def _fits(self, message: PrefixPages) -> bool:
        fits = message.layout == self._layout and len(message.pages) * self._host.page == len(message.token_ids)
        if not fits:
            self._links.refused("layout")
        return fits

    def take_handed(self, now: float) -> None:
        """Copy prefixes that other replicas hand over, while no other move towards the pool has to wait for that. No
        prefix of this replica is evicted for them. A prefix waits for a copy of its first page, which it shares."""
        while self._handed and self._links.has_room():
            message = self._handed[0]
            key, pages = unpack_i32(message.token_ids), unpack_i32(message.pages)
            if any(np.array_equal(pull.tokens[: self._host.page], key[: self._host.page]) for pull in self._pulls):
                return
            self._handed.popleft()
            if not (self._core.scheduler.has_runner and len(key) and self._fits(message)):
                self.outgoing.append(PrefixTaken(message.source))
            else:
                self._pull(message, key, pages, root_name(message.namespace), now)

    def _pull(self, message: PrefixPages, key: Int32Array, theirs: Int32Array, root: str, now: float) -> None:
        """Begin to copy a prefix, which tiers keep under `key`, from another replica into the host tier."""
        host, copies, page = self._host, self._host.copies, self._host.page
        is_handed = message.source >= 0
        arrival = copies.begin(key.copy(), root, evicts=not is_handed)
        if arrival is None or not len(arrival.slots):
            if arrival is None:
                self._links.refused("places")
            else:  # the host tier has the prefix
                copies.end(arrival, copied=False)
            if is_handed:
                self.outgoing.append(PrefixTaken(message.source))
            return
        start, places = arrival.start, arrival.slots
        until = self._links.until(len(places), now)
        tokens = arrival.tokens[: self._ends.length(arrival.tokens)]
        pull = _Pull(tokens, root, start, set() if is_handed else {message.rid}, until)
        self._pulls.append(pull)

        def ended(ok: bool) -> None:
            self._pulls.remove(pull)
            copies.end(arrival, copied=ok)
            if ok:
                self.pulled |= pull.rids
            else:
                self._links.refused("failed")
            if is_handed:
                self.outgoing.append(PrefixTaken(message.source))

        keys = host.keys(arrival.tokens, root)[start // page * KEY_BYTES :]
        mine = pack_i32(places[::page] // page)
        columns = ((pack_i32(theirs[start // page :]), 4), (keys, KEY_BYTES), (mine, 4))
        source = (message.arena, message.records)
        self._links.start(MoveKind.PULL, columns, len(places) // page, page, ended, source=source)

    def awaits(self, req: Req, cached: int, now: float) -> bool:
        """Return True while more of a request's prefix is coming than the pool and the host tier have.

        Args:
            cached: tokens that the pool has.
        """
        if not self._coming and not self._pulls:
            return False
        tokens, root = req.reusable_ids, root_name(req.namespace)
        for pull in self._pulls:
            if pull.root == root and self._ends.helps(pull.tokens, pull.start, tokens, cached):
                if now >= pull.until:
                    self._links.refused("late")
                    return False
                pull.rids.add(req.rid)
                return True
        have = max(cached, self._ends.found(self._host, tokens, root)) + self._host.page
        if now >= self._coming.get(req.rid, (0, math.inf))[1]:
            self._links.refused("late")
            del self._coming[req.rid]
            return False
        return any(
            now < until and self._brings(rid, length, req) >= have for rid, (length, until) in self._coming.items()
        )

    def _brings(self, rid: str, length: int, req: Req) -> int:
        """Return the length of a request's prefix once the answer for the request `rid` has come.

        Args:
            length: tokens that the other replica has of the prefix of `rid`.
        """
        if rid == req.rid:
            return min(length, len(req.reusable_ids))
        other = self._core.requests.by_rid.get(rid)
        if other is None or other.namespace != req.namespace:
            return 0
        return self._ends.shared(length, common_len(other.reusable_ids, req.reusable_ids))

    def ended(self, rid: str) -> None:
        """Forget a request."""
        self._coming.pop(rid, None)
        self.pulled.discard(rid)
        for pull in self._pulls:
            pull.rids.discard(rid)

    def forgotten(self) -> None:
        """Forget what other replicas were asked for, and what they have asked for."""
        self._coming.clear()
        self._handed.clear()
        self.outgoing.clear()
