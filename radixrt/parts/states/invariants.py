"""Invariants of state slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from radixrt.errors import InvariantError
from radixrt.mem_cache.copies import Copies
from radixrt.mem_cache.radix_cache import RadixCache
from radixrt.mem_cache.tree_node import TreeNode
from radixrt.messages.state_slots import RESERVED_STATES, ZERO_STATE
from radixrt.parts.states.row_states import states_of
from radixrt.parts.states.state_manager import StateManager
from radixrt.scheduler.req import Req, ReqState


def check_states(cache: RadixCache, states: StateManager, active: Iterable[Req], copies: Copies) -> None:
    """Check the owners of all state slots and the pins of all cached states.

    - Each usable state slot has exactly one owner: the free list, a tree node, an active request or a copy into the
      pool.
    - The pins of a node's state are the copies out of the pool and the active requests that are about to read the
      state, and the state is the state after the first RowStates.length tokens of these requests.
    - RowStates.length <= KVState.length, with equality for requests that decode.

    Raises:
        InvariantError: the first invariant that does not hold.
    """
    pins: Counter[TreeNode] = Counter(copies.pinned)
    held = [*states.slots.free_slots(), *copies.reserved_states]
    for req in active:
        kv, state = req.kv, states_of(req)
        if state.node is not None:
            pins[state.node] += 1
            found = state.node.state
            if found is None or found.slot != state.slot or state.node not in kv.last_node.path():
                raise InvariantError(f"request {req.rid} is about to read a state that its path does not have")
            if sum(node.num_tokens for node in state.node.path()) != state.length:
                raise InvariantError(f"request {req.rid}: its state is not after {state.length} tokens")
        elif state.slot != ZERO_STATE:
            held.append(state.slot)
        elif state.length:
            raise InvariantError(f"request {req.rid} has read {state.length} tokens, but has no state")
        if state.spare_slot != ZERO_STATE:
            held.append(state.spare_slot)
        decodes = req.state is ReqState.RUNNING and req.member is None
        if state.length > kv.length or (decodes and (state.length < kv.length or state.node is not None)):
            raise InvariantError(
                f"request {req.rid}: state after {state.length} tokens, keys and values of {kv.length}"
            )
    for node in cache.iter_nodes():
        if node.state is not None:
            held.append(node.state.slot)
            if node.state.pins != pins[node]:
                raise InvariantError(f"{node!r}: its state has {node.state.pins} pins, {pins[node]} readers")
    usable = set(range(RESERVED_STATES, states.slots.num_states))
    if len(held) != len(usable) or set(held) != usable:
        raise InvariantError(f"{len(usable)} state slots, but {len(held)} owners of {len(set(held))} slots")
