"""`PartialSum`: one rank's addend of an all-reduce."""

from __future__ import annotations

from typing import NamedTuple

import torch


class PartialSum(NamedTuple):
    """An addend of the residual stream; where several ranks share the model, the addend of one of them.

    Attributes:
        x: [T, hidden].
        sent: whether the kernel that computed x also writes it into the other ranks' memory.
    """

    x: torch.Tensor
    sent: bool = False
