"""Linear layers. In bfloat16 on a CPU, oneDNN multiplies by a weight that it laid out once, after loading."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

PACK_ROWS = 16
"""Batch rows that oneDNN is told to lay weights out for; 1, 16 and 64 measured alike for 1 to 256 rows."""


def _find_packed_linear() -> Callable[..., torch.Tensor]:
    """oneDNN's linear by its one overload: looking it up by name at each call costs microseconds."""
    try:
        found: Callable[..., torch.Tensor] = torch.ops.mkldnn._linear_pointwise.default
    except (AttributeError, RuntimeError):  # a torch built without oneDNN; then nothing is packed
        return F.linear
    return found


_packed_linear = _find_packed_linear()

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""x [T, in_features], weight [out_features, in_features] and bias [out_features] or None -> x W^T + b."""


class Linear(nn.Module):
    """y = x W^T + b, with W [out_features, in_features].

    Parameters start on the meta device. The loader sets them, then calls `finalize`, after which the layer may hold a
    packed weight in place of `weight`.

    Args:
        product: how to multiply by a plain weight; a `LayerOps.linear`, for one.
    """

    weight: nn.Parameter | None

    def __init__(
        self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype, product: Product = F.linear
    ) -> None:
        super().__init__()
        self._product = product
        self.weight = meta_parameter(out_features, in_features, dtype=dtype)
        self.bias = meta_parameter(out_features, dtype=dtype) if bias else None
        self._packed: torch.Tensor | None = None

    def finalize(self) -> None:
        """Pack the weight where that helps and drop the plain one. Call once, with the parameters loaded."""
        if self.weight is None:
            raise RuntimeError("finalize was called twice")
        self._packed = pack_weight(self.weight)
        if self._packed is not None:
            self.weight = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in_features] -> [T, out_features], same dtype."""
        if self._packed is not None:
            y: torch.Tensor = _packed_linear(x, self._packed, self.bias, "none", [], "")
            return y
        assert self.weight is not None
        return self._product(x, self.weight, self.bias)


def meta_parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """A parameter with a shape and no memory, for the loader to replace."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype, device="meta"), requires_grad=False)


def pack_weight(weight: torch.Tensor) -> torch.Tensor | None:
    """oneDNN's layout of a bfloat16 CPU weight; None where plain `F.linear` is as good or packing is not available.

    Measured on 2 cores with AVX-512 bf16 (median, rows x out x in, plain against packed): 1 x 960 x 576 50 and 22 µs,
    16 x 3072 x 576 123 and 85 µs, 64 x 960 x 576 190 and 105 µs.
    """
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return None
    try:
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACK_ROWS)
        probe = torch.zeros(1, weight.shape[1], dtype=weight.dtype)
        torch.ops.mkldnn._linear_pointwise(probe, packed, None, "none", [], "")
    except (AttributeError, RuntimeError):  # a torch built without oneDNN, or a CPU that it has no bfloat16 for
        return None
    return packed
