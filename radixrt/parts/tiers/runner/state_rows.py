"""`StateRows`: states of recurrent layers as rows, which are copied like tokens. `PoolRows`: rows of both kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from radixrt.attention.state_pool import StatePool
from radixrt.messages.state_slots import RESERVED_STATES
from radixrt.messages.wire import Int32Array

if TYPE_CHECKING:
    from radixrt.parts.tiers.runner.staging import DeviceRows


class StateRows:
    """Rows of all states, by the negative slots of `radixrt.messages.kv_moves.state_slots`.

    The bytes of a state are its parts in the given order, and zeros behind them up to the end of the last row. A
    pipeline stage may have no recurrent layer, so that its rows are zeros.

    Args:
        tensors: [slots, ...], contiguous, each with a part of every state.
        rows: number of rows of a state.
        row_bytes: bytes of a row.

    Raises:
        ValueError: a state has more bytes than its rows.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], rows: int, row_bytes: int) -> None:
        self._parts = [tensor.flatten(1).view(torch.uint8) for tensor in tensors]
        self._rows = rows
        self._row_bytes = row_bytes
        self._size = sum(part.shape[1] for part in self._parts)
        if self._size > rows * row_bytes:
            raise ValueError(f"a state of {self._size} bytes does not fit into {rows} rows of {row_bytes} bytes")

    def check(self, slots: Int32Array) -> None:
        """Check slots that name rows of states.

        Raises:
            ValueError: a slot names no row, or a row of a reserved state.
        """
        first, last = (int(-1 - slot) // self._rows for slot in (slots.max(), slots.min()))
        count = self._parts[0].shape[0] if self._parts else last + 1
        if not RESERVED_STATES <= first <= last < count:
            raise ValueError(f"rows of states {first} to {last}, of {count} states")

    def read(self, slots: Int32Array, rows: torch.Tensor) -> None:
        """Set rows, uint8 [n, row_bytes], to n rows of states."""
        for state, start, data in self._runs(slots, rows):
            for stored, copied in self._pieces(state, start, data):
                copied.copy_(stored)
            data[max(self._size - start, 0) :] = 0

    def write(self, slots: Int32Array, rows: torch.Tensor) -> None:
        """Write rows, uint8 [n, row_bytes], into n rows of states."""
        for state, start, data in self._runs(slots, rows):
            for stored, copied in self._pieces(state, start, data):
                stored.copy_(copied)

    def _runs(self, slots: Int32Array, rows: torch.Tensor) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yield the runs of consecutive rows of one state: the state, the first byte in the state, and the run's bytes
        in `rows`, uint8 [m]."""
        numbers = -1 - slots
        states = numbers // self._rows
        cuts = np.flatnonzero((np.diff(numbers) != 1) | (np.diff(states) != 0)) + 1
        for first, last in pairwise([0, *cuts.tolist(), len(slots)]):
            row = int(numbers[first]) % self._rows
            yield int(states[first]), row * self._row_bytes, rows[first:last].view(-1)

    def _pieces(self, state: int, start: int, data: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield pairs of equal bytes of a state's parts and of `data`, the bytes of the state from `start` on."""
        before = 0
        for part in self._parts:
            size = part.shape[1]
            first, last = max(start, before), min(start + len(data), before + size)
            if first < last:
                yield part[state, first - before : last - before], data[first - start : last - start]
            before += size


def state_tensors(states: StatePool | None) -> list[torch.Tensor]:
    """Return the tensors with the parts of each state: inputs of convolutions, then matrices, of each layer."""
    if states is None:
        return []
    return [tensor for layer in states.layers for tensor in (layer.conv, layer.recurrent) if tensor.numel()]


def kinds(slots: Int32Array) -> Iterator[tuple[slice, bool]]:
    """Yield the runs of slots of one kind, and whether they are rows of states."""
    is_state = slots < 0
    cuts = np.flatnonzero(np.diff(is_state)) + 1
    for first, last in pairwise([0, *cuts.tolist(), len(slots)]):
        if first < last:
            yield slice(first, last), bool(is_state[first])


class MixedSlots:
    """Slots of both kinds, in host memory and as `DeviceRows.upload` has returned them. A slice is some of them."""

    def __init__(self, numbers: Int32Array, uploaded: Any) -> None:
        self.numbers, self.uploaded = numbers, uploaded

    def __getitem__(self, part: slice) -> MixedSlots:
        return MixedSlots(self.numbers[part], self.uploaded[part])


class PoolRows:
    """The `DeviceRows` of keys and values, and of states.

    Args:
        tokens: of keys and values.
    """

    def __init__(self, tokens: DeviceRows, states: StateRows) -> None:
        self._tokens = tokens
        self._states = states
        self.row_bytes = tokens.row_bytes

    def upload(self, slots: Int32Array) -> MixedSlots:
        """As `DeviceRows.upload`."""
        return MixedSlots(slots, self._tokens.upload(slots))

    def gather(self, slots: MixedSlots, rows: torch.Tensor) -> None:
        """As `DeviceRows.gather`."""
        for part, numbers, uploaded in self._kinds(slots):
            if uploaded is None:
                self._states.read(numbers, rows[part])
            else:
                self._tokens.gather(uploaded, rows[part])

    def scatter(self, slots: MixedSlots, rows: torch.Tensor) -> None:
        """As `DeviceRows.scatter`."""
        for part, numbers, uploaded in self._kinds(slots):
            if uploaded is None:
                self._states.write(numbers, rows[part])
            else:
                self._tokens.scatter(uploaded, rows[part])

    def _kinds(self, slots: MixedSlots) -> Iterator[tuple[slice, Int32Array, Any]]:
        """Yield the runs of slots of one kind: the run, its slots, and the uploaded slots, None for rows of states."""
        numbers, uploaded = slots.numbers, slots.uploaded
        for part, is_state in kinds(numbers):
            if is_state:
                yield part, numbers[part], None
            else:
                # Slots behind a state are uploaded again: kernels are compiled for slots that are aligned in memory.
                yield part, numbers[part], self._tokens.upload(numbers[part]) if part.start else uploaded[part]
