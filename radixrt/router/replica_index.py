"""`ReplicaIndex`: the prefixes that each replica's radix tree holds, by the chain hashes of their granules.

A tree is closed under prefixes, so the longest prefix that a replica holds is found by bisection over the hashes of a
prompt. Sets of replicas are bit masks. The index grows with the fleet's KV pools, not with its users: about 120 bytes
for each granule of 64 tokens.

`CacheEvents` come late. What has just been sent to a replica is *booked*: it counts as cached there until the request
ends, whatever the events say by then.

For a model with recurrent layers keys and values alone are no hit: only the prefix up to a state is. States lie
anywhere, and tokens do not leave the scheduler, so a state is known by the last whole granule before it and by its
length: of tokens after that granule, up to 63, the index assumes that they are the prompt's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from radixrt.mem_cache.granules import GRANULE_TOKENS, HASH_BYTES, prompt_hashes, seed_of
from radixrt.messages.cache_events import (
    CacheCleared,
    CacheEvent,
    CacheEvents,
    NodeEvicted,
    NodeInserted,
    NodeSplit,
    RootOpened,
    StateSet,
)


class Prefix:
    """Chain hashes of a prompt.

    Attributes:
        hashes: of its whole granules, in order.
        seed: hash before the first granule, that of the namespace.
        length: number of tokens that may come from a cache.
    """

    __slots__ = ("hashes", "length", "seed")

    def __init__(self, ids: bytes, namespace: str, length: int) -> None:
        self.length = length
        self.hashes = _unpack(prompt_hashes(ids[: 4 * length], namespace))
        self.seed = _unpack(seed_of(namespace))[0]


class _Node:
    """Node of a replica's tree; a root has no tokens.

    Attributes:
        begin, end: number of tokens from the root to the node's begin, and to its end.
        hashes: of the granules that end in it, as bytes.
        before: hash of the last whole granule before them; the seed if there is none.
    """

    __slots__ = ("before", "begin", "end", "has_state", "hashes")

    def __init__(self, begin: int, end: int, hashes: bytes, before: int) -> None:
        self.begin = begin
        self.end = end
        self.hashes = hashes
        self.before = before
        self.has_state = False

    @property
    def last(self) -> int:
        """Hash of the last whole granule before the node's end."""
        return _unpack(self.hashes[-HASH_BYTES:])[0] if self.hashes else self.before


class _Tree:
    """Nodes of one replica, by number.

    Attributes:
        seq: number of the last batch; -1 before a snapshot.
        states: lengths of prefixes with a state, by the hash of their last whole granule.
    """

    def __init__(self) -> None:
        self.seq = -1
        self.nodes: dict[int, _Node] = {}
        self.states: dict[int, list[int]] = {}
        self.booked: dict[int, int] = {}  # hash -> number of bookings


