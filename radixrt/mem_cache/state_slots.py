"""`StateSlotAllocator`: allocation of the slots that hold states of recurrent layers.

A slot holds the state of every recurrent layer after one sequence of tokens. It has one owner at a time: this
allocator (free), a node of the prefix cache, one request, or a copy between the pool and a tier (`Copies`). A step
writes it, or a copy from a tier.
"""

from __future__ import annotations

from radixrt.errors import InvariantError
from radixrt.messages.state_slots import RESERVED_STATES, SCRATCH_STATE, ZERO_STATE


class StateSlotAllocator:
    """Allocates state slots one by one.

    A slot may be freed while steps that read or write it are in flight: steps run in order, so a step that is decided
    later may write it. Within one step the caller must not free a slot that a row reads and hand it to another row.

    Args:
        num_states: number of slots, the two reserved ones included; they are never allocated.

    Raises:
        ValueError: there is no slot beside the reserved ones.
    """

    def __init__(self, num_states: int) -> None:
        if num_states <= RESERVED_STATES:
            raise ValueError(
                f"num_states must be at least {RESERVED_STATES + 1} (slots {ZERO_STATE} and {SCRATCH_STATE} are "
                f"reserved), got {num_states}"
            )
        self.num_states = num_states
        self._free = list(range(num_states - 1, RESERVED_STATES - 1, -1))
        self._is_free = [False] * RESERVED_STATES + [True] * self.num_usable

    @property
    def num_usable(self) -> int:
        """Number of slots that can be allocated."""
        return self.num_states - RESERVED_STATES

    def available(self) -> int:
        """Number of free slots."""
        return len(self._free)

    def alloc(self) -> int | None:
        """Return a slot, or None if none is free."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._is_free[slot] = False
        return slot

    def free(self, slot: int) -> None:
        """Free a slot.

        Raises:
            InvariantError: the slot is reserved, does not exist or is free already.
        """
        if not RESERVED_STATES <= slot < self.num_states or self._is_free[slot]:
            raise InvariantError(f"state slot {slot} of {RESERVED_STATES}..{self.num_states - 1} is not in use")
        self._is_free[slot] = True
        self._free.append(slot)

    def free_slots(self) -> list[int]:
        """Return the free slots, in no order: for invariants."""
        return list(self._free)
