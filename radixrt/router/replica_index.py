"""`ReplicaIndex`: the prefixes that each replica's radix tree holds, by the chain hashes of their granules.

A tree is closed under prefixes, so a bisection over the hashes of a prompt finds the longest prefix that a replica
holds. Sets of replicas are bit masks. The index grows with the fleet's KV pools, not with the number of users: about
120 bytes for each granule of 64 tokens.

`CacheEvents` come late. A prompt that has just been sent to a replica is *booked*: the index counts the prompt as
cached there until the request ends, even while no event has reported the tokens.

For a model with recurrent layers, cached keys and values are a hit only up to a state of these layers. States lie at
any position, and tokens do not leave the scheduler, so the index knows a state by its length and by the last whole
granule before it. The index assumes that up to 63 tokens between this granule and the state equal the prompt's.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence

from radixrt.mem_cache.granules import GRANULE_TOKENS, HASH_BYTES, prompt_hashes, seed_of
from radixrt.mem_cache.replica import CacheReplica, ReplicaNode
from radixrt.messages.cache_events import CacheEvents


class Prefix:
    """Chain hashes of a prompt.

    Args:
        ids: int32 column of the prompt's tokens.
        length: number of tokens that may come from a cache.

    Attributes:
        hashes: hash of each whole granule, in order.
        seed: the namespace's seed, which stands before the first granule.
    """

    __slots__ = ("hashes", "length", "seed")

    def __init__(self, ids: bytes, namespace: str, length: int) -> None:
        self.length = length
        self.hashes = _unpack(prompt_hashes(ids[: 4 * length], namespace))
        self.seed = _unpack(seed_of(namespace))[0]

    def known(self, hashes: Container[int], begin: int = 0) -> int:
        """Return the number of leading granules in a set that is closed under prefixes; at least `begin`, the number
        of leading granules that count as known in any case."""
        return bisect_left(self.hashes, True, begin, key=lambda each: each not in hashes)


class _Tree(CacheReplica):
    """Tree of one replica, which keeps the replica's bit in the masks of the granules that the tree holds.

    Attributes:
        states: lengths of prefixes with a state, by the hash of their last whole granule.
        booked: number of bookings of each booked granule, by hash.
    """

    def __init__(self, number: int, holders: dict[int, int]) -> None:
        super().__init__()
        self._number = number
        self._holders = holders
        self.states: dict[int, list[int]] = {}
        self.booked: dict[int, int] = {}

    def inserted(self, node: ReplicaNode) -> None:
        bit, holders = 1 << self._number, self._holders
        for each in _unpack(node.hashes):
            holders[each] = holders.get(each, 0) | bit
        node.created = node.last_access = 0  # the index needs no times; without them a node takes 56 bytes less
        if node.has_state:
            self.state_changed(node)

    def dropped(self, node: ReplicaNode) -> None:
        for each in _unpack(node.hashes):
            _unset(self._holders, each, self._number)
        if node.has_state:
            node.has_state = False
            self.state_changed(node)

    def state_changed(self, node: ReplicaNode) -> None:
        (key,) = _unpack(node.last_hash())
        ends = self.states.setdefault(key, [])
        if node.has_state:
            ends.append(node.end)
            return
        ends.remove(node.end)
        if not ends:
            del self.states[key]


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
        self._trees[replica] = _Tree(replica, self._holders)

    def drop(self, replica: int) -> None:
        """Remove a replica with all that it holds and all bookings."""
        tree = self._trees.pop(replica)
        tree.clear()
        for each in tree.booked:
            _unset(self._booked, each, replica)

    def held(self, replica: int) -> set[int]:
        """Hashes of all granules that a replica's events have reported."""
        nodes = self._trees[replica].nodes.values()
        return {each for node in nodes if node.parent is not None for each in _unpack(node.hashes)}

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
        # Booked granules have no states yet, so the search begins at the last reported one.
        holders, bit = self._holders, 1 << replica
        last = matched // GRANULE_TOKENS
        last = bisect_left(prefix.hashes, True, 0, last, key=lambda each: not holders.get(each, 0) & bit)
        for granules in range(last, -1, -1):
            ends = states.get(prefix.hashes[granules - 1] if granules else prefix.seed)
            if ends:
                fitting = [end for end in ends if end <= length]
                if fitting:
                    return max(fitting)
        return 0

    def hits(self, prefix: Prefix, has_states: Mapping[int, bool]) -> dict[int, int]:
        """Return the number of leading tokens that replicas need not compute: as `match`, or up to a state.

        Args:
            has_states: whether the model of each of these replicas has recurrent layers.
        """
        found = self.match(prefix, has_states)
        return {
            replica: self.state_len(replica, prefix, tokens) if has_states[replica] else tokens
            for replica, tokens in found.items()
        }

    def longest(self, prefix: Prefix) -> tuple[int, list[int]]:
        """Return the number of leading tokens that any replica's events have reported, in whole granules, and the
        replicas that hold all of them."""
        known = prefix.known(self._holders)
        mask = self._holders[prefix.hashes[known - 1]] if known else 0
        return known * GRANULE_TOKENS, [replica for replica in self._trees if mask >> replica & 1]

    def longest_state(self, prefix: Prefix) -> tuple[int, list[int]]:
        """Return the length of the longest prefix with a state that any replica's events have reported, and the
        replicas that have this state."""
        found = {replica: self.state_len(replica, prefix, matched) for replica, matched in self.match(prefix).items()}
        length = max(found.values(), default=0)
        return length, [replica for replica, each in found.items() if each == length and length]

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
        """Apply a batch of a replica's events.

        Returns:
            False, with everything that the replica holds forgotten, if the batch before this one is missing: ask for a
            snapshot.
        """
        return self._trees[replica].apply(batch)


def _unpack(hashes: bytes) -> Sequence[int]:
    return struct.unpack(f"<{len(hashes) // HASH_BYTES}Q", hashes)


def _unset(masks: dict[int, int], key: int, replica: int) -> None:
    mask = masks.get(key, 0) & ~(1 << replica)
    if mask:
        masks[key] = mask
    else:
        masks.pop(key, None)
