"""`StateManager`: ownership of state slots by requests. The only code that allocates, frees or hands over one.

A model with recurrent layers keeps one state for each sequence, in a slot. A step reads the state in one slot before a
row's first new token, and writes the state after its last new token into another or the same one; nothing is ever
copied. `RowStates.slot` holds the state after `RowStates.length` tokens. The slot is one of these:

    zeros         nothing is computed yet
    a node's      `RowStates.node`, pinned: the next chunk reads it and writes a slot of the request's own
    its own       the next step reads and writes it, in place

A checkpoint hands the request's own slot to a node (`checkpoint`): the request goes on from there as after a match. So
a request needs one slot at any time, and a second one only within the step that reads a node's. States inside a chunk
are written to more slots (`cut`), which nodes get as soon as they exist (`keep_cut`). These slots are free ones or
those of states that are worth less; where there is none, the chunk ends at its checkpoint.

A step never writes a slot that another row of it reads: pins that a step has used end when the step is decided, so what
is evicted meanwhile is not read by it. Steps in flight do not matter: they run before.

A request whose tokens may be taken back (jump-forward) alternates between its slot and a spare one, which keeps the
state from before the step in flight. Spares are given out only from slots that no request could ever lack.
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
    """A state that a chunk leaves inside: that after the sequence's first `length` tokens, in a slot of its own.

    Attributes:
        clock: `NodeStates.clock` before anything was evicted for states of the chunk.
    """

    length: int
    slot: int
    clock: float


class StateStep(NamedTuple):
    """State slots of one row of a step: the one that it reads, and the one that it writes.

    Attributes:
        cuts: states that it also writes, in ascending order.
    """

    src: int
    dst: int
    cuts: list[StateCut]


class StateManager:
    """See the module's docstring.

    Args:
        nodes: states of the prefix cache.
        max_requests: maximum number of requests that hold a row. Each needs a slot.

    Attributes:
        max_active: number of requests that may be active at once.
    """

    def __init__(self, nodes: NodeStates, max_requests: int) -> None:
        self.nodes = nodes
        self.slots: StateSlotAllocator = nodes.slots
        self.max_active = min(max_requests, self.slots.num_usable)
        self._max_spares = self.slots.num_usable - self.max_active
        self._num_spares = 0
        self._read: list[TreeNode] = []  # pinned nodes whose states the step that is being decided reads

    def stats(self, recomputed_tokens: int) -> StateStats:
        """The states in numbers."""
        slots, nodes = self.slots, self.nodes
        return StateStats(slots.num_usable, slots.available(), len(nodes), nodes.evicted, recomputed_tokens)

    # --- before the first chunk ---

    def match(self, held: RowStates, match: MatchResult) -> None:
        """Let a waiting request continue from the state of a match, whose path is locked."""
        self._start_at(held, match.state_node, match.state_len)

    def admitted(self, held: RowStates) -> None:
        """Count the use of the state from which a request that was just admitted continues."""
        if held.node is not None:
            self.nodes.use(held.node)

    def forget(self, held: RowStates) -> None:
        """Let go of whatever the request holds."""
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
        """Make sure that the request has a slot to write; False, with nothing changed, if there is none in this step.

        A checkpoint of the request that is worth less than all others is taken back for that.
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
            The states to leave, in ascending order, up to the first one for which there is no slot.
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
        """Free the slots of states that are not computed after all."""
        for cut in cuts:
            self.slots.free(cut.slot)

    def keep_cut(self, node: TreeNode | None, cut: StateCut, uses: int) -> None:
        """Give the node in which a cut's tokens end its state; the slot is free again if there is no such node, or it
        has a state already."""
        if node is None or not self.nodes.attach(node, cut.slot, uses, cut.clock):
            self.slots.free(cut.slot)

    def extend(self, held: RowStates, num_new: int, cuts: list[StateCut]) -> StateStep:
        """Advance the state by a chunk, for which `make_room` has returned True; returns the chunk's slots."""
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
        """Advance the states of decode rows by a token each; returns the slots that they read and write, int32[rows]
        each."""
        src, dst = [], []
        for req in reqs:
            held = states_of(req)
            src.append(held.slot)
            if req.num_pending and req.taker is not None and req.taker.may_take_back:
                self._alternate(held)  # the token that the row reads is not known yet, and may be taken back
            dst.append(held.slot)
            held.length += 1
        return np.array(src, np.int32), np.array(dst, np.int32)

    def end_step(self) -> None:
        """The step is decided: the states that it reads may be evicted from now on."""
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
        """Hand the request's own slot to the node in which its first `state_len` tokens end; it goes on from there.

        Returns:
            False, with nothing changed, if there is no such node, it has a state already, or the slot is not its own.
        """
        if node is None or held.node is not None or held.slot == ZERO_STATE:
            return False
        if not self.nodes.attach(node, held.slot, uses):
            return False
        self.nodes.pin(node)
        held.node = node
        return True

    def truncate(self, kv: KVState, held: RowStates, length: int) -> None:
        """Go back to the state after at most `length` tokens, which are on the request's locked path or its own: that
        of the spare slot, or the deepest one of the path. What is missing then is computed again."""
        if held.length <= length:
            return
        if held.spare_slot != ZERO_STATE and held.spare_len <= length:
            if held.node is not None:
                raise InvariantError("a request alternates between two slots, but one of them is the cache's")
            held.slot, held.spare_slot = held.spare_slot, held.slot
            held.length, held.spare_len = held.spare_len, held.length
            self._free_spare(held)  # it is of tokens that were taken back
            return
        self.forget(held)
        self._start_at(held, *deepest_state(kv.last_node, kv.protected_len, length))
