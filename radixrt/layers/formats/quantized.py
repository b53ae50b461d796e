"""`Quantized`: weights as `Codes`, and their reference in plain torch; `StoredLayout`, how a checkpoint stores them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from radixrt.layers.formats.base import StoredParameter, Tensors, WeightFormat
from radixrt.layers.formats.checkpoint import Projection
from radixrt.layers.formats.codes import Codes, code_values, dequantize, select_expert
from radixrt.layers.ops import CpuOps, LayerOps


class StoredLayout(ABC):
    """The tensors that a checkpoint holds for a quantized weight, and their rewriting into `Codes`.

    Implementations are values. A layout usually names parameters "weight", "scales", and perhaps "zeros" and "minima",
    which are filled, through an `Encoding` of each, in the form that `Codes` has; tensors stay packed until they are on
    the device.

    Attributes:
        plain: see `WeightFormat.loads_plain`.
    """

    plain: ClassVar[bool] = False

    @abstractmethod
    def parameters(self, projections: Sequence[Projection], dtype: torch.dtype) -> dict[str, StoredParameter]:
        """As `WeightFormat.parameters`."""

    @abstractmethod
    def codes(self, tensors: Tensors) -> Codes:
        """Return the weight in the parameters [..., rows, columns], which are no longer needed afterwards."""


class Quantized(WeightFormat):
    """A weight is `Codes`. In this reference, each product dequantizes it.

    With one scale for a row, the product is that of the codes, times the scale; activations are not quantized.

    Attributes:
        own_kernels: name of the kernels of a subclass, for weights that it keeps in another form than `Codes`.
    """

    own_kernels: str = "compiled"

    def __init__(self, ops: LayerOps, layout: StoredLayout) -> None:
        super().__init__(ops)
        self._layout = layout
        self.loads_plain = layout.plain

    def parameters(self, projections: Sequence[Projection], dtype: torch.dtype) -> dict[str, StoredParameter]:
        return self._layout.parameters(projections, dtype)

    def prepare(self, tensors: Tensors, bias: torch.Tensor | None = None, *, gated: bool = False) -> Any:
        return self._layout.codes(tensors)

    def linear(self, weight: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return multiply(weight, x, bias)

    def kernels(self, weight: Any) -> str:
        return "plain torch" if isinstance(weight, Codes) else self.own_kernels

    def expert(self, weight: Any, index: int) -> Any:
        return select_expert(weight, index)


def multiply(weight: Codes, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return x W^T + bias [T, rows] in the dtype of x, for x [T, columns] and a weight of any scheme."""
    if weight.scheme.columns or weight.minima is not None:
        out = F.linear(x, dequantize(weight, x.dtype))
    else:
        scales = weight.scales.float().repeat_interleave(weight.scheme.rows, dim=0)[: weight.shape[0], 0]
        out = (F.linear(x, code_values(weight).to(x.dtype)).float() * scales).to(x.dtype)
    return out if bias is None else out + bias.to(out.dtype)


def quantized_format(ops: LayerOps, layout: StoredLayout) -> Quantized:
    """Return the format of quantized weights on the device of some kernels."""
    from radixrt.layers.cuda_ops import CudaOps

    if isinstance(ops, CudaOps):
        from radixrt.layers.formats.cuda_codes import CudaQuantized

        return CudaQuantized(ops, layout)
    if isinstance(ops, CpuOps):
        from radixrt.layers.formats.cpu_codes import CpuQuantized

        return CpuQuantized(ops, layout)
    return Quantized(ops, layout)
