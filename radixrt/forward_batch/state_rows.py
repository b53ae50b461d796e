"""`StateRows`: the slots of recurrent states that the rows of a step read and write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixrt.messages.wire import I32, Int32Array

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StateRows:
    """B rows of T packed tokens, as recurrent layers see them.

    Row i holds the tokens [starts[i], starts[i + 1]), at least one. It begins with the state in slot src[i], and leaves
    the state after its last token in slot dst[i]; the two may be equal. No two rows write the same slot, and no row
    reads a slot that another one writes, except for `SCRATCH_STATE` and within a chain. Several rows may read the same
    slot.

    A sequence that leaves states inside its tokens (`StateSection.cuts`) is a chain: several rows, one behind the
    other, each of which reads the slot that the one before it writes. They have to be computed in this order.

    Attributes:
        src, dst: int64 [B], on the runner's device.
        starts: int64 [B + 1], on the runner's device.
        lens: int32 [B], numbers of tokens, on the host; None if each row has one token and is no part of a chain, as in
            a DECODE step. Only such rows are captured by a CUDA graph.
        chains: int64 [C + 1], on the host: the rows [chains[i], chains[i + 1]) are a chain, or one row that is none.
            None if each row stands alone.
    """

    src: torch.Tensor
    dst: torch.Tensor
    starts: torch.Tensor
    lens: Int32Array | None
    chains: Int64Array | None = None

    def waves(self) -> list[Int64Array]:
        """List the rows that can be computed together, after those of the waves before: first the first rows of all
        chains, then the second ones, and so on."""
        if self.chains is None:
            return [np.arange(len(self.src))]
        number = np.arange(self.chains[-1]) - np.repeat(self.chains[:-1], np.diff(self.chains))
        return [np.flatnonzero(number == n) for n in range(int(number.max()) + 1)]

    def divided(self) -> Iterator[tuple[torch.Tensor, StateRows]]:
        """Yield the tokens of each wave, int64 indices on the runner's device, and its rows, packed without others."""
        assert self.lens is not None  # there are chains
        ends = np.cumsum(self.lens)
        for wave in self.waves():
            lens = self.lens[wave]
            tokens = np.concatenate([np.arange(ends[row] - self.lens[row], ends[row]) for row in wave])
            starts = np.concatenate([[0], np.cumsum(lens)])
            rows, at, starts_there = (torch.from_numpy(x).to(self.src.device) for x in (wave, tokens, starts))
            yield at, StateRows(self.src[rows], self.dst[rows], starts_there, lens)


@dataclass(frozen=True)
class StateColumns:
    """The numbers of `StateRows` on the host.

    Attributes:
        src, dst: int32 [B].
        starts: int64 [B + 1].
        lens, chains: as those of `StateRows`.
    """

    src: Int32Array
    dst: Int32Array
    starts: Int64Array
    lens: Int32Array | None
    chains: Int64Array | None

    @staticmethod
    def of(src: Int32Array, dst: Int32Array, lens: Int32Array, cuts: Int32Array) -> StateColumns:
        """Divide the rows of a step at their cuts.

        Args:
            src, dst, lens: int32 [B], slots and numbers of tokens of the step's rows.
            cuts: int32 [C, 3], as `StateSection.cuts`.
        """
        ends = np.cumsum(lens, dtype=np.int64)
        if not len(cuts):
            return StateColumns(src, dst, np.concatenate([[0], ends]), None if (lens == 1).all() else lens, None)
        row, count, slot = cuts.T
        chains = np.arange(len(src) + 1) + np.searchsorted(row, np.arange(len(src) + 1))
        ends = np.insert(ends, row, (ends - lens)[row] + count)
        starts = np.concatenate([[0], ends])
        return StateColumns(
            np.insert(src, row + 1, slot), np.insert(dst, row, slot), starts, np.diff(starts).astype(I32), chains
        )
