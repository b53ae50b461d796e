"""`Part`: one rank's contribution to a sum over the ranks of a tensor-parallel group."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Part(NamedTuple):
    """What is added to the residual sum; where several ranks share the model, what one of them has of it.

    Attributes:
        x: [T, hidden].
        sent: it is on its way to the other ranks.
    """

    x: torch.Tensor
    sent: bool = False
