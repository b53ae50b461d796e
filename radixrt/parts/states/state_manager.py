"""`StateManager`: owner of the requests' state slots. No other code allocates, frees or hands over a state slot.

A model with recurrent layers keeps a state for each sequence, in a slot. A step reads the state before a row's first
new token from a slot, and writes the state after the row's last new token into the same slot or another slot. States
are never copied. `RowStates.slot` holds the state after `RowStates.length` tokens, and the slot has an owner:

    slot 0        zeros; no token is computed yet
    a node        `RowStates.node`, pinned: the next chunk reads the slot and writes a slot that the request owns
    the request   the next step reads and writes the slot in place

A checkpoint hands the request's slot to a node (`checkpoint`); the request continues from the slot as after a match. So
a request needs one slot at any time, and a second slot only within a step that reads a node's slot. States inside a
chunk are written to further slots (`cut`), which are given to nodes as soon as the nodes exist (`keep_cut`). These
slots are free slots, or slots of states that are worth less. If there is no such slot, the chunk ends at the
checkpoint.

A step never writes a slot that another row of the step reads: the nodes that a step reads stay pinned until the step is
decided, so their states cannot be evicted before. Eviction cannot harm earlier steps in flight, which run first.

A request whose tokens may be taken back (jump-forward) alternates between its slot and a spare slot, which keeps the
state from before the step in flight. Spare slots are taken only from slots beyond one slot per active request.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from radixrt.errors import InvariantError
from radixrt.mem_cache.node_states import NodeStates, deepest_state
from radixrt.mem_cache.results import MatchResult
from radixrt.mem_cache.state_slots import StateSlotAllocator
from radixrt.mem_cache.tree_node import TreeNode
from radixrt.messages.scheduler_stats import StateStats
from radixrt.messages.state_slots import ZERO_STATE
from radixrt.messages.wire import Int32Array
from radixrt.parts.states.row_states import RowStates, states_of
from radixrt.scheduler.req import KVState, Req


class StateCut(NamedTuple):
    """State inside a chunk, to be left to the cache.

    Attributes:
        length: number of tokens of the sequence that the state contains.
        slot: slot of the state.
        clock: `NodeStates.clock` before anything was evicted for states of the chunk.
    """

    length: int
    slot: int
    clock: float


class StateStep(NamedTuple):
    """State slots of a row in a step.

    Attributes:
        src: slot that the row reads.
        dst: slot that the row writes.
        cuts: further states that the row writes, in ascending order of their lengths.
    """

    src: int
    dst: int
    cuts: list[StateCut]


class StateManager:
    """See the module's docstring.

    Args:
        nodes: states of the prefix cache.
        max_requests: maximum number of requests that hold a row. Each request needs a state slot.

    Attributes:
        max_active: maximum number of active requests.
    """

    def __init__(self, nodes: NodeStates, max_requests: int) -> None:
        self.nodes = nodes
        self.slots: StateSlotAllocator = nodes.slots
        self.max_active = min(max_requests, self.slots.num_usable)
        self._max_spares = self.slots.num_usable - self.max_active
        self._num_spares = 0
        self._read: list[TreeNode] = []  # pinned nodes whose states the step that is being decided reads

    def stats(self, recomputed_tokens: int) -> StateStats:
        """Return numbers of slots and cached states."""
        slots, nodes = self.slots, self.nodes
        return StateStats(slots.num_usable, slots.available(), len(nodes), nodes.evicted, recomputed_tokens)

    # --- before the first chunk ---

    def match(self, held: RowStates, match: MatchResult) -> None:
        """Let a waiting request continue from the state of a match; the match's path is locked."""
        self._start_at(held, match.state_node, match.state_len)

    def admitted(self, held: RowStates) -> None:
        """Count the use of the state from which a request that was just admitted continues."""
        if held.node is not None:
            self.nodes.use(held.node)

    def forget(self, held: RowStates) -> None:
        """Unpin or free all slots of the request."""
        if held.node is not None:
            self.nodes.unpin(held.node)
        elif held.slot != ZERO_STATE:
            self.slots.free(held.slot)
        self._free_spare(held)
        held.slot, held.length, held.node = ZERO_STATE, 0, None
        held.cuts.clear()

    def _start_at(self, held: RowStates, node: TreeNode | None, length: int) -> None:
        if node is not None:
            assert node.state is not None  # the cache says so
            self.nodes.pin(node)
            held.slot = node.state.slot
        else:
            held.slot = ZERO_STATE
        held.node, held.length = node, length

    # --- steps ---

    def make_room(self, held: RowStates) -> bool:
        """Make sure that the request's next chunk has a slot to write.

        If no slot is free and no other state is worth less, the request takes back the slot of the checkpoint that it
        continues from, provided that no other request reads the checkpoint.

        Returns:
            False, with nothing changed, if the request has no slot in this step.
        """
        node = held.node
        if (node is None and held.slot != ZERO_STATE) or self.slots.available():
            return True
        mine = node is not None and node.state is not None and node.state.pins == 1
        if self.nodes.evict(below=self.nodes.rank(node) if mine and node is not None else None):
            return True
        if not mine or node is None:
            return False
        self.nodes.take(node)
        held.node = None
        return True

    def cut(self, kv: KVState, held: RowStates, num_new: int) -> list[StateCut]:
        """Allocate slots for the checkpoints inside a chunk, for which `make_room` has returned True.

        Returns:
            The states to leave, in ascending order, up to the first state without a slot.
        """
        needs_slot = held.node is not None or held.slot == ZERO_STATE
        before = held.length if needs_slot else deepest_state(kv.last_node, kv.protected_len, held.length)[1]
        cuts: list[StateCut] = []
        clock = self.nodes.clock
        for length in sorted(held.cuts):
            if not held.length < length < held.length + num_new:
                continue
            rank = self.nodes.rank_of(length - before, held.cuts[length], clock)
            if self.slots.available() <= needs_slot and not self.nodes.evict(below=rank):
                break
            slot = self.slots.alloc()
            assert slot is not None  # one is free
            cuts.append(StateCut(length, slot, clock))
            before = length
        return cuts

    def drop_cuts(self, cuts: list[StateCut]) -> None:
        """Free the slots of cuts whose chunk is not computed in this step."""
        for cut in cuts:
            self.slots.free(cut.slot)

    def keep_cut(self, node: TreeNode | None, cut: StateCut, uses: int) -> None:
        """Give a cut's state to the node in which the cut's tokens end. If there is no node, or the node has a state
        already, the slot is freed."""
        if node is None or not self.nodes.attach(node, cut.slot, uses, cut.clock):
            self.slots.free(cut.slot)

    def extend(self, held: RowStates, num_new: int, cuts: list[StateCut]) -> StateStep:
        """Advance the state by a chunk, for which `make_room` has returned True; return the chunk's state slots."""
        src = held.slot
        if held.node is not None or src == ZERO_STATE:
            dst = self.slots.alloc()
            assert dst is not None  # there is room
            if held.node is not None:
                self._read.append(held.node)
                held.node = None
            held.slot = dst
        held.length += num_new
        return StateStep(src, held.slot, cuts)

    def decode(self, reqs: list[Req]) -> tuple[Int32Array, Int32Array]:
        """Advance the states of decode rows by a token each; return (slots to read, slots to write), int32[rows]
        each."""
        src, dst = [], []
        for req in reqs:
            held = states_of(req)
            src.append(held.slot)
            if req.num_pending and req.taker is not None and req.taker.may_take_back:
                self._alternate(held)  # the row's input token is still in flight, and may be taken back
            dst.append(held.slot)
            held.length += 1
        return np.array(src, np.int32), np.array(dst, np.int32)

    def end_step(self) -> None:
        """Unpin the states that the step reads; the step is decided, so they may be evicted from now on."""
        for node in self._read:
            self.nodes.unpin(node)
        self._read.clear()

    def _alternate(self, held: RowStates) -> None:
        """Let the next step write the spare slot, so that the present state becomes the spare."""
        if held.spare_slot == ZERO_STATE:
            if self._num_spares >= self._max_spares or not (self.slots.available() or self.nodes.evict()):
                return
            spare = self.slots.alloc()
            assert spare is not None  # one is free
            held.spare_slot = spare
            self._num_spares += 1
        held.slot, held.spare_slot = held.spare_slot, held.slot
        held.spare_len = held.length

    def _free_spare(self, held: RowStates) -> None:
        if held.spare_slot != ZERO_STATE:
            self.slots.free(held.spare_slot)
            held.spare_slot = ZERO_STATE
            self._num_spares -= 1

    # --- checkpoints and ends ---

    def checkpoint(self, held: RowStates, node: TreeNode | None, uses: int) -> bool:
        """Hand the request's slot to the node in which its first `RowStates.length` tokens end. The request continues
        from the node's state.

        Returns:
            False, with nothing changed, if there is no node, the node has a state, or the request does not own the
            slot.
        """
        if node is None or held.node is not None or held.slot == ZERO_STATE:
            return False
        if not self.nodes.attach(node, held.slot, uses):
            return False
        self.nodes.pin(node)
        held.node = node
        return True

    def truncate(self, kv: KVState, held: RowStates, length: int) -> None:
        """Return to a state after at most `length` tokens: the spare slot's state, or the deepest state on the
        request's locked path. Tokens between the state and `length` are computed again."""
        if held.length <= length:
            return
        if held.spare_slot != ZERO_STATE and held.spare_len <= length:
            if held.node is not None:
                raise InvariantError("a request alternates between two slots, but one of them is the cache's")
            held.slot, held.spare_slot = held.spare_slot, held.slot
            held.length, held.spare_len = held.spare_len, held.length
            self._free_spare(held)  # its state contains tokens that were taken back
            return
        self.forget(held)
        self._start_at(held, *deepest_state(kv.last_node, kv.protected_len, length))