class ReplicaIndex:
    """See the module's docstring. Replicas are small numbers, from 0."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._booked: dict[int, int] = {}
        self._trees: dict[int, _Tree] = {}

    def __len__(self) -> int:
        """Number of granules that any replica holds."""
        return len(self._holders)

    @property
    def num_booked(self) -> int:
        """Number of granules that are booked anywhere."""
        return len(self._booked)

    def add(self, replica: int) -> None:
        """Add a replica whose tree is not known yet."""
        self._trees[replica] = _Tree()

    def drop(self, replica: int) -> None:
        """Remove a replica with all that it holds and all bookings."""
        self._clear(replica)
        for each in self._trees.pop(replica).booked:
            _unset(self._booked, each, replica)

    def held(self, replica: int) -> set[int]:
        """Hashes of all granules that a replica's events have reported."""
        return {each for node in self._trees[replica].nodes.values() for each in _unpack(node.hashes)}

    # --- look up ---

    def match(self, prefix: Prefix, replicas: Iterable[int] | None = None) -> dict[int, int]:
        """Return the number of leading tokens that each of these replicas, or of all, holds or is about to, in whole
        granules; those that hold none are missing."""
        found: dict[int, int] = {}
        asked = 0
        for replica in self._trees if replicas is None else replicas:
            asked |= 1 << replica
        hashes, holders, booked = prefix.hashes, self._holders, self._booked
        ranges = [(0, len(hashes), asked)]  # replicas with at least `low` and at most `high` granules
        while ranges:
            low, high, mask = ranges.pop()
            while low < high and mask:
                middle = (low + high + 1) // 2
                key = hashes[middle - 1]
                have = (holders.get(key, 0) | booked.get(key, 0)) & mask
                if have != mask:
                    ranges.append((low, middle - 1, mask & ~have))
                low, mask = middle, have
            while low and mask:
                lowest = mask & -mask
                found[lowest.bit_length() - 1] = low * GRANULE_TOKENS
                mask ^= lowest
        return found

    def state_len(self, replica: int, prefix: Prefix, matched: int) -> int:
        """Return the length of the longest prefix with a state; it may end within the granule behind `matched`."""
        states, length = self._trees[replica].states, prefix.length
        for granules in range(matched // GRANULE_TOKENS, -1, -1):
            ends = states.get(prefix.hashes[granules - 1] if granules else prefix.seed)
            if ends:
                fitting = [end for end in ends if end <= length]
                if fitting:
                    return max(fitting)
        return 0

    def held_len(self, prefix: Prefix) -> int:
        """Return the number of leading tokens that any replica's events have reported, in whole granules."""
        low, high = 0, len(prefix.hashes)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if prefix.hashes[middle - 1] in self._holders else (low, middle - 1)
        return low * GRANULE_TOKENS

    # --- bookings ---

    def book(self, replica: int, prefix: Prefix, matched: int) -> Sequence[int]:
        """Count a prompt as cached, of which `matched` tokens are known to be; returns what `release` takes back."""
        hashes, booked = prefix.hashes[matched // GRANULE_TOKENS :], self._trees[replica].booked
        bit = 1 << replica
        for each in hashes:
            booked[each] = booked.get(each, 0) + 1
            self._booked[each] = self._booked.get(each, 0) | bit
        return hashes

    def release(self, replica: int, hashes: Iterable[int]) -> None:
        """Take back a booking."""
        tree = self._trees.get(replica)
        if tree is None:
            return
        for each in hashes:
            count = tree.booked.get(each, 0) - 1
            if count > 0:
                tree.booked[each] = count
            elif count == 0:
                del tree.booked[each]
                _unset(self._booked, each, replica)

    # --- events ---

    def apply(self, replica: int, batch: CacheEvents) -> bool:
        """Apply a batch of events.

        Returns:
            False, with everything that the replica holds forgotten, if a batch before it is missing: ask for a
            snapshot.
        """
        tree = self._trees[replica]
        if batch.header is not None:
            self._clear(replica)
        elif tree.seq < 0 or batch.seq != tree.seq + 1:
            self._clear(replica)
            return False
        tree.seq = batch.seq
        for event in batch.events:
            self._apply(replica, tree, event)
        return True

    def _apply(self, replica: int, tree: _Tree, event: CacheEvent) -> None:
        nodes = tree.nodes
        if isinstance(event, NodeInserted):
            above = nodes[event.parent]
            nodes[event.node] = node = _Node(above.end, above.end + event.tokens, event.hashes, above.last)
            bit, holders = 1 << replica, self._holders
            for each in _unpack(event.hashes):
                holders[each] = holders.get(each, 0) | bit
            if event.has_state:
                _set_state(tree, node, has_state=True)
        elif isinstance(event, NodeEvicted):
            node = nodes.pop(event.node)
            for each in _unpack(node.hashes):
                _unset(self._holders, each, replica)
            _set_state(tree, node, has_state=False)
        elif isinstance(event, NodeSplit):
            self._split(nodes, event)
        elif isinstance(event, StateSet):
            _set_state(tree, nodes[event.node], has_state=event.has_state)
        elif isinstance(event, RootOpened):
            nodes[event.node] = _Node(0, 0, b"", _unpack(event.seed)[0])
        elif isinstance(event, CacheCleared):
            self._clear(replica, keep_seq=True)

    @staticmethod
    def _split(nodes: dict[int, _Node], event: NodeSplit) -> None:
        node = nodes[event.node]
        end = node.begin + event.tokens
        count = end // GRANULE_TOKENS - node.begin // GRANULE_TOKENS
        kept = node.hashes[: count * HASH_BYTES]
        nodes[event.prefix] = prefix = _Node(node.begin, end, kept, node.before)
        node.begin, node.before, node.hashes = end, prefix.last, node.hashes[count * HASH_BYTES :]

    def _clear(self, replica: int, *, keep_seq: bool = False) -> None:
        tree = self._trees[replica]
        for node in tree.nodes.values():
            for each in _unpack(node.hashes):
                _unset(self._holders, each, replica)
        tree.nodes.clear()
        tree.states.clear()
        if not keep_seq:
            tree.seq = -1


def _unpack(hashes: bytes) -> Sequence[int]:
    return struct.unpack(f"<{len(hashes) // HASH_BYTES}Q", hashes)


def _unset(masks: dict[int, int], key: int, replica: int) -> None:
    mask = masks.get(key, 0) & ~(1 << replica)
    if mask:
        masks[key] = mask
    else:
        masks.pop(key, None)


def _set_state(tree: _Tree, node: _Node, *, has_state: bool) -> None:
    if node.has_state == has_state:
        return
    node.has_state = has_state
    ends = tree.states.setdefault(node.last, [])
    if has_state:
        ends.append(node.end)
        return
    ends.remove(node.end)
    if not ends:
        del tree.states[node.last]
