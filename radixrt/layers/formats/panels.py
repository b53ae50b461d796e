"""`Panels`: bfloat16 weights in the layout of the compiled CPU kernels (`kernels/gemm.cpp`, `kernels/experts.cpp`)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from radixrt.distributed.partial_sum import PartialSum
from radixrt.kernels.compiled import Kernel
from radixrt.layers.formats.base import Tensors
from radixrt.layers.formats.checkpoint import Encoding
from radixrt.layers.formats.plain import Plain
from radixrt.layers.ops import CpuOps, LayerOps
from radixrt.layers.swiglu import BiasedSwiGLU

if TYPE_CHECKING:
    from radixrt.distributed.parallel import TPGroup


class PanelWeight(NamedTuple):
    """A weight [..., rows, columns] in panels of some rows each.

    Attributes:
        gated: a panel has rows of gate and the same rows of up, for `Panels.silu_and_mul`; else it is for
            `Panels.linear`.
    """

    panels: torch.Tensor
    gated: bool


class Panels(Plain):
    """Plain weights, which are laid out once, after loading, where the processor has bfloat16 instructions (AVX-512
    BF16, AMX) and the shape fits.

    The products are float32, where oneDNN rounds to bfloat16, and faster than oneDNN's with few rows
    (`benchmarks/kernels/cpu_gemm.py`). A float32 x is rounded to bfloat16.
    """

    def __init__(self, ops: CpuOps, encoding: Encoding | None = None) -> None:
        super().__init__(ops, encoding)
        self._compiled = ops
        library, pointer, i32, i64 = ops.library, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        self._rows, self._depth = library.radixrt_gemm_cols(), library.radixrt_gemm_depth()
        self._pack = Kernel(library, "radixrt_gemm_pack", [pointer, pointer, i64, i64, i32])
        self._gemm = Kernel(library, "radixrt_gemm", [pointer] * 3 + [i64] * 3 + [i32])
        self._experts = Kernel(
            library, "radixrt_experts", [pointer] * 6 + [i64] * 5 + [pointer] * 2 + [ctypes.c_float] * 2
        )

    def prepare(self, tensors: Tensors, bias: torch.Tensor | None = None, *, gated: bool = False) -> Any:
        weight = tensors["weight"]
        gated = gated and bias is None
        if weight.dim() == 3:
            return self._pack_experts(weight, gated=gated)
        panels = self.pack(weight, gated=gated, empty=self._compiled.weights.empty)
        return super().prepare(tensors, bias) if panels is None else PanelWeight(panels, gated)

    def prepare_experts(self, gate_up: Tensors, down: Tensors, *, biased: bool) -> tuple[Any, Any]:
        packs = (gate_up["weight"], True), (down["weight"], False)
        if biased and any(self.pack(weight[0], gated=gated) is None for weight, gated in packs):
            return gate_up["weight"], down["weight"]  # one by one, experts with biases multiply plain weights
        return self.prepare(gate_up, gated=True), self.prepare(down)

    def pack(
        self, weight: torch.Tensor, *, gated: bool, empty: Callable[..., torch.Tensor] = torch.empty
    ) -> torch.Tensor | None:
        """Return a weight [rows, columns] in panels, with the same shape; None where the kernels do not support it.

        Args:
            empty: allocates the panels.
        """
        rows, columns = weight.shape
        if weight.dtype != torch.bfloat16 or not self._rows or rows % self._rows or columns % self._depth:
            return None
        weight, panels = weight.contiguous(), empty(rows, columns, dtype=weight.dtype)
        self._pack.call(weight.data_ptr(), panels.data_ptr(), rows, columns, gated)
        return panels

    def _pack_experts(self, weights: torch.Tensor, *, gated: bool) -> Any:
        """Replace each expert's weight by its panels, in place."""
        for weight in weights:
            panels = self.pack(weight, gated=gated)
            if panels is None:  # so of every expert
                return weights
            weight.copy_(panels)
        return PanelWeight(weights, gated)

    def is_compiled(self, weight: Any) -> bool:
        if isinstance(weight, torch.Tensor):
            return self._compiled.multiplies(weight)
        return isinstance(weight, PanelWeight)

    def linear(self, weight: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if not isinstance(weight, PanelWeight):
            return super().linear(weight, x, bias)
        assert not weight.gated, "a gated layer is applied by silu_and_mul"
        out = self._multiply(weight, x)
        return out if bias is None else out.add_(bias)

    def silu_and_mul(self, weight: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if not isinstance(weight, PanelWeight):
            return super().silu_and_mul(weight, x, bias)
        if not weight.gated:
            return self._ops.silu_and_mul(self.linear(weight, x, bias))
        return self._multiply(weight, x)

    def partial_sum(self, weight: Any, x: torch.Tensor, bias: torch.Tensor | None, group: TPGroup | None) -> PartialSum:
        if not isinstance(weight, PanelWeight):
            return super().partial_sum(weight, x, bias, group)
        return PartialSum(self.linear(weight, x, bias))

    def _multiply(self, weight: PanelWeight, x: torch.Tensor) -> torch.Tensor:
        rows, columns = weight.panels.shape
        x, width = x.contiguous(), rows // 2 if weight.gated else rows
        out = torch.empty(x.shape[0], width, dtype=torch.float32)
        self._gemm.call(x.data_ptr(), weight.panels.data_ptr(), out.data_ptr(), x.shape[0], rows, columns, weight.gated)
        return out

    def expert(self, weight: Any, index: int) -> Any:
        if not isinstance(weight, PanelWeight):
            return super().expert(weight, index)
        return PanelWeight(weight.panels[index], weight.gated)

    def experts(
        self,
        gate_up: Any,
        down: Any,
        x: torch.Tensor,
        experts: torch.Tensor,
        weights: torch.Tensor,
        biased: BiasedSwiGLU | None,
    ) -> torch.Tensor | None:
        """As `WeightFormat.experts`, in one parallel region, in float32 for a float32 x."""
        if not isinstance(gate_up, PanelWeight) or not isinstance(down, PanelWeight):
            return None
        x, experts, weights = x.contiguous(), experts.contiguous(), weights.contiguous()
        out = torch.empty_like(x)
        rule: tuple[int | None, int | None, float, float] = (None, None, 0.0, 0.0)
        if biased is not None:
            places = biased.gate_up.data_ptr(), biased.down.data_ptr()
            rule = (*places, biased.swiglu.alpha, biased.swiglu.limit)
        self._experts.call(
            x.data_ptr(),
            experts.data_ptr(),
            weights.data_ptr(),
            gate_up.panels.data_ptr(),
            down.panels.data_ptr(),
            out.data_ptr(),
            *experts.shape,
            *down.panels.shape,
            *rule,
        )
        return out


def plain_format(ops: LayerOps, encoding: Encoding | None = None) -> Plain:
    """Return the format of weights without quantization on the device of some kernels.

    Args:
        encoding: see `Plain`.
    """
    return Panels(ops, encoding) if isinstance(ops, CpuOps) else Plain(ops, encoding)
