"""`Addend`: what a block of a decoder layer adds to the residual sum, where several ranks may have a part of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from radixrt.layers.ops import LayerOps

if TYPE_CHECKING:
    from radixrt.executor.parallel import TPGroup

PIECE_TOKENS = 8192
MAX_PIECES = 2
"""Where ranks share the model, a long step is computed in up to so many pieces of at least so many tokens: while what
one adds is on its way between the ranks, another is computed. A step of 16,384 tokens takes 4 % less time on two H200s
then, and 8 % less on four; one of 4096, whose launches the host is late with, takes longer."""

ALL = slice(None)


@dataclass(frozen=True)
class Addend:
    """What is added for some tokens.

    Attributes:
        tokens: which they are.
        x: [T, hidden]; where a group shares the model, this rank's part of it.
        summing: a `torch.distributed.Work`, where the ranks are summing x already, in place.
    """

    tokens: slice
    x: torch.Tensor
    summing: Any | None = None

    def add_rms_norm(
        self, residual: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype, ops: LayerOps,
        group: TPGroup | None,
    ) -> torch.Tensor:  # fmt: skip
        """As `LayerOps.add_rms_norm`, for these tokens of the residual sum [all tokens, hidden]."""
        if self.summing is None:
            return ops.sum_add_rms_norm(residual[self.tokens], self.x, weight, eps, dtype, group)
        self.summing.wait()
        return ops.add_rms_norm(residual[self.tokens], self.x, weight, eps, dtype)


def make_addend(tokens: slice, x: torch.Tensor, group: TPGroup | None) -> Addend:
    """Of a piece of a step, which the ranks sum from now on: there are others to compute meanwhile."""
    return Addend(tokens, x, None if group is None or tokens == ALL else group.begin_all_reduce(x))


def split_tokens(count: int, group: TPGroup | None) -> list[slice]:
    """The pieces that a step of so many tokens is computed in, of lengths that differ by at most one."""
    pieces = 1 if group is None else max(1, min(MAX_PIECES, count // PIECE_TOKENS))
    if pieces == 1:
        return [ALL]
    bounds = [count * i // pieces for i in range(pieces + 1)]
    return [slice(first, end) for first, end in pairwise(bounds)]
