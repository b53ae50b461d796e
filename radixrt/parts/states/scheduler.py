"""Scheduler end of states: a `KVManager` that also owns state slots, and the section of a step.

The deepest cached state of a prompt may contain fewer tokens than there are cached keys and values. Then the tokens in
between are *replayed*: computed again to advance the state. Replayed tokens have slot 0 in the step, because the row
already has their keys and values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from radixrt.mem_cache.allocator import TokenToKVPoolAllocator
from radixrt.mem_cache.node_states import NodeStates, tokens_since_state
from radixrt.mem_cache.radix_cache import RadixCache
from radixrt.mem_cache.req_to_token_pool import ReqToTokenPool
from radixrt.mem_cache.results import MatchResult
from radixrt.mem_cache.tree_node import TreeNode
from radixrt.messages.scheduler_stats import StateStats
from radixrt.messages.sections import STATES, StateSection, encode
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.parts.states.checkpoints import Checkpoints
from radixrt.parts.states.invariants import check_states
from radixrt.parts.states.row_states import states_of
from radixrt.parts.states.state_manager import StateManager, StateStep
from radixrt.scheduler.kv_manager import ChunkSlots, DecodeRows, KVManager
from radixrt.scheduler.part import Part, Section
from radixrt.scheduler.prefix_index import PrefixIndex
from radixrt.scheduler.req import Req, ReqState
from radixrt.scheduler.schedule_batch import ByKind

FREE_GAP = 512
"""Smallest number of tokens between two states that a long prompt leaves at ends of chunks without a checkpoint."""


class DecodeStates(NamedTuple):
    """State slots of decode rows.

    Attributes:
        src: int32[rows], slots to read.
        dst: int32[rows], slots to write.
    """

    src: Int32Array
    dst: Int32Array


class HybridKVManager(KVManager):
    """Ownership of KV slots and of state slots, for a model with recurrent layers.

    Args:
        nodes: states of the prefix cache.
        checkpoints: decides where prompts leave states; default: `Checkpoints()`.

    Attributes:
        states: owner of the state slots.
    """

    def __init__(
        self,
        cache: RadixCache,
        nodes: NodeStates,
        allocator: TokenToKVPoolAllocator,
        rows: ReqToTokenPool,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        super().__init__(cache, allocator, rows)
        self.states = StateManager(nodes, rows.max_requests)
        self.max_active = self.states.max_active
        self._checkpoints = checkpoints or Checkpoints()
        self.min_gap = self._checkpoints.min_gap if cache.shares else 0

    def computed_len(self, req: Req) -> int:
        return states_of(req).length

    def matched(self, req: Req, match: MatchResult) -> None:
        self.states.match(states_of(req), match)

    def unlock_prefix(self, req: Req) -> None:
        self.states.forget(states_of(req))
        super().unlock_prefix(req)

    def take_row(self, req: Req, prefix: Int32Array) -> None:
        super().take_row(req, prefix)
        self.states.admitted(states_of(req))

    def extend_chunk(self, req: Req, num_new: int) -> ChunkSlots | None:
        """Allocate KV slots and state slots for the next tokens. The chunk ends at the first checkpoint for whose state
        no slot is free."""
        states, kv, held = self.states, req.kv, states_of(req)
        if not states.make_room(held):
            return None
        cuts = states.cut(kv, held, num_new)
        reached = cuts[-1].length if cuts else held.length
        num_new = min([num_new, *(cut - held.length for cut in held.cuts if cut > reached)])
        replayed = min(num_new, kv.length - held.length)
        slots = self.extend(req, num_new - replayed)
        if slots is None:
            states.drop_cuts(cuts)
            return None
        slots = np.concatenate([np.zeros(replayed, np.int32), slots]) if replayed else slots
        return ChunkSlots(slots, states.extend(held, num_new, cuts))

    def decoded(self, reqs: list[Req]) -> DecodeStates:
        return DecodeStates(*self.states.decode(reqs))

    def truncate(self, req: Req, length: int) -> None:
        super().truncate(req, length)
        self.states.truncate(req.kv, states_of(req), length)

    # --- states that requests leave to the cache ---

    def chunk_published(self, req: Req, states: StateStep) -> None:
        """Leave the states of a published chunk to the cache: the states at inner checkpoints, and the state after the
        last token if there is a checkpoint, or if the prompt is long and slots are free."""
        held = states_of(req)
        for cut in states.cuts:
            node = self.cache.node_at(req.ids[: cut.length], req.namespace)
            self.states.keep_cut(node, cut, held.cuts.pop(cut.length))
        if held.length == req.known_len:
            return  # the next step decodes in place
        node, uses = self._state_node(req), held.cuts.pop(held.length, 0)
        free = node is not None and self.states.slots.available() and tokens_since_state(node) >= FREE_GAP
        if uses or free:
            self.states.checkpoint(held, node, max(uses, 1))

    def leaves(self, req: Req) -> None:
        """Leave the state of a request to the cache. A row of a group that has read all its values leaves no state,
        because no request continues from the row."""
        if req.member is None or req.reads is None or not req.reads.is_done:
            self.states.checkpoint(states_of(req), self._state_node(req), uses=1)

    def _state_node(self, req: Req) -> TreeNode | None:
        """Return the node in which the tokens of the request's state end, after a split if necessary. The result is
        None if the tokens are not cached, because steps in flight have computed tokens that the request does not have.
        """
        kv, length = req.kv, states_of(req).length
        if length < kv.protected_len:
            return self.cache.node_at(req.ids[:length], req.namespace)
        node: TreeNode = kv.last_node
        return node if length == kv.protected_len else None

    # --- where prompts leave states ---

    def arrived(self, req: Req, active: Iterable[Req]) -> None:
        """Add cuts to the prompts under way where a new request diverges from them, before they are past these
        positions."""
        if self.min_gap:
            cached = self.match_len(req)
            for other in active:
                if other.state is ReqState.PREFILL:
                    self._checkpoints.promises(other, req, cached)

    def admitted(self, req: Req, matched: int, waiting: PrefixIndex | None) -> None:
        if waiting is not None:
            self._checkpoints.place(req, matched, waiting)

    def will_share(self, active: Req, req: Req, cached: int, *, asks: bool = True) -> bool:
        ask = self._checkpoints.promises if asks else self._checkpoints.has_promised
        return ask(active, req, cached)

    # --- the whole ---

    def end_step(self) -> None:
        self.states.end_step()

    def flush(self) -> None:
        super().flush()
        self.states.nodes.evict_all()

    def stats(self, recomputed_tokens: int) -> StateStats:
        return self.states.stats(recomputed_tokens)

    def check(self, active: Iterable[Req]) -> None:
        check_states(self.cache, self.states, active, self.copies)


class StatesPart(Part):
    """Adds the state slots of a step's rows to the step."""

    name = STATES

    def section(self, kinds: ByKind, decode: DecodeRows) -> Section:
        chunks, states = kinds.chunks, decode.states
        steps: list[StateStep] = [chunk.states for chunk in chunks]
        src, dst = pack_i32([step.src for step in steps]), pack_i32([step.dst for step in steps])
        if states is not None:
            src, dst = src + pack_i32(states.src), dst + pack_i32(states.dst)
        cuts = [
            number
            for row, chunk in enumerate(chunks)
            for cut in chunk.states.cuts
            for number in (row, cut.length - chunk.start, cut.slot)
        ]
        return Section(encode(StateSection(src, dst, pack_i32(cuts))))
