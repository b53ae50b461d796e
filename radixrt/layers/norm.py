"""RMS normalization."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from radixrt.layers.linear import meta_parameter


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, computed in float32 and rounded once (Zhang and Sennrich, 2019).

    Args:
        dtype: of the input (and of the weight, so that nothing is converted at each step).
        out_dtype: of the output.
    """

    def __init__(self, size: int, eps: float, dtype: torch.dtype, out_dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = meta_parameter(size, dtype=dtype)
        self._shape = (size,)
        self._eps = eps
        self._out_dtype = out_dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] -> [..., size]."""
        return F.rms_norm(x, self._shape, self.weight, self._eps).to(self._out_dtype)
