"""`KVManager`: owner of the KV slots. No other code allocates or frees a slot, or puts slots into the tree or a row.

A request's row of req_to_token is cut into ranges (`req.kv`, a `KVState`):

    0 ............ protected_len ............ length ............
    | tree's slots, locked      | private      | nothing yet     |

The tree owns the first range for as long as `last_node` is locked. `publish` moves whole pages of private slots into
the tree. If another request has inserted the same tokens before, the row gets the tree's slots, and the private slots
are freed at once. Freeing is safe while steps are in flight: steps run in order on one stream, so a freed slot can be
overwritten only by a later step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from radixrt.mem_cache.allocator import TokenToKVPoolAllocator
from radixrt.mem_cache.copies import Copies
from radixrt.mem_cache.radix_cache import RadixCache
from radixrt.mem_cache.req_to_token_pool import ReqToTokenPool
from radixrt.mem_cache.results import InsertResult, MatchResult
from radixrt.mem_cache.tree_node import TreeNode
from radixrt.messages.runner import RowWrite
from radixrt.messages.scheduler_stats import StateStats
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.scheduler.prefix_index import PrefixIndex
from radixrt.scheduler.req import Req


class DecodeRows(NamedTuple):
    """Decode rows of a step, with slots for one new token of each.

    Attributes:
        requests: the request of each row.
        req_pool_idx: int32[rows], row of each request in req_to_token.
        seq_lens: int32[rows], lengths that include the new token.
        slots: int32[rows], slots for the new tokens.
        states: object of a subclass that keeps more than keys and values for a row; None otherwise.
    """

    requests: list[Req]
    req_pool_idx: Int32Array
    seq_lens: Int32Array
    slots: Int32Array
    states: Any = None


class ChunkSlots(NamedTuple):
    """Slots for a chunk of n tokens.

    Attributes:
        slots: int32[n]; 0 for a token whose keys and values the row already has.
        states: as in `DecodeRows`.
    """

    slots: Int32Array
    states: Any = None


_NO_ROWS = np.empty(0, np.int32)


class KVManager:
    """See the module's docstring.

    A subclass may keep more for each row than keys and values, in `KVState.states`. Such a subclass extends the methods
    by which a row is taken, grows, shrinks and is released.

    Attributes:
        row_writes: changes of req_to_token that the next step must apply to the runner's copy of the table.
        max_active: maximum number of active requests.
        copies: slots and nodes that copies between the pool and other memory hold.
        published: methods to call after tokens of a request have moved into the tree (`Part.published`); set by the
            scheduler.
        min_gap: a waiting request waits for an active request only if their common prefix is at least this number of
            tokens longer than the cached prefix; 0 if a request can continue behind any computed prefix.
    """

    min_gap = 0

    def __init__(self, cache: RadixCache, allocator: TokenToKVPoolAllocator, rows: ReqToTokenPool) -> None:
        self.cache = cache
        self.allocator = allocator
        self.rows = rows
        self.row_writes: list[RowWrite] = []
        self.max_active = rows.max_requests
        self.copies = Copies(cache, allocator)
        self.published: Sequence[Callable[[Req, int, InsertResult], None]] = ()

    @property
    def reachable_slots(self) -> int:
        """Number of slots that are free or can be freed by evicting unlocked tokens."""
        return self.allocator.available() + self.cache.evictable_size

    def match_len(self, req: Req) -> int:
        """Return the number of leading tokens of a waiting request that are cached. The last token is always
        computed."""
        return self.cache.match_len(self._usable_ids(req), req.namespace)

    def _usable_ids(self, req: Req) -> Int32Array:
        """Return an int32 view of the leading tokens of a waiting request that may come from the cache."""
        ids = req.reusable_ids
        return ids if req.inputs is None else ids[: req.inputs.usable(self.cache.match_len(ids, req.namespace))]

    def computed_len(self, req: Req) -> int:
        """Return the number of leading tokens of an active request that are computed already."""
        return req.kv.length

    def lock_prefix(self, req: Req) -> Int32Array:
        """Lock the cached prefix of a waiting request, and return the prefix's slots, int32[n]. `unlock_prefix`
        releases the lock."""
        match = self.cache.match_prefix(self._usable_ids(req), req.namespace)
        self.cache.inc_lock_ref(match.node)
        req.kv.last_node = match.node
        self.matched(req, match)
        return match.slots

    def unlock_prefix(self, req: Req) -> None:
        """Release the request's lock on its path in the tree."""
        self.cache.dec_lock_ref(req.kv.last_node)
        req.kv.last_node = None

    def take_row(self, req: Req, prefix: Int32Array) -> None:
        """Give a request with a locked prefix its row. The caller has checked that a row is free."""
        idx = self.rows.alloc()
        assert idx is not None  # admission counts rows
        req.kv.req_pool_idx = idx
        req.kv.protected_len = req.kv.length = len(prefix)
        if len(prefix):
            self._write_row(req, 0, prefix)

    def extend_chunk(self, req: Req, num_new: int) -> ChunkSlots | None:
        """Allocate slots for the next tokens to compute, at most `num_new`, evicting if needed; None if slots are
        missing."""
        slots = self.extend(req, num_new)
        return None if slots is None else ChunkSlots(slots)

    def extend(self, req: Req, num_new: int) -> Int32Array | None:
        """Allocate slots for positions [length, length + num_new), evicting if needed; None if slots are missing."""
        row = self.rows.table[req.kv.req_pool_idx]
        if not self._make_room(self.allocator.new_slots_for_extend(req.kv.length, num_new)):
            return None
        last = int(row[req.kv.length - 1]) if req.kv.length else 0
        slots = self.allocator.alloc_extend(req.kv.length, num_new, last)
        assert slots is not None  # room was made just above
        row[req.kv.length : req.kv.length + num_new] = slots
        req.kv.length += num_new
        return slots

    def extend_decode(self, reqs: list[Req]) -> DecodeRows | None:
        """Allocate a slot for the next token of each request, evicting if needed. If slots are missing, return None and
        change nothing."""
        if not reqs:
            return DecodeRows(reqs, _NO_ROWS, _NO_ROWS, _NO_ROWS)
        states = [req.kv for req in reqs]
        idx = np.array([kv.req_pool_idx for kv in states], np.int32)
        lengths = np.array([kv.length for kv in states], np.int32)
        if not self._make_room(self.allocator.new_slots_for_decode(lengths)):
            return None
        last = lengths if self.allocator.page_size == 1 else self.rows.table[idx, lengths - 1]  # unused by pages of 1
        slots = self.allocator.alloc_decode(lengths, last)
        assert slots is not None  # room was made just above
        self.rows.table[idx, lengths] = slots
        for kv in states:
            kv.length += 1
        return DecodeRows(reqs, idx, lengths + 1, slots, self.decoded(reqs))

    def _make_room(self, need: int) -> bool:
        return need <= self.allocator.available() or self.copies.make_room(need)

    def truncate(self, req: Req, length: int) -> None:
        """Free the private slots from position `length` on, because their tokens were taken back.

        Steps in flight may still write these slots; any other use of the slots is in a later step.
        """
        page = self.allocator.page_size
        kept = -(-length // page) * page
        if req.kv.length > kept:
            row = self.rows.table[req.kv.req_pool_idx]
            self.allocator.free(row[kept : req.kv.length].copy())
        req.kv.length = min(req.kv.length, length)

    def publish(self, req: Req) -> None:
        """Move the request's computed, known tokens into the tree, in whole pages, and keep these tokens locked."""
        start = req.kv.protected_len
        length = min(req.kv.length, req.known_len)
        row = self.rows.table[req.kv.req_pool_idx]
        result = self.cache.insert(req.ids[:length], row[:length], req.namespace, req.priority)
        if result.retained_len > start:
            # Another request has inserted some of the tokens before: use the tree's slots, and free the private ones.
            if result.existing_len > start:
                theirs = self.cache.path_slots(result.node)[start : result.existing_len]
                self.allocator.free(row[start : result.existing_len].copy())
                self._write_row(req, start, theirs)
            # Lock the longer path before the shorter path is unlocked, so that no node can be evicted in between.
            self.cache.inc_lock_ref(result.node)
            self.cache.dec_lock_ref(req.kv.last_node)
            req.kv.last_node = result.node
            req.kv.protected_len = result.retained_len
        for published in self.published:
            published(req, start, result)

    def release(self, req: Req, *, keep: bool = True) -> TreeNode:
        """Free the request's row and private slots, and unlock its path in the tree.

        Args:
            keep: publish the computed tokens first, so that they stay in the tree.

        Returns:
            The tree node in which the request's published tokens end.
        """
        if keep:
            self.publish(req)
            self.leaves(req)
        row = self.rows.table[req.kv.req_pool_idx]
        if req.kv.length > req.kv.protected_len:
            self.allocator.free(row[req.kv.protected_len : req.kv.length].copy())
        node: TreeNode = req.kv.last_node
        self.unlock_prefix(req)
        self.rows.free(req.kv.req_pool_idx)
        req.kv.req_pool_idx = 0
        req.kv.length = req.kv.protected_len = 0
        return node

    # --- for subclasses that keep more than keys and values ---

    def matched(self, req: Req, match: MatchResult) -> None:
        """Note the locked match of a waiting request."""

    def decoded(self, reqs: list[Req]) -> Any:
        """Return `DecodeRows.states` of decode rows that have just grown by a token."""

    def chunk_published(self, req: Req, states: Any) -> None:
        """Note that a chunk of the request, with these `ChunkSlots.states`, was published."""

    def leaves(self, req: Req) -> None:
        """Note that the request is about to lose its row; its tokens are published and stay in the tree."""

    def arrived(self, req: Req, active: Iterable[Req]) -> None:
        """Note a request that has just joined the queue.

        Args:
            active: the active requests.
        """

    def admitted(self, req: Req, matched: int, waiting: PrefixIndex | None) -> None:
        """Note a request that was just admitted.

        Args:
            matched: number of tokens whose keys and values are cached.
            waiting: index of the waiting requests, with windows of `min_gap` tokens; None if `min_gap` is 0.
        """

    def will_share(self, active: Req, req: Req, cached: int, *, asks: bool = True) -> bool:
        """Return True if the waiting request `req` can reuse tokens that the request `active` in PREFILL computes.

        Args:
            cached: number of leading tokens of `req` that are cached; `active` has the same tokens and more in common.
            asks: ask `active` to keep everything that `req` needs to continue there; False to change no state.
        """
        return True

    def end_step(self) -> None:
        """Note that a step is decided."""

    def flush(self) -> None:
        """Evict all tokens from the cache that no active request has locked."""
        self.cache.evict(self.cache.evictable_size)

    def forget_namespace(self, is_wanted: Callable[[str], bool]) -> int:
        """Drop all tokens of namespaces from the cache that no active request has locked.

        Args:
            is_wanted: called with the name of each namespace.

        Returns:
            Number of tokens of these namespaces that are locked.
        """
        roots = [root for root in self.cache.roots() if is_wanted(root.namespace)]
        for root in roots:
            self.cache.remove_below(root)
        return sum(node.num_tokens for root in roots for node in root.descendants())

    def stats(self, recomputed_tokens: int) -> StateStats | None:
        """Return statistics of the states kept besides keys and values; None without states.

        Args:
            recomputed_tokens: prompt tokens whose keys and values were cached, but which were computed again.
        """
        return None

    def check(self, active: Iterable[Req]) -> None:
        """Check the invariants of the states kept besides keys and values.

        Raises:
            InvariantError: the first invariant that does not hold.
        """

    # --- row writes ---

    def take_row_writes(self) -> list[RowWrite]:
        writes, self.row_writes = self.row_writes, []
        return writes

    def _write_row(self, req: Req, start: int, slots: Int32Array) -> None:
        self.rows.table[req.kv.req_pool_idx, start : start + len(slots)] = slots
        self.row_writes.append(RowWrite(req.kv.req_pool_idx, start, pack_i32(slots)))
