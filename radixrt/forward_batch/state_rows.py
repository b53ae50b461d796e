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

    Row i holds the tokens [starts[i], starts[i + 1]), at least one token. The row begins with the state in slot src[i],
    and leaves the state after its last token in slot dst[i]; both slots may be equal. No two rows write the same slot,
    and no row reads a slot that another row writes, except for `SCRATCH_STATE` and within a chain. Several rows may
    read the same slot.

    A sequence that leaves states inside its tokens (`StateSection.cuts`) is a chain of consecutive rows. Each row of a
    chain reads the slot that the previous row writes, so the rows must be computed in order.

    Attributes:
        src, dst: int64 [B], on the runner's device.
        starts: int64 [B + 1], on the runner's device.
        lens: int32 [B], numbers of tokens, on the host; None if each row has one token and there are no chains, as in a
            DECODE step. CUDA graphs capture only such rows.
        chains: int64 [C + 1], on the host: the rows [chains[i], chains[i + 1]) are a chain or a single row. None
            without chains.
    """

    src: torch.Tensor
    dst: torch.Tensor
    starts: torch.Tensor
    lens: Int32Array | None
    chains: Int64Array | None = None

    def waves(self) -> list[Int64Array]:
        """Return waves of rows that can be computed together, in order: the first rows of all chains, the second rows
        of all chains, and so on."""
        if self.chains is None:
            return [np.arange(len(self.src))]
        number = np.arange(self.chains[-1]) - np.repeat(self.chains[:-1], np.diff(self.chains))
        return [np.flatnonzero(number == n) for n in range(int(number.max()) + 1)]

    def divided(self) -> Iterator[tuple[torch.Tensor, StateRows]]:
        """Yield (tokens, rows) of each wave: the int64 indices of the wave's tokens on the runner's device, and the
        wave's rows over these tokens alone."""
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
    """Columns of `StateRows` on the host.

    Attributes:
        src, dst: int32 [B].
        starts: int64 [B + 1].
        lens, chains: as in `StateRows`.
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
