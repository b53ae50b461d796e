"""`KVManager`: ownership of KV slots. The only code that allocates, inserts, frees or re-points a slot.

For a model with recurrent layers its `StateManager` does the same for the slots of their states.

A request's row of req_to_token is cut into ranges (`req.kv`, a `KVState`):

    0 ............ protected_len ............ length ............
    | tree's slots, locked      | private      | nothing yet     |

The tree owns the first range for as long as `last_node` is locked. `publish` moves whole pages of private slots into
the tree; where another request has put the same tokens there first, the row is pointed at the tree's slots and ours
are freed at once. That is safe while steps are in flight: steps run in order on one stream, so a freed slot can only be
written again by a later step.

A state may be found for fewer tokens than keys and values are. Then the tokens in between are *replayed*: computed
again for the state's sake, with slot 0 in place of slots for their keys and values, which the row already has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from radixrt.mem_cache.allocator import TokenToKVPoolAllocator
from radixrt.mem_cache.node_states import tokens_since_state
from radixrt.mem_cache.radix_cache import RadixCache
from radixrt.mem_cache.req_to_token_pool import ReqToTokenPool
from radixrt.mem_cache.tree_node import TreeNode
from radixrt.messages.cache_events import RequestPublished
from radixrt.messages.runner import RowWrite
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.scheduler.req import Req
from radixrt.scheduler.state_manager import StateManager, StateStep


class DecodeSlots(NamedTuple):
    """Slots for one new token of each decode row.

    Attributes:
        req_pool_idx: int32[rows].
        seq_lens: int32[rows], lengths that include the new token.
        slots: int32[rows].
        state_src, state_dst: int32[rows], state slots; empty if the model has no recurrent layers.
    """

    req_pool_idx: Int32Array
    seq_lens: Int32Array
    slots: Int32Array
    state_src: Int32Array
    state_dst: Int32Array


class ChunkSlots(NamedTuple):
    """Slots for a chunk of n tokens.

    Attributes:
        slots: int32[n]; 0 for a token that is replayed.
        state: state slots; None if the model has no recurrent layers.
    """

    slots: Int32Array
    state: StateStep | None


_NO_ROWS = np.empty(0, np.int32)

FREE_GAP = 512
"""Smallest number of tokens between two states that a long prompt leaves where its chunks happen to end."""


class KVManager:
    """See the module's docstring. `row_writes` collects what the next step must write into the runner's mirror.

    Attributes:
        states: owner of the state slots; None if the model has no recurrent layers.
        max_active: maximum number of active requests.
    """

    def __init__(self, cache: RadixCache, allocator: TokenToKVPoolAllocator, rows: ReqToTokenPool) -> None:
        self.cache = cache
        self.allocator = allocator
        self.rows = rows
        self.row_writes: list[RowWrite] = []
        self.states = None if cache.node_states is None else StateManager(cache.node_states, rows.max_requests)
        self.max_active = rows.max_requests if self.states is None else self.states.max_active

    @property
    def reachable_slots(self) -> int:
        """Slots that are free or would be after evicting everything unlocked."""
        return self.allocator.available() + self.cache.evictable_size

    def match_len(self, req: Req) -> int:
        """Tokens of the request's input that need not be computed now; its last token is always computed."""
        return self.cache.match_len(req.reusable_ids, req.namespace)

    def computed_len(self, req: Req) -> int:
        """Number of leading tokens that an active request need not compute any more."""
        return req.kv.length if self.states is None else req.kv.state_len

    def lock_prefix(self, req: Req) -> Int32Array:
        """Match and lock the cached prefix of a waiting request; returns its slots. `unlock_prefix` undoes it."""
        match = self.cache.match_prefix(req.reusable_ids, req.namespace)
        self.cache.inc_lock_ref(match.node)
        req.kv.last_node = match.node
        if self.states is not None:
            self.states.match(req.kv, match)
        return match.slots

    def unlock_prefix(self, req: Req) -> None:
        if self.states is not None:
            self.states.forget(req.kv)
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
        if self.states is not None:
            self.states.admitted(req.kv)

    def extend_chunk(self, req: Req, num_new: int) -> ChunkSlots | None:
        """Slots for the next tokens to compute, num_new or, where a checkpoint among them has no slot of its own, those
        up to there; evicting if needed; None if there is no room."""
        states, kv = self.states, req.kv
        if states is None:
            slots = self.extend(req, num_new)
            return None if slots is None else ChunkSlots(slots, None)
        if not states.make_room(kv):
            return None
        cuts = states.cut(kv, num_new)
        reached = cuts[-1].length if cuts else kv.state_len
        num_new = min([num_new, *(cut - kv.state_len for cut in kv.cuts if cut > reached)])
        replayed = min(num_new, kv.length - kv.state_len)
        slots = self.extend(req, num_new - replayed)
        if slots is None:
            states.drop_cuts(cuts)
            return None
        slots = np.concatenate([np.zeros(replayed, np.int32), slots]) if replayed else slots
        return ChunkSlots(slots, states.extend(kv, num_new, cuts))

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
            return DecodeSlots(_NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS)
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
        src = dst = _NO_ROWS
        if self.states is not None:
            src, dst = self.states.decode(reqs)
        return DecodeSlots(idx, lengths + 1, slots, src, dst)

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
        if self.states is not None:
            self.states.truncate(req.kv, length)

    def publish(self, req: Req) -> None:
        """Move the computed, known tokens of the request into the tree, in whole pages, and keep them locked."""
        length = min(req.kv.length, req.known_len)
        row = self.rows.table[req.kv.req_pool_idx]
        result = self.cache.insert(req.ids[:length], row[:length], req.namespace, req.priority)
        if result.retained_len <= req.kv.protected_len:
            return
        for journal in self.cache.journals:
            if journal.records_requests:
                node, start = journal.number(result.node), req.kv.protected_len
                event = RequestPublished(req.rid, node, start, result.existing_len, result.retained_len)
                journal.events.append(event)
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
            self._keep_state(req)
        row = self.rows.table[req.kv.req_pool_idx]
        if req.kv.length > req.kv.protected_len:
            self.allocator.free(row[req.kv.protected_len : req.kv.length].copy())
        node: TreeNode = req.kv.last_node
        self.unlock_prefix(req)
        self.rows.free(req.kv.req_pool_idx)
        req.kv.req_pool_idx = 0
        req.kv.length = req.kv.protected_len = 0
        return node

    def checkpoint(self, req: Req, step: StateStep | None) -> None:
        """Leave the states of a chunk that was just published to the cache: those inside, and the one behind it if it
        is wanted there.

        A state that is not wanted in particular is left while slots are free, for long prompts.
        """
        kv, states = req.kv, self.states
        if states is None or step is None:
            return
        for cut in step.cuts:
            node = self.cache.node_at(req.ids[: cut.length], req.namespace)
            states.keep_cut(node, cut, kv.cuts.pop(cut.length))
        if kv.state_len == req.known_len:
            return  # the next step decodes in place
        node, uses = self._state_node(req), kv.cuts.pop(kv.state_len, 0)
        if uses or (node is not None and states.slots.available() and tokens_since_state(node) >= FREE_GAP):
            states.checkpoint(kv, node, max(uses, 1))

    def _keep_state(self, req: Req) -> None:
        """Leave the state of a request that gives up its row to the cache; not that of a row of a group that has read
        everything, which nothing goes on from."""
        if self.states is not None and (req.member is None or req.reads is None or not req.reads.is_done):
            self.states.checkpoint(req.kv, self._state_node(req), uses=1)

    def _state_node(self, req: Req) -> TreeNode | None:
        """The node in which the tokens of the request's state end, created by a split if necessary; None if they are
        not in the cache: steps in flight have computed tokens that are not the request's."""
        kv = req.kv
        if kv.state_len < kv.protected_len:
            return self.cache.node_at(req.ids[: kv.state_len], req.namespace)
        node: TreeNode = kv.last_node
        return node if kv.state_len == kv.protected_len else None

    def take_row_writes(self) -> list[RowWrite]:
        writes, self.row_writes = self.row_writes, []
        return writes

    def _write_row(self, req: Req, start: int, slots: Int32Array) -> None:
        self.rows.table[req.kv.req_pool_idx, start : start + len(slots)] = slots
        self.row_writes.append(RowWrite(req.kv.req_pool_idx, start, pack_i32(slots)))
