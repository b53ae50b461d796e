"""`Tier`: the prefixes whose keys and values lie in one memory besides the KV pool, and the places of that memory.

A tier is a `RadixCache` over the places of its memory, so that a prefix is found, split, locked and evicted there as in
the pool. Pages are longer than in the pool: a page is one contiguous piece that is copied at once. Each page has a
record (`PageRecords`), which outlives the scheduler; a tier of a new scheduler is restored from its records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import numpy as np

from radixrt.errors import InvariantError
from radixrt.mem_cache.allocator import Int32Array, TokenToKVPoolAllocator
from radixrt.mem_cache.cache_journal import CacheJournal
from radixrt.mem_cache.copies import Arrival, Copies
from radixrt.mem_cache.granules import HASH_BYTES
from radixrt.mem_cache.radix_cache import RadixCache
from radixrt.mem_cache.results import MatchResult
from radixrt.mem_cache.tree_node import RootNode, TreeNode
from radixrt.messages.kv_moves import KEY_BYTES, STATE_TOKEN
from radixrt.parts.tiers.namespaces import is_of, namespace_id
from radixrt.parts.tiers.records import PageRecords, chain

_STATE_ROW = STATE_TOKEN.to_bytes(4, "little", signed=True)


def ends_in_state(node: TreeNode) -> bool:
    """Return True if a node of a tier ends with a state of the recurrent layers."""
    return node.key_bytes.endswith(_STATE_ROW)


class TierJournal(CacheJournal):
    """Journal of a tier's tree, whose roots are named by identities, and where runs may end with a state's places."""

    def seed(self, root: RootNode) -> bytes:
        return bytes.fromhex(root.namespace)[:HASH_BYTES]

    def run(self, node: TreeNode) -> bytes:
        if not ends_in_state(node):
            return node.key_bytes
        return node.key_bytes[: 4 * np.count_nonzero(np.frombuffer(node.key_bytes, np.int32) != STATE_TOKEN)]

    def has_state(self, node: TreeNode) -> bool:
        return ends_in_state(node)


class _Places(TokenToKVPoolAllocator):
    """Allocator of places that clears the records of pages before the pages are free.

    Args:
        cleared: called with the numbers of pages that are about to be free, int32[m].
    """

    def __init__(self, num_slots: int, page_size: int, cleared: Callable[[Int32Array], None]) -> None:
        super().__init__(num_slots, page_size)
        self._cleared = cleared

    def free(self, slots: Int32Array) -> None:
        if len(slots):
            self._cleared(np.unique(slots // self.page_size))
        super().free(slots)

    def claim(self, pages: Int32Array) -> None:
        """Take pages out of an allocator of which nothing is allocated."""
        free = np.setdiff1d(np.arange(1, self._num_pages + 1, dtype=np.int32), pages)[::-1]
        self._stack[: len(free)] = free
        self._top = len(free)


class _RecordedCopies(Copies):
    """Copies into a tier, whose pages get their records as soon as they are in the tree."""

    def __init__(self, tier: Tier) -> None:
        super().__init__(tier.cache, tier.allocator)
        self._tier = tier

    def begin(self, tokens: Int32Array, namespace: str, *, evicts: bool = True) -> Arrival | None:
        arrival = super().begin(tokens, namespace, evicts=evicts)
        if arrival is not None:
            self._tier.claim(arrival.slots, namespace)
        return arrival

    def adopt(self, node: TreeNode, tokens: Int32Array, slots: Int32Array, namespace: str) -> TreeNode:
        end = super().adopt(node, tokens, slots, namespace)
        self._tier.record(end, tokens, slots, namespace)
        return end


class Tier:
    """See the module's docstring. Trees are named by the identities of namespaces, not by their names.

    Args:
        name: name for usage and metrics.
        num_places: number of places, a multiple of the page.
        page: tokens of a page.
        records: table with a record for each page; pages with a record are restored.
        erase: overwrites the keys and values of pages, int32[n].
        has_states: the model has recurrent layers. Then keys and values without a state behind them are evicted first.

    Attributes:
        cache: the prefixes.
        copies: places and nodes that moves hold.
    """

    def __init__(
        self,
        name: str,
        num_places: int,
        page: int,
        records: PageRecords,
        erase: Callable[[Int32Array], None] = lambda pages: None,
        *,
        has_states: bool = False,
    ) -> None:
        self.name = name
        self.page = page
        self._records = records
        self._erase = erase
        self.allocator = _Places(num_places, page, records.clear)
        self.cache = RadixCache(self.allocator, is_useful=ends_in_state if has_states else None)
        self.copies: Copies = _RecordedCopies(self)
        self._restore()

    def _restore(self) -> None:
        """Rebuild the tree from the records."""
        runs = list(self._records.runs())
        if runs:
            self.allocator.claim(np.concatenate([pages for _, _, pages in runs]))
        for identity, tokens, pages in runs:
            places = (pages[:, None] * self.page + np.arange(self.page)).ravel().astype(np.int32)
            result = self.cache.insert(tokens, places, identity.hex())
            # Records of an interrupted scheduler may hold the same tokens twice; the second page is free then.
            theirs = self.cache.path_slots(result.node)[: result.existing_len]
            self.allocator.free(places[: result.existing_len][theirs != places[: result.existing_len]])

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the tier."""
        return self.cache.total_size

    def whole(self, tokens: Int32Array) -> Int32Array:
        """Return the whole pages of tokens."""
        return tokens[: len(tokens) - len(tokens) % self.page]

    def match_len(self, tokens: Int32Array, root: str) -> int:
        """Return the number of leading tokens that are in the tier; changes nothing."""
        return self.cache.match_len(tokens, root)

    def continuations(self, tokens: Int32Array, root: str) -> Iterator[tuple[int, Collection[bytes]]]:
        """Yield the lengths of prefixes of tokens behind which the tree branches, or differs from the tokens, the
        longest one first, each with the pages that follow in the tree, as bytes of int32. Changes nothing."""
        node, matched = self.cache.match_node(tokens, root), self.match_len(tokens, root)
        length = 0 if node is None else sum(each.num_tokens for each in node.path())
        if node is not None and length > matched:
            at = len(node.key_bytes) - 4 * (length - matched)
            yield matched, (node.key_bytes[at : at + 4 * self.page],)
            length -= node.num_tokens
            node = node.parent
        while node is not None and length:
            yield length, node.children.keys()
            length -= node.num_tokens
            node = node.parent

    def match(self, tokens: Int32Array, root: str) -> MatchResult:
        """Find the longest prefix in the tier, and mark it as used. The slots of the result are places."""
        return self.cache.match_prefix(tokens, root)

    def record(self, node: TreeNode, tokens: Int32Array, places: Int32Array, root: str) -> None:
        """Write the records of pages that were put into the tree.

        Args:
            node: node in which the tokens end.
            tokens: int32[n], all tokens from the first one on; the last len(places) were copied to `places`, and the
                tree has other places of some of them if it had these tokens before.
        """
        start = len(tokens) - len(places)
        is_ours = self.cache.path_slots(node)[start : len(tokens)] == places
        if not is_ours.any():
            return
        first = start + int(is_ours.argmax())
        pages = places[first - start :: self.page] // self.page
        identity = bytes.fromhex(root)
        before = self.keys(tokens[:first], root)[-KEY_BYTES:] or identity
        self._records.write(pages, tokens, first, before, identity)

    def claim(self, places: Int32Array, root: str) -> None:
        """Note the namespace whose keys and values are about to be copied to whole pages of places."""
        self._records.claim(places[:: self.page] // self.page, bytes.fromhex(root))

    def touch(self, places: Int32Array) -> None:
        """Note in the records of pages that they are used now, for the order of eviction after a restart."""
        self._records.touch(places[:: self.page] // self.page)

    def keys(self, tokens: Int32Array, root: str) -> bytes:
        """Return the chain hash of each whole page of tokens, KEY_BYTES each."""
        key, data, keys = bytes.fromhex(root), tokens.astype(np.int32).tobytes(), []
        for end in range(4 * self.page, len(data) + 1, 4 * self.page):
            key = chain(key, data[end - 4 * self.page : end])
            keys.append(key)
        return b"".join(keys)

    def forget(self, tokens: Int32Array, start: int, root: str) -> None:
        """Drop tokens from position `start` on, and everything that continues them, unless it is held."""
        if self.match_len(tokens, root) <= start:
            return
        above = self.cache.node_at(tokens[:start], root) if start else None  # splits the node that passes `start`
        node = self.match(tokens, root).node
        while node.parent is not above and node.parent is not None and node.parent.key_bytes:
            node = node.parent
        self.cache.remove(node)

    def forget_namespace(self, namespace: str, *, whole_owner: bool) -> None:
        """Drop all tokens of a namespace that no move holds, and overwrite their keys and values, also those of tokens
        that were evicted or not copied to the end.

        Args:
            namespace, whole_owner: see `namespaces.is_of`.
        """

        def is_wanted(identity: bytes) -> bool:
            return is_of(identity, namespace, whole_owner=whole_owner)

        for root in list(self.cache.roots()):
            if is_wanted(bytes.fromhex(root.namespace)):
                self.cache.remove_below(root)
        pages = self._records.pages_of(is_wanted, recorded=False)
        self._erase(np.setdiff1d(pages, self._records.pages_of(is_wanted)))

    def check(self) -> None:
        """Check the tier's invariants.

        Raises:
            InvariantError: the first invariant that does not hold.
        """
        self.allocator.check_invariants()
        self.cache.check_invariants(self.copies.held)
        total = self.allocator.available() + self.cache.total_size + self.copies.reserved
        if total != self.allocator.num_slots:
            raise InvariantError(
                f"{self.name} tier: free {self.allocator.available()} + tokens {self.cache.total_size} + reserved "
                f"{self.copies.reserved} = {total}, not its {self.allocator.num_slots} places"
            )


def root_name(namespace: str) -> str:
    """Return the name of a namespace's root in a tier, which does not disclose the namespace."""
    return namespace_id(namespace).hex()
