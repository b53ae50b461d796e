"""`RowStates`: the state slots of a request (`KVState.states`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixrt.mem_cache.tree_node import TreeNode
from radixrt.scheduler.req import Req


@dataclass(slots=True, eq=False)
class RowStates:
    """State slots of a request. `StateManager` writes the record, except `cuts`, which `Checkpoints` writes.

    Attributes:
        slot: slot of the state after the first `length` tokens, once the steps in flight have run; slot 0 (zeros) if
            `length` is 0.
        length: number of tokens that the state contains. After a match, `length` may be less than `KVState.length`: the
            tokens in between are computed again to advance the state.
        node: pinned node that owns `slot`; None if the request owns the slot, or for slot 0.
        spare_slot: second slot that the request owns, with which `slot` alternates in decode steps; 0 for none.
        spare_len: number of tokens that the state in the spare slot contains.
        cuts: for each length at which a chunk leaves a state to the cache, the expected number of requests that will
            use the state.
    """

    slot: int = 0
    length: int = 0
    node: TreeNode | None = None
    spare_slot: int = 0
    spare_len: int = 0
    cuts: dict[int, int] = field(default_factory=dict)


def states_of(req: Req) -> RowStates:
    """Return the record of a request, created on first use."""
    states: RowStates | None = req.kv.states
    if states is None:
        states = req.kv.states = RowStates()
    return states
