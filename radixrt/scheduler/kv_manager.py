"""`KVManager`: ownership of KV slots. The only code that allocates, inserts, frees or re-points a slot.

A request's row of req_to_token is cut into ranges (`req.kv`, a `KVState`):

    0 ............ protected_len ............ length ............
    | tree's slots, locked      | private      | nothing yet     |

The tree owns the first range for as long as `last_node` is locked. `publish` moves whole pages of private slots into
the tree; where another request has put the same tokens there first, the row is pointed at the tree's slots and ours
are freed at once. That is safe while steps are in flight: steps run in order on one stream, so a freed slot can only be
written again by a later step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from radixrt.mem_cache.allocator import TokenToKVPoolAllocator
from radixrt.mem_cache.prefix_cache import PrefixCache
from radixrt.mem_cache.req_to_token_pool import ReqToTokenPool
from radixrt.mem_cache.tree_node import TreeNode
from radixrt.messages.runner import RowWrite
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.scheduler.req import Req


class DecodeSlots(NamedTuple):
    """Slots for one new token of each decode row.

    Attributes:
        req_pool_idx: int32[rows].
        seq_lens: int32[rows], lengths that include the new token.
        slots: int32[rows].
    """

    req_pool_idx: Int32Array
    seq_lens: Int32Array
    slots: Int32Array


_NO_ROWS = np.empty(0, np.int32)


class KVManager:
    """See the module's docstring. `row_writes` collects what the next step must write into the runner's mirror."""

    def __init__(self, cache: PrefixCache, allocator: TokenToKVPoolAllocator, rows: ReqToTokenPool) -> None:
        self.cache = cache
        self.allocator = allocator
        self.rows = rows
        self.row_writes: list[RowWrite] = []

    @property
    def reachable_slots(self) -> int:
        """Slots that are free or would be after evicting everything unlocked."""
        return self.allocator.available() + self.cache.evictable_size

    def match_len(self, req: Req) -> int:
        """Tokens of the request's input that the cache holds now; its last token is always computed."""
        return self.cache.match_len(req.reusable_ids, req.namespace)

    def lock_prefix(self, req: Req) -> Int32Array:
        """Match and lock the cached prefix of a waiting request; returns its slots. `unlock_prefix` undoes it."""
        slots, node = self.cache.match_prefix(req.reusable_ids, req.namespace)
        self.cache.inc_lock_ref(node)
        req.kv.last_node = node
        return slots

    def unlock_prefix(self, req: Req) -> None:
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

    def extend(self, req: Req, num_new: int) -> Int32Array | None:
        """Slots for positions [length, length + num_new), evicting if needed; None if there is no room."""
        row = self.rows.table[req.kv.req_pool_idx]
        if not self._make_room(self.allocator.new_slots_for_extend(req.kv.length, num_new)):
            return None
        last = int(row[req.kv.length - 1]) if req.kv.length else 0
        slots = self.allocator.alloc_extend(req.kv.length, num_new, last)
        assert slots is not None  # room was made just above
        row[req.kv.length : req.kv.length + num_new] = slots
        req.kv.length += num_new
        return slots

    def extend_decode(self, reqs: list[Req]) -> DecodeSlots | None:
        """A slot for the next token of each request, evicting if needed; None, with nothing changed, if there is no
        room."""
        if not reqs:
            return DecodeSlots(_NO_ROWS, _NO_ROWS, _NO_ROWS)
        states = [req.kv for req in reqs]
        idx = np.array([kv.req_pool_idx for kv in states], np.int32)
        lengths = np.array([kv.length for kv in states], np.int32)
        if not self._make_room(self.allocator.new_slots_for_decode(lengths)):
            return None
        slots = self.allocator.alloc_decode(lengths, self.rows.table[idx, lengths - 1])
        assert slots is not None  # room was made just above
        self.rows.table[idx, lengths] = slots
        for kv in states:
            kv.length += 1
        return DecodeSlots(idx, lengths + 1, slots)

    def _make_room(self, need: int) -> bool:
        missing = need - self.allocator.available()
        if missing > 0:
            if missing > self.cache.evictable_size:
                return False
            self.cache.evict(missing)
        return self.allocator.available() >= need

    def truncate(self, req: Req, length: int) -> None:
        """Drop the keys and values from position `length` on, which is private: they belong to tokens taken back.

        Steps in flight may still write there; any other use of these slots is in a later step.
        """
        page = self.allocator.page_size
        kept = -(-length // page) * page
        if req.kv.length > kept:
            row = self.rows.table[req.kv.req_pool_idx]
            self.allocator.free(row[kept : req.kv.length].copy())
        req.kv.length = min(req.kv.length, length)

    def publish(self, req: Req) -> None:
        """Move the computed, known tokens of the request into the tree, in whole pages, and keep them locked."""
        length = min(req.kv.length, req.known_len)
        row = self.rows.table[req.kv.req_pool_idx]
        result = self.cache.insert(req.ids[:length], row[:length], req.namespace, req.priority)
        if result.retained_len <= req.kv.protected_len:
            return
        if result.existing_len > req.kv.protected_len:
            theirs = self.cache.path_slots(result.node)[req.kv.protected_len : result.existing_len]
            self.allocator.free(row[req.kv.protected_len : result.existing_len].copy())
            self._write_row(req, req.kv.protected_len, theirs)
        self.cache.inc_lock_ref(result.node)
        self.cache.dec_lock_ref(req.kv.last_node)
        req.kv.last_node = result.node
        req.kv.protected_len = result.retained_len

    def release(self, req: Req, *, keep: bool = True) -> TreeNode:
        """Free the row and every private slot; what was computed stays in the tree, unlocked, if `keep`. Returns the
        node in which the request's tokens end there."""
        if keep:
            self.publish(req)
        row = self.rows.table[req.kv.req_pool_idx]
        if req.kv.length > req.kv.protected_len:
            self.allocator.free(row[req.kv.protected_len : req.kv.length].copy())
        node: TreeNode = req.kv.last_node
        self.unlock_prefix(req)
        self.rows.free(req.kv.req_pool_idx)
        req.kv.req_pool_idx = 0
        req.kv.length = req.kv.protected_len = 0
        return node

    def take_row_writes(self) -> list[RowWrite]:
        writes, self.row_writes = self.row_writes, []
        return writes

    def _write_row(self, req: Req, start: int, slots: Int32Array) -> None:
        self.rows.table[req.kv.req_pool_idx, start : start + len(slots)] = slots
        self.row_writes.append(RowWrite(req.kv.req_pool_idx, start, pack_i32(slots)))
