"""`DeviceMasks`: the device's copy of the table of grammar masks."""

from __future__ import annotations

import numpy as np
import torch

from radixrt.constrained.grammar import bitmask_words
from radixrt.executor.mask_table import SLOTS_PER_ROW, Mask, mask_slots
from radixrt.messages.wire import Int32Array
from radixrt.runner.sampling.sampling_tables import upload_together


class DeviceMasks:
    """Copies the masks that a step needs and the device does not have yet.

    Attributes:
        table: int32 [slots, ceil(vocab / 32)].

    Args:
        max_rows: maximum number of constrained rows of a step.
    """

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        slots = mask_slots(max_rows)
        self.table = torch.zeros(slots, bitmask_words(vocab_size), dtype=torch.int32, device=device)
        self._stale = np.zeros(slots, bool)
        self._any_stale = False

    def changed(self, slots: Int32Array) -> None:
        """Note that the host's table has new masks in these slots."""
        if len(slots):
            self._stale[slots] = True
            self._any_stale = True

    def load_kernels(self) -> None:
        """Run what `update` runs once, without effect: the driver loads a kernel when it is first launched, and torch
        asks it for pinned memory when there is no free block of the size, which is a power of two; for that, the device
        is waited for."""
        count, most = 1, len(self.table) // SLOTS_PER_ROW
        while count <= most:
            masks = self.table[:count].cpu().numpy().copy()
            where, same = upload_together([np.arange(count), masks], self.table.device)
            self.table.index_copy_(0, where, same)
            count *= 2

    def update(self, mask: Mask) -> None:
        """Copy what is new in the host's table. Enqueued in the current stream: earlier steps keep their masks."""
        if not self._any_stale:
            return
        slots = np.flatnonzero(self._stale)
        where, masks = upload_together([slots, mask.table[slots].view(np.int32)], self.table.device)
        self.table.index_copy_(0, where, masks)
        self._stale[slots] = False
        self._any_stale = False


def slots_of_rows(mask: Mask, rows: int) -> Int32Array:
    """Return int32 [rows], the slot of each row's mask; -1 for rows without one."""
    slots = np.full(rows, -1, np.int32)
    slots[mask.rows] = mask.slots
    return slots
