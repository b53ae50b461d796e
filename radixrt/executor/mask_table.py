"""`MaskTable` and `MaskReader`: transfer of grammar masks from the scheduler to the runners. Each mask is sent once.

A mask over a vocabulary of 128 k takes 16 kB, and most masks of a step were used by earlier steps: rows with the same
grammar share the masks of parser states, and reach the same states again. So masks have slots in a table, of which both
ends have a copy. A step's message names slots, and only new masks are written. Processes of the same machine map the
same table; a message to other machines carries the new masks.

Slots are overwritten in the order of their last use, and there are several times as many as rows. So no slot is
overwritten while a step in flight reads it: no row is in two steps in flight, and the masks of steps in flight are the
most recently used.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radixrt.constrained.grammar import Bitmask, bitmask_words
from radixrt.messages.runner import GrammarMask
from radixrt.messages.wire import Int32Array, pack_i32, unpack_i32
from radixrt.portable import allocate

MIN_SLOTS = 256
SLOTS_PER_ROW = 4
"""20 MB for 256 rows and a vocabulary of 152 k. The table must have room for a mask for each row of a step. Further
slots keep masks that may be used again."""


def mask_slots(max_rows: int) -> int:
    """Return the number of slots for steps of at most `max_rows` constrained rows. Both ends must use the same
    number."""
    return max(MIN_SLOTS, SLOTS_PER_ROW * max_rows)


class StepMasks:
    """The masks of one step, each kept once however many rows have it.

    Attributes:
        rows: indices of the sampling rows that have a mask.
        index: index in `masks` of each row's mask.
        masks: arrays of uint32 [mask_words].
    """

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.index: list[int] = []
        self.masks: list[Bitmask] = []
        self._indices: dict[int, int] = {}  # in `masks`, by id(mask): equal masks in other arrays are not detected

    def add(self, row: int, mask: Bitmask) -> None:
        at = self._indices.setdefault(id(mask), len(self.masks))
        if at == len(self.masks):
            self.masks.append(mask)
        self.rows.append(row)
        self.index.append(at)


class MaskTable:
    """The scheduler's end: assigns slots to masks, the least recently used ones first when all are taken.

    A mask is identified by its array, which must be read-only. A writable array is sent again with each step.

    Args:
        slots: number of slots, at least the number of different masks in one step.
        words: uint32 words of one mask.
        path: file to create or open, readable by this user only, which the runners map; None to send masks in messages.
            A restarted scheduler opens the file of the previous scheduler.

    Raises:
        OSError: the file system is full.
    """

    def __init__(self, slots: int, words: int, path: str | None = None) -> None:
        self._rows = None if path is None else _create(path, slots, words)
        self._slots = slots
        self.forget()

    def forget(self) -> None:
        """Write every mask again, because restarted runners have no masks."""
        self._free = list(reversed(range(self._slots)))
        self._held: OrderedDict[int, tuple[int, Bitmask]] = OrderedDict()  # by id(mask); keeps the mask alive
        self._num_passing = 0

    def message(self, step_id: int, rows: list[int], index: list[int], masks: Sequence[Bitmask]) -> GrammarMask:
        """Place a step's masks, and return the message about them.

        Args:
            rows: indices of the constrained rows among the step's sampling rows.
            index: index in `masks` of each of these rows' mask.
            masks: distinct arrays of uint32 [words].
        """
        slots: list[int] = []
        new: list[int] = []
        carried: list[bytes] = []
        for mask in masks:
            known = self._held.get(id(mask))
            if known is not None:
                self._held.move_to_end(id(mask))
                slots.append(known[0])
                continue
            slot = self._free.pop() if self._free else self._held.popitem(last=False)[1][0]
            # The content of a writable array may change, so the array gets a key that no later look-up has.
            key = id(mask)
            if mask.flags.writeable:
                self._num_passing += 1
                key = -self._num_passing
            self._held[key] = slot, mask
            if self._rows is None:
                carried.append(mask.tobytes())
            else:
                self._rows[slot] = mask
            slots.append(slot)
            new.append(slot)
        of_rows = pack_i32([slots[i] for i in index])
        return GrammarMask(step_id, pack_i32(rows), of_rows, pack_i32(new), b"".join(carried))


def _create(path: str, slots: int, words: int) -> Bitmask:
    """Map the file as uint32 [slots, words]. All blocks are allocated, because writing to a page without a block would
    kill the process by SIGBUS."""
    size = slots * words * 4
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            allocate(fd, size)
        except OSError:
            os.ftruncate(fd, 0)
            raise
        return np.frombuffer(mmap.mmap(fd, size), np.uint32).reshape(slots, words)
    finally:
        os.close(fd)


@dataclass(frozen=True)
class Mask:
    """The masks of a step.

    Attributes:
        rows: int32 [m], the constrained rows, as indices of the step's sampling rows.
        slots: int32 [m], slot of each row's mask.
        table: uint32 [slots, ceil(vocab / 32)], the masks by slot; valid until the step is answered.
    """

    rows: Int32Array
    slots: Int32Array
    table: npt.NDArray[np.uint32]


class MaskReader:
    """The runner's end. It maps the scheduler's file when the first mask arrives.

    Every step's message must be read, even if the step has failed, because later messages refer to its masks.

    Args:
        path: the scheduler's file; None where messages carry the masks.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._mapped: Bitmask | None = None
        self._own: Bitmask | None = None

    def read(self, message: GrammarMask, vocab_size: int) -> tuple[Mask | None, Int32Array]:
        """Return the masks of a step, or None if no row is constrained; and the slots of new masks, int32."""
        words, new = bitmask_words(vocab_size), unpack_i32(message.new)
        if message.bits:
            table = self._grown(int(new.max()) + 1, words)
            table[new] = np.frombuffer(message.bits, np.uint32).reshape(-1, words)
        elif message.new:
            self._own = None  # a restarted scheduler may map a file where the previous one sent messages
        if not message.rows:
            return None, new
        table = self._map(words) if self._own is None else self._own
        return Mask(unpack_i32(message.rows), unpack_i32(message.slots), table), new

    def _grown(self, slots: int, words: int) -> Bitmask:
        have = 0 if self._own is None else len(self._own)
        if self._own is None or have < slots:
            grown = np.zeros((max(slots, 2 * have), words), np.uint32)
            if self._own is not None:
                grown[:have] = self._own
            self._own = grown
        return self._own

    def _map(self, words: int) -> Bitmask:
        if self._mapped is None:
            assert self._path is not None
            fd = os.open(self._path, os.O_RDWR)
            try:
                self._mapped = np.frombuffer(mmap.mmap(fd, 0), np.uint32).reshape(-1, words)
            finally:
                os.close(fd)
        return self._mapped
