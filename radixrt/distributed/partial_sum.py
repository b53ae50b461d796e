"""`PartialSum`: a rank's addend of an all-reduce."""

from __future__ import annotations

from typing import NamedTuple

import torch


class PartialSum(NamedTuple):
    """An addend of the residual stream. With tensor parallelism, this rank's partial sum of the addend.

    Attributes:
        x: [T, hidden].
        sent: whether the kernel that computed x also writes x into the memory of the other ranks.
    """

    x: torch.Tensor
    sent: bool = False
