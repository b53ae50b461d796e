"""`KVManager`: who owns which slot. The only code that allocates, inserts, frees or re-points a slot.

A request's row of req_to_token is cut into ranges:

    0 ............ protected_len ............ kv_len ............
    | tree's slots, locked      | private      | nothing yet     |

The tree owns the first range for as long as `last_node` is locked. `publish` moves whole pages of private slots into
the tree; where another request has put the same tokens there first, the row is pointed at the tree's slots and ours
are freed at once. That is safe while steps are in flight: steps run in order on one stream, so a freed slot can only be
written again by a later step.
"""

from __future__ import annotations

from radixrt.mem_cache.allocator import TokenToKVPoolAllocator
from radixrt.mem_cache.prefix_cache import PrefixCache
from radixrt.mem_cache.req_to_token_pool import ReqToTokenPool
from radixrt.mem_cache.tree_node import TreeNode
from radixrt.messages.runner import RowWrite
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.scheduler.req import Req


class KVManager:
    """See the module's docstring. `row_writes` collects what the runner's mirror must be told with the next step."""

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
        """Match and lock the cached prefix of a waiting request; returns its slots. Undone by `unlock_prefix`."""
        slots, node = self.cache.match_prefix(req.reusable_ids, req.namespace)
        self.cache.inc_lock_ref(node)
        req.last_node = node
        return slots

    def unlock_prefix(self, req: Req) -> None:
        self.cache.dec_lock_ref(req.last_node)
        req.last_node = None

    def take_row(self, req: Req, prefix: Int32Array) -> None:
        """Give a request with a locked prefix its row. The caller has seen that a row is free."""
        idx = self.rows.alloc()
        assert idx is not None  # ours: admission counts rows
        req.req_pool_idx = idx
        req.protected_len = req.kv_len = len(prefix)
        if len(prefix):
            self._write_row(req, 0, prefix)

    def extend(self, req: Req, num_new: int) -> Int32Array | None:
        """Slots for positions [kv_len, kv_len + num_new), evicting if needed; None if there is no room."""
        row = self.rows.table[req.req_pool_idx]
        if not self._make_room(self.allocator.new_slots_for_extend(req.kv_len, num_new)):
            return None
        last = int(row[req.kv_len - 1]) if req.kv_len else 0
        slots = self.allocator.alloc_extend(req.kv_len, num_new, last)
        assert slots is not None  # ours: room was made just above
        row[req.kv_len : req.kv_len + num_new] = slots
        req.kv_len += num_new
        return slots

    def extend_decode(self, idx: Int32Array, kv_lens: Int32Array) -> Int32Array | None:
        """One slot for each row, at position kv_lens[i] (int32 [B]); the caller advances kv_len. None: no room."""
        if not self._make_room(self.allocator.new_slots_for_decode(kv_lens)):
            return None
        slots = self.allocator.alloc_decode(kv_lens, self.rows.table[idx, kv_lens - 1])
        assert slots is not None  # ours: room was made just above
        self.rows.table[idx, kv_lens] = slots
        return slots

    def _make_room(self, need: int) -> bool:
        missing = need - self.allocator.available()
        if missing > 0:
            if missing > self.cache.evictable_size:
                return False
            self.cache.evict(missing)
        return self.allocator.available() >= need

    def truncate(self, req: Req, length: int) -> None:
        """Forget the keys and values from position `length` on, which is private: they are of tokens taken back.

        Steps in flight may still write there; whatever the slots are used for next is in a later step.
        """
        page = self.allocator.page_size
        kept = -(-length // page) * page
        if req.kv_len > kept:
            row = self.rows.table[req.req_pool_idx]
            self.allocator.free(row[kept : req.kv_len].copy())
        req.kv_len = min(req.kv_len, length)

    def publish(self, req: Req) -> None:
        """Move the computed, known tokens of the request into the tree, in whole pages, and keep them locked."""
        length = min(req.kv_len, req.known_len)
        row = self.rows.table[req.req_pool_idx]
        result = self.cache.insert(req.ids[:length], row[:length], req.namespace, req.priority)
        if result.retained_len <= req.protected_len:
            return
        if result.existing_len > req.protected_len:
            theirs = self.cache.path_slots(result.node)[req.protected_len : result.existing_len]
            self.allocator.free(row[req.protected_len : result.existing_len].copy())
            self._write_row(req, req.protected_len, theirs)
        self.cache.inc_lock_ref(result.node)
        self.cache.dec_lock_ref(req.last_node)
        req.last_node = result.node
        req.protected_len = result.retained_len

    def release(self, req: Req, *, keep: bool = True) -> TreeNode:
        """Give up the row and every private slot; what was computed stays in the tree, unlocked, if keep. Returns where
        the request's tokens end there."""
        if keep:
            self.publish(req)
        row = self.rows.table[req.req_pool_idx]
        if req.kv_len > req.protected_len:
            self.allocator.free(row[req.protected_len : req.kv_len].copy())
        node: TreeNode = req.last_node
        self.unlock_prefix(req)
        self.rows.free(req.req_pool_idx)
        req.req_pool_idx = 0
        req.kv_len = req.protected_len = 0
        return node

    def take_row_writes(self) -> list[RowWrite]:
        writes, self.row_writes = self.row_writes, []
        return writes

    def _write_row(self, req: Req, start: int, slots: Int32Array) -> None:
        self.rows.table[req.req_pool_idx, start : start + len(slots)] = slots
        self.row_writes.append(RowWrite(req.req_pool_idx, start, pack_i32(slots)))
