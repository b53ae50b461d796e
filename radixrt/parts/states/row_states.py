"""`RowStates`: what a request holds of the state slots (`KVState.states`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixrt.mem_cache.tree_node import TreeNode
from radixrt.scheduler.req import Req


@dataclass(slots=True, eq=False)
class RowStates:
    """Written by `StateManager`, and `cuts` by `Checkpoints`.

    Attributes:
        slot: slot that holds, or will hold once the steps in flight have run, the state after the first `length`
            tokens; slot 0 (zeros) after none.
        length: see `slot`. It is less than `KVState.length` behind a match: the tokens in between are computed again
            for the state's sake.
        node: node whose state that is, pinned; None if the slot is the request's own, or slot 0.
        spare_slot: second slot of its own, between which and `slot` decode steps alternate; 0 for none.
        spare_len: number of tokens after which the spare slot holds the state.
        cuts: lengths at which a chunk leaves its state to the cache -> number of requests that are expected to use it.
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
