"""Other policies of the host tier beside the cleaner of `radixrt.parts.tiers`, for `benchmarks.cache.tiers`.

- `WriteThrough`: copies all tokens as soon as they are computed (default of SGLang HiCache).
- `WriteBack`: copies a prefix when the pool evicts the prefix; the device waits for the copy (HiCache `write_back`).
- `SecondHit`: the cleaner, for prefixes that were asked for again since they were computed.
- `Ghosts`: the cleaner; while the host tier is full, it admits classes of prefixes by the share of the class's evicted
  prefixes that requests have asked for again.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from radixrt.mem_cache.results import InsertResult
from radixrt.mem_cache.tree_node import TreeNode, path_of, retention_kind
from radixrt.mem_cache.tree_observer import TreeObserver
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.parts.tiers.moves import MoveKind
from radixrt.parts.tiers.scheduler import Tiers
from radixrt.parts.tiers.tier import root_name
from radixrt.scheduler.part import Core
from radixrt.scheduler.req import Req
from radixrt.scheduler.schedule_batch import ScheduleBatch


class WriteThrough(Tiers):
    """See the module's docstring."""

    def attach(self, core: Core) -> None:
        super().attach(core)
        self._new: list[TreeNode] = []

    def published(self, req: Req, start: int, result: InsertResult) -> None:
        self._new.append(result.node)

    def committed(self, batch: ScheduleBatch) -> None:
        self._forget_copied()
        new, self._new = self._new, []
        for node in new:
            if node.parent is not None and node not in self._copied.nodes and node not in self._leaving:
                self._copy_leaf(node, evicts=True)


class _Evictions(TreeObserver):
    """Tells a policy of leaves that are about to be evicted."""

    def __init__(self, policy: WriteBack | Ghosts) -> None:
        self._policy = policy

    def evicting(self, leaf: TreeNode) -> None:
        self._policy.evicting(leaf)


class WriteBack(Tiers):
    """See the module's docstring. The copy's order precedes the step that writes the slots, and the device waits."""

    def attach(self, core: Core) -> None:
        super().attach(core)
        self._cache.watch(_Evictions(self))

    def committed(self, batch: ScheduleBatch) -> None:
        """Copy nothing ahead of evictions."""

    def _fetch(self, req: Req, tokens: Int32Array, root: str, until: float) -> bool:
        # The fetch evicts prefixes of the pool, which may evict prefixes of the host tier, but not the fetched prefix.
        node = self.host.match(tokens, root).node
        self.host.copies.hold(node)
        begun = super()._fetch(req, tokens, root, until)
        self.host.copies.let_go(node)
        return begun

    def evicting(self, leaf: TreeNode) -> None:
        """Copy a leaf that is about to be evicted."""
        tokens, namespace = path_of(leaf)
        copies = self.host.copies
        arrival = copies.begin(self.host.whole(tokens), root_name(namespace))
        if arrival is None or not len(arrival.slots):
            if arrival is not None:
                copies.end(arrival, copied=False)
            return
        slots = self._cache.path_slots(leaf)[arrival.start : len(arrival.tokens)]
        columns = [(pack_i32(slots), 4), (pack_i32(arrival.slots), 4)]
        self._start(MoveKind.OUT, columns, len(slots), 1, lambda ok: copies.end(arrival, copied=ok))


class SecondHit(Tiers):
    """See the module's docstring."""

    def _dirty(self, ahead: int) -> list[TreeNode]:
        nodes: dict[TreeNode, None] = {}
        for leaf in super()._dirty(ahead):
            node: TreeNode = leaf
            while node.parent is not None and not node.hits:
                node = node.parent
            if node.parent is not None and node not in self._copied.nodes and node not in self._leaving:
                nodes[node] = None
        return list(nodes)


MOST_GHOSTS = 65_536


class Ghosts(Tiers):
    """See the module's docstring. A class is the number of hits, up to 2, and the retention level of a prefix."""

    def attach(self, core: Core) -> None:
        super().attach(core)
        self._cache.watch(_Evictions(self))
        self._ghosts: OrderedDict[bytes, Any] = OrderedDict()  # classes of evicted prefixes, by a hash of all tokens
        self._asked: defaultdict[Any, float] = defaultdict(lambda: 1.0)
        self._evictions: defaultdict[Any, float] = defaultdict(lambda: 1.0)
        self._credit: defaultdict[Any, float] = defaultdict(float)
        self._seen: set[str] = set()

    def evicting(self, leaf: TreeNode) -> None:
        """Note the class of a leaf that is about to be evicted."""
        kind = _kind(leaf)
        self._evictions[kind] += 1
        tokens, _ = path_of(leaf)
        self._ghosts[blake2b(tokens.tobytes(), digest_size=8).digest()] = kind
        if len(self._ghosts) > MOST_GHOSTS:
            self._ghosts.popitem(last=False)

    def fetches(self, req: Req, now: float) -> bool:
        if req.rid not in self._seen:
            self._seen.add(req.rid)
            self._ask(req.reusable_ids)
        return super().fetches(req, now)

    def _ask(self, tokens: Int32Array) -> None:
        """Look for evicted prefixes that a request begins with."""
        digest, data = blake2b(digest_size=8), tokens.tobytes()
        for at in range(0, len(data), 4):
            digest.update(data[at : at + 4])
            kind = self._ghosts.pop(digest.digest(), None)
            if kind is not None:
                self._asked[kind] += 1

    def _copy_leaf(self, leaf: TreeNode, *, evicts: bool, then: Callable[[], None] = lambda: None) -> None:
        if evicts and self.host.allocator.available() < leaf.num_tokens + self.host.page:
            kind = _kind(leaf)
            shares = {each: self._asked[each] / count for each, count in self._evictions.items()}
            self._credit[kind] += shares.get(kind, 1.0) / max(shares.values(), default=1.0)
            if self._credit[kind] < 1.0:
                self._copied.nodes.add(leaf)
                then()
                return
            self._credit[kind] -= 1.0
        super()._copy_leaf(leaf, evicts=evicts, then=then)


def _kind(leaf: TreeNode) -> tuple[int, int]:
    return min(leaf.hits, 2), retention_kind(leaf.retention)
