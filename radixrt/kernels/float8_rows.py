"""`Float8Rows`: activations in float8, in the order of the CUDA kernels. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import torch


class Float8Rows(NamedTuple):
    """Activations [T, columns]: code * scale. A kernel that has computed a row quantizes it while it stores it.

    Attributes:
        codes: float8_e4m3fn [T, columns], columns in the order of `kernels.triton.weight_formats`, with padding behind
            them as `kernels.triton.padding` allocates it.
        scales: float32 [groups, rows], of each group of columns the scales of all rows; of groups there may be more
            than T rows, and the content of those is undefined.
        group: neighbouring columns that share a scale; 0 for the whole row.
        dtype: of the activations before, and of products with them.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    group: int
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        """[T, columns]."""
        return self.codes.shape


Activations: TypeAlias = "torch.Tensor | Float8Rows"
"""Inputs [T, columns] of a linear layer. They are in float8 only if the layer asks for it (`Linear.float8_group`)."""
