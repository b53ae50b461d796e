"""`PackedWeights`: weights of experts as codes of a few bits with scales. Importing this module imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class PackedWeights(NamedTuple):
    """The weights [E, rows, columns] of experts. Kernels convert the codes in registers.

    Attributes:
        codes: uint8 [E, rows, columns / 2]: two numbers of four bits in a byte, the first one in its low half.
        scales: uint8 [E, rows, padded groups]: the scale of each group of neighbouring columns, and padding.
    """

    codes: torch.Tensor
    scales: torch.Tensor
