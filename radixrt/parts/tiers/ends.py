"""`PageEnds`, `StateEnds`: where the prefixes end that tiers keep, and what a tier stores of such a prefix.

A tier is a tree of whole pages. For a model with recurrent layers, a prefix is of no use without the state after its
last token, which may be any token, so a tier keeps a prefix as far as there is a state:

    tokens of the prefix ...................... | state      | padding |
    | page          | page          | page          | page          |

A state counts as the tokens whose memory it takes: `state_rows` rows behind the last token, which have the token
STATE_TOKEN in the tree of the tier and in its records. No prompt has this token, and the chain hash of the pages covers
all tokens before the state. So a state is found, moved, saved, verified, restored, evicted and forgotten as the end of
the prefix that it belongs to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from radixrt.mem_cache.allocator import Int32Array
from radixrt.mem_cache.copies import Arrival
from radixrt.mem_cache.node_states import NodeStates
from radixrt.mem_cache.tree_node import TreeNode, path_of
from radixrt.messages.kv_moves import STATE_TOKEN, state_slots
from radixrt.parts.tiers.tier import Tier, ends_in_state
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.prefix_index import common_len

LEAST_AHEAD = 16
"""Number of states that are copied ahead of their eviction, beside as many as were evicted in the last step."""


class Leaving(NamedTuple):
    """Prefix of the pool that a tier may keep.

    Attributes:
        key: int32[n], tokens of the prefix in trees of tiers, whole pages; see `PageEnds.key`.
        slots: int32[n], slot of the pool that each place is copied from.
    """

    key: Int32Array
    slots: Int32Array
    namespace: str


class Coming(NamedTuple):
    """Prefix that is being copied into the pool.

    Attributes:
        slots: int32[n], slot that each place is copied to, for the places from `arrival.start` on.
        start: position of the first token that need not be computed because of the copy.
        state: reserved slot for the state after the prefix; 0 without one.
    """

    arrival: Arrival
    slots: Int32Array
    start: int
    state: int = 0


class PageEnds:
    """Prefixes of keys and values alone. A prefix can end after any whole page of the tiers, and a leaf of the pool is
    copied as a whole.

    Args:
        page: tokens of a page of the tiers.
    """

    def __init__(self, kv: KVManager, page: int) -> None:
        self._copies = kv.copies
        self._cache = kv.cache
        self._page = page

    # --- in tiers ---

    def key(self, tokens: Int32Array) -> Int32Array:
        """Return the tokens under which tiers keep a prefix that `found` has measured."""
        return tokens

    def length(self, key: Int32Array) -> int:
        """Return the number of tokens of the prefix that tiers keep under a key."""
        return len(key)

    def found(self, tier: Tier, tokens: Int32Array, root: str) -> int:
        """Return the length of the longest prefix of tokens that a tier keeps; changes nothing."""
        return tier.match_len(tokens, root)

    def is_kept(self, leaf: TreeNode) -> bool:
        """Return True if the path to a leaf of a tier can be of use."""
        return True

    def helps(self, prefix: Int32Array, start: int, tokens: Int32Array, cached: int) -> bool:
        """Return True if a request should wait for a prefix that is on its way.

        Args:
            start: position of the first token of the prefix that is copied.
            tokens: tokens of the request.
            cached: number of leading tokens that the request need not compute now.
        """
        return common_len(prefix, tokens) >= max(cached, start) + self._page

    def shared(self, prefix: int, common: int) -> int:
        """Return the number of tokens that a request gets from a prefix which comes for another request.

        Args:
            prefix: length of the prefix.
            common: number of leading tokens that both requests have.
        """
        return min(prefix, common)

    def num_places(self, tokens: Int32Array, namespace: str, cached: int) -> int:
        """Return the number of places that a fetch of a prefix copies into the pool.

        Args:
            cached: as for `helps`.
        """
        return len(tokens) - cached

    def stored(self, length: int) -> int:
        """Return the number of places that a tier needs for a prefix of so many tokens."""
        return length - length % self._page

    # --- out of the pool ---

    def room(self, end: TreeNode, others: Collection[TreeNode]) -> int:
        """Return the number of places that a tier needs for the prefix that ends in a node of the pool, besides the
        places of other prefixes.

        Args:
            others: all nodes on the paths to the ends of the other prefixes.
        """
        path = end.path()
        shared = sum(node.num_tokens for node in path if node in others)
        return self.stored(sum(node.num_tokens for node in path)) - shared // self._page * self._page

    @property
    def has_evicted(self) -> bool:
        """True once the pool has evicted anything."""
        return self._cache.evicted_tokens > 0

    def coldest(self, ahead: int) -> list[TreeNode]:
        """Return the ends of the prefixes that are evicted next, the first one first.

        Args:
            ahead: tokens to look at.
        """
        leaves = []
        for leaf in self._cache.coldest():
            leaves.append(leaf)
            ahead -= leaf.num_tokens
            if ahead <= 0:
                break
        return leaves

    def warmest(self) -> Iterator[TreeNode]:
        """Yield the ends of all prefixes of the pool that a tier may keep, the last used one first. An end that lies on
        the path to another end comes after it."""
        yield from reversed(list(self._cache.coldest()))

    def in_pool(self, tokens: Int32Array, namespace: str) -> int:
        """Return the length of the longest prefix of tokens that can be copied from the pool; changes nothing."""
        cached = self._cache.match_len(tokens, namespace)
        return cached - cached % self._page

    def leaving(self, end: TreeNode) -> Leaving:
        """Return what a tier keeps of the prefix that ends in a node."""
        tokens, namespace = path_of(end)
        key = tokens[: len(tokens) - len(tokens) % self._page]
        return Leaving(key, self._cache.path_slots(end)[: len(key)], namespace)

    def overlaps(self, end: TreeNode, leaving: Collection[TreeNode]) -> bool:
        """Return True if a prefix is to wait for copies of other prefixes, because most of it is copied with them."""
        return False

    def hold(self, end: TreeNode) -> None:
        """Protect a prefix of the pool from eviction until the matching `let_go`."""
        self._copies.hold(end)

    def let_go(self, end: TreeNode) -> None:
        """Release a hold."""
        self._copies.let_go(end)

    # --- into the pool ---

    def begin(self, tokens: Int32Array, namespace: str) -> Coming | None:
        """Reserve slots for a prefix, until the matching `end`; None, with nothing held, if slots are missing."""
        arrival = self._copies.begin(tokens, namespace)
        return None if arrival is None else Coming(arrival, arrival.slots, arrival.start)

    def end(self, coming: Coming, *, copied: bool) -> None:
        """Put a copied prefix into the tree, or free its slots, into which no copy may happen any more."""
        self._copies.end(coming.arrival, copied=copied)


class StateEnds(PageEnds):
    """Prefixes with the state of the recurrent layers after their last token; see the module's docstring.

    A state that saves fewer tokens than a page, counted from the next kept state above it, is not kept.

    Args:
        states: states of the pool's prefix cache.
        rows: see `KVOpen.state_rows`.
    """

    def __init__(self, kv: KVManager, page: int, states: NodeStates, rows: int) -> None:
        super().__init__(kv, page)
        self._states = states
        self._rows = rows
        self._evicted = 0  # states that the pool had evicted at the last look

    # --- in tiers ---

    def key(self, tokens: Int32Array) -> Int32Array:
        behind = self.stored(len(tokens)) - len(tokens)
        return np.concatenate([tokens, np.full(behind, STATE_TOKEN, np.int32)])

    def stored(self, length: int) -> int:
        return -(-(length + self._rows) // self._page) * self._page

    def length(self, key: Int32Array) -> int:
        return int(np.count_nonzero(key != STATE_TOKEN))

    def found(self, tier: Tier, tokens: Int32Array, root: str) -> int:
        for length, pages in tier.continuations(tokens, root):
            # The prefix may go on by less than a page up to its state, whose page differs from every page of tokens.
            for tail in range(min(self._page - 1, len(tokens) - length), -1, -1):
                behind = np.full(self._page - tail, STATE_TOKEN, np.int32)
                if tokens[length : length + tail].tobytes() + behind.tobytes() in pages:
                    key = self.key(tokens[: length + tail])
                    if tier.match_len(key, root) == len(key):
                        return length + tail
        return 0

    def is_kept(self, leaf: TreeNode) -> bool:
        return ends_in_state(leaf)

    def helps(self, prefix: Int32Array, start: int, tokens: Int32Array, cached: int) -> bool:
        return len(prefix) >= cached + self._page and common_len(prefix, tokens) == len(prefix)

    def shared(self, prefix: int, common: int) -> int:
        return prefix if prefix <= common else 0

    def num_places(self, tokens: Int32Array, namespace: str, cached: int) -> int:
        return len(tokens) - self._cache.keys_len(tokens, namespace) + self._rows

    # --- out of the pool ---

    @property
    def has_evicted(self) -> bool:
        return super().has_evicted or self._states.evicted > 0

    def coldest(self, ahead: int) -> list[TreeNode]:
        # A state goes with its keys and values, or before them.
        evicted = self._states.evicted
        count, self._evicted = LEAST_AHEAD + evicted - self._evicted, evicted
        ends = dict.fromkeys(node for node in self._states.coldest(count) if self._kept(node)[:1] == [node])
        for leaf in super().coldest(ahead):
            ends.update(dict.fromkeys(self._kept(leaf)))
        return list(ends)

    def warmest(self) -> Iterator[TreeNode]:
        seen: set[TreeNode] = set()
        for leaf in super().warmest():
            ends = [end for end in self._kept(leaf) if end not in seen]
            seen.update(ends)
            yield from ends

    def in_pool(self, tokens: Int32Array, namespace: str) -> int:
        return self._cache.match_len(tokens, namespace)

    def _kept(self, node: TreeNode) -> list[TreeNode]:
        """Return the nodes on a path whose states are worth to be kept, the deepest one first."""
        found: list[TreeNode] = []
        length = kept = 0
        for each in node.path():
            length += each.num_tokens
            if each.state is not None and length >= kept + self._page:
                found.append(each)
                kept = length
        return found[::-1]

    def leaving(self, end: TreeNode) -> Leaving:
        assert end.state is not None
        tokens, namespace = path_of(end)
        key, rows = self.key(tokens), state_slots(end.state.slot, self._rows)
        padding = np.zeros(len(key) - len(tokens) - len(rows), np.int32)
        return Leaving(key, np.concatenate([self._cache.path_slots(end), rows, padding]), namespace)

    def overlaps(self, end: TreeNode, leaving: Collection[TreeNode]) -> bool:
        return any(end in each.path() for each in leaving) or any(each in leaving for each in end.path())

    def hold(self, end: TreeNode) -> None:
        super().hold(end)
        self._copies.pin(end)

    def let_go(self, end: TreeNode) -> None:
        self._copies.unpin(end)
        super().let_go(end)

    # --- into the pool ---

    def begin(self, tokens: Int32Array, namespace: str) -> Coming | None:
        start, arrival = self._cache.match_len(tokens, namespace), self._copies.begin(tokens, namespace)
        if arrival is None:
            return None
        state = self._copies.reserve_state()
        if state is None:
            self._copies.end(arrival, copied=False)
            return None
        return Coming(arrival, np.concatenate([arrival.slots, state_slots(state, self._rows)]), start, state)

    def end(self, coming: Coming, *, copied: bool) -> None:
        super().end(coming, copied=copied)
        node = self._cache.node_at(coming.arrival.tokens, coming.arrival.namespace) if copied else None
        if node is None:
            self._copies.cancel_state(coming.state)
        else:
            self._copies.adopt_state(coming.state, node)
