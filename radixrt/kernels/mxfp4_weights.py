"""`Mxfp4Weights`: weights of experts as MXFP4 numbers. Importing this module imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

GROUP = 32
"""Numbers along a row that share a scale."""
SCALE_ALIGNMENT = 16
"""Rows of scales are padded to multiples of so many bytes, for kernels that load several at once."""


class Mxfp4Weights(NamedTuple):
    """The weights [E, rows, columns] of experts, with columns a multiple of GROUP.

    Attributes:
        codes: uint8 [E, rows, columns / 2]: two numbers of four bits in a byte, the first one in its low half; a sign,
            two bits of exponent, and one of mantissa.
        scales: uint8 [E, rows, padded groups]: the exponent of each group's power of two, plus 127, and padding.
    """

    codes: torch.Tensor
    scales: torch.Tensor


def scale_columns(columns: int) -> int:
    """Return the scales of a row with so many columns, those of padding included."""
    return -(-(columns // GROUP) // SCALE_ALIGNMENT) * SCALE_ALIGNMENT
