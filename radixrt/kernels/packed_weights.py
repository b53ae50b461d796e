"""`PackedWeights`: weights as codes of 8 or 4 bits, in the order of the CUDA kernels. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class PackedWeights(NamedTuple):
    """A weight [rows, columns], or the weights of experts [E, rows, columns]: number * scale + shift. Kernels convert
    the codes in registers.

    Attributes:
        words: int32 [..., rows, words], codes in the order of `kernels.triton.weight_formats`, with zeros behind the
            columns up to a whole block.
        scales: float32 [..., rows] of whole rows; else [..., row blocks, groups] in any floating dtype, where padding
            may follow the groups.
        shifts: float32, like the scales of groups; None for zeros, or for whole rows.
        numbers: "int8", "e4m3", "int4", which is the code less 8, "e2m1", or "mxfp4": e2m1 numbers in groups of 32,
            whose words and scales are those of `kernels.triton.mxfp4`.
        scale_rows: neighbouring rows that share a scale.
        group: neighbouring columns that share a scale; 0 for the whole row.
        columns: of the weight, without padding.
    """

    words: torch.Tensor
    scales: torch.Tensor
    shifts: torch.Tensor | None
    numbers: str
    scale_rows: int
    group: int
    columns: int

    @property
    def in_word(self) -> int:
        """Codes of a word."""
        return 4 if self.numbers in ("int8", "e4m3") else 8

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight, without padding."""
        return (*self.words.shape[:-1], self.columns)
