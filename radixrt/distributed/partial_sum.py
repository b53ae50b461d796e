"""`PartialSum`: a rank's addend of an all-reduce. Importing this module imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class PartialSum(NamedTuple):
    """An addend of the residual stream. With tensor parallelism, this rank's partial sum of the addend.

    Attributes:
        x: [T, hidden].
        sent: whether the kernel that computed x also writes x into the memory of the other ranks.
    """

    x: torch.Tensor
    sent: bool = False
