"""Linear layers, and the `LinearMethod` by which each stores its weight and multiplies by it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from radixrt.distributed.partial_sum import PartialSum
from radixrt.layers.ops import LayerOps

if TYPE_CHECKING:
    from radixrt.distributed.parallel import TPGroup

PACK_ROWS = 16
"""Batch rows that oneDNN is told to lay weights out for; 1, 16 and 64 measured alike for 1 to 256 rows."""


def _find_packed_linear() -> Callable[..., torch.Tensor]:
    """oneDNN's linear operator, resolved to its one overload: resolving it by name at each call costs microseconds."""
    try:
        found: Callable[..., torch.Tensor] = torch.ops.mkldnn._linear_pointwise.default
    except (AttributeError, RuntimeError):  # a torch built without oneDNN; then no weight is packed
        return F.linear
    return found


_packed_linear = _find_packed_linear()


class LinearMethod(ABC):
    """Storage format of a linear layer's weights, and the GEMM that reads them. Stateless and shared by many layers.

    All state is kept on the layer: parameters, which the loader fills from tensors of the same name, and the tensors
    that the method derives from them after loading.

    Args:
        ops: kernels for the device.
        float32_min_rows: see `Precision.float32_min_tokens`.
    """

    def __init__(self, ops: LayerOps, *, float32_min_rows: int | None = None) -> None:
        self._ops = ops
        self._float32_min_rows = float32_min_rows

    @abstractmethod
    def create_weights(self, layer: Linear, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        """Register the layer's weight parameters on the meta device.

        Args:
            in_features, out_features: of this rank's part of the layer.
            dtype: of plain weights.
        """

    def process_weights_after_loading(self, layer: Linear) -> None:
        """Bring the loaded weights into the layout that `apply` reads. Called once, after all parameters are set."""
        return

    @abstractmethod
    def apply(self, layer: Linear, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return x W^T + bias for x [T, in_features]: [T, out_features], in the dtype of x."""

    def apply_silu_and_mul(self, layer: Linear, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return silu(gate) * up [T, out_features / 2], where `apply` returns [gate, up]. Override to fuse the two."""
        return self._ops.silu_and_mul(self.apply(layer, x, bias))

    def apply_partial_sum(
        self, layer: Linear, x: torch.Tensor, bias: torch.Tensor | None, group: TPGroup | None
    ) -> PartialSum:
        """Return `apply` as this rank's addend of the next all-reduce. Override to write it to the other ranks."""
        return PartialSum(self.apply(layer, x, bias))


class UnquantizedLinearMethod(LinearMethod):
    """Multiplication by a weight in the dtype that it was loaded in.

    On a CPU in bfloat16, a copy of the weight is laid out once, after loading: for the compiled kernel, which takes
    and returns float32, otherwise for oneDNN, whose result is rounded to bfloat16.
    """

    def create_weights(self, layer: Linear, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        layer.weight = meta_parameter(out_features, in_features, dtype=dtype)

    def process_weights_after_loading(self, layer: Linear) -> None:
        """Pack the weight where that helps, and drop the plain one."""
        assert layer.weight is not None
        plain = layer.weight
        if self._float32_min_rows is not None:
            layer.float32_weight = plain.float()
            layer.float32_bias = None if layer.bias is None else layer.bias.float()
        gated = layer.gated and layer.bias is None
        layer.panels = self._ops.pack_panels(plain, gated=gated)
        layer.gated_panels = gated and layer.panels is not None
        if layer.panels is None:
            layer.packed_weight = pack_weight(plain)
        if layer.panels is not None or layer.packed_weight is not None:
            layer.weight = None

    def apply(self, layer: Linear, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self._in_float32(layer, x):
            assert layer.float32_weight is not None
            return F.linear(x, layer.float32_weight, layer.float32_bias)
        if layer.panels is not None:
            assert not layer.gated_panels, "a gated layer is applied by silu_and_mul"
            return self._ops.linear_panels(x, layer.panels, bias)
        if layer.packed_weight is not None:
            return _packed_linear(x.bfloat16(), layer.packed_weight, bias, "none", [], "").to(x.dtype)
        assert layer.weight is not None
        if x.dtype != layer.weight.dtype:
            return self._ops.linear(x.to(layer.weight.dtype), layer.weight, bias).to(x.dtype)
        return self._ops.linear(x, layer.weight, bias)

    def apply_silu_and_mul(self, layer: Linear, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if layer.panels is not None and layer.gated_panels and not self._in_float32(layer, x):
            return self._ops.gated_panels(x, layer.panels)
        if layer.weight is None or x.dtype != layer.weight.dtype:
            return super().apply_silu_and_mul(layer, x, bias)
        return self._ops.linear_silu_and_mul(x, layer.weight, bias)

    def apply_partial_sum(
        self, layer: Linear, x: torch.Tensor, bias: torch.Tensor | None, group: TPGroup | None
    ) -> PartialSum:
        if layer.weight is None or x.dtype != layer.weight.dtype:
            return super().apply_partial_sum(layer, x, bias, group)
        return self._ops.linear_partial_sum(x, layer.weight, bias, group)

    def _in_float32(self, layer: Linear, x: torch.Tensor) -> bool:
        return layer.float32_weight is not None and x.shape[0] >= (self._float32_min_rows or 0)


LINEAR_METHODS: dict[str, type[LinearMethod]] = {"unquantized": UnquantizedLinearMethod}
"""Classes by `DecoderSpec.linear_method`."""


class Linear(nn.Module):
    """y = x W^T + b, with W [out_features, in_features].

    The loader sets the parameters, which start on the meta device, then calls `process_weights_after_loading`.

    Attributes:
        weight: the plain weight; None where the method has no such parameter, or has dropped it after loading.
        gated: only `silu_and_mul` is called: the outputs are those of gate, then those of up.
        panels: the weight as `LayerOps.linear_panels` reads it; None where it is not used.
        gated_panels: panels are laid out for `LayerOps.gated_panels` instead.
        packed_weight: the weight in oneDNN's layout, which only oneDNN's operators read; None where it is not used.
        float32_weight, float32_bias: copies for float32 activations; None where there are none.
        bias: [out_features], or None.
    """

    weight: nn.Parameter | None

    def __init__(
        self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype, method: LinearMethod, *,
        gated: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self._method = method
        self.gated = gated
        self.weight = None
        self.panels: torch.Tensor | None = None
        self.gated_panels = False
        self.packed_weight: torch.Tensor | None = None
        self.float32_weight: torch.Tensor | None = None
        self.float32_bias: torch.Tensor | None = None
        method.create_weights(self, in_features, out_features, dtype)
        self.bias = meta_parameter(out_features, dtype=dtype) if bias else None

    def process_weights_after_loading(self) -> None:
        """Let the method prepare the loaded weights. Called once."""
        self._method.process_weights_after_loading(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in_features] -> [T, out_features], same dtype: that of activations, see `Precision`."""
        return self._method.apply(self, x, self.bias)

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up [T, out_features / 2], for a layer whose outputs are those of gate, then those of up."""
        return self._method.apply_silu_and_mul(self, x, self.bias)

    def partial_sum(self, x: torch.Tensor, group: TPGroup | None) -> PartialSum:
        """This rank's addend [T, out_features] of the next all-reduce, for a layer split along in_features."""
        return self._method.apply_partial_sum(self, x, self.bias, group)


def meta_parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """A parameter with a shape and no memory, for the loader to replace."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype, device="meta"), requires_grad=False)


def pack_weight(weight: torch.Tensor) -> torch.Tensor | None:
    """Lay a bfloat16 CPU weight out for oneDNN; None where plain `F.linear` is as good or packing is not available.

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
