"""`CudaQuantized`: products with `Codes` on CUDA.

With few tokens, time is bytes of the weight: `skinny_gemm` reads the codes, and converts these in registers. With more,
e4m3 codes are multiplied by activations in float8, which the norm or activation before may have quantized. Other
weights are dequantized into a scratch, one after the other, and multiplied by cuBLAS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from radixrt.distributed.partial_sum import PartialSum
from radixrt.kernels.float8_rows import Activations
from radixrt.kernels.packed_weights import PackedWeights
from radixrt.layers.cuda_ops import CudaOps
from radixrt.layers.formats.base import Tensors
from radixrt.layers.formats.codes import Codes
from radixrt.layers.formats.cuda_expert_codes import packed_weights, shifts_of
from radixrt.layers.formats.quantized import Quantized, StoredLayout

if TYPE_CHECKING:
    from radixrt.distributed.parallel import TPGroup
    from radixrt.layers.swiglu import BiasedSwiGLU

STEP = 128
"""Columns that the kernels multiply at a time: groups are multiples of this, or at least MIN_GROUP and a part of it."""
MIN_GROUP = 16


class CudaQuantized(Quantized):
    """Weights are `PackedWeights`, or `Codes` where the kernels do not support the
    shape or the groups."""

    own_kernels = "Triton"

    def __init__(self, ops: CudaOps, layout: StoredLayout) -> None:
        super().__init__(ops, layout)
        self._cuda = ops

    def prepare(self, tensors: Tensors, bias: torch.Tensor | None = None, *, gated: bool = False) -> Any:
        weight = self._layout.codes(tensors)
        return fragment_codes(weight) or weight

    def float8_group(self, weight: Any, tokens: int, dtype: torch.dtype) -> int | None:
        return None if isinstance(weight, Codes) else self._cuda.float8_group(weight, tokens, dtype)

    def linear(self, weight: Any, x: Any, bias: torch.Tensor | None) -> torch.Tensor:
        if isinstance(weight, Codes):
            return super().linear(weight, x, bias)
        return self._cuda.multiply_codes(x, weight, bias)

    def silu_and_mul(self, weight: Any, x: Any, bias: torch.Tensor | None) -> torch.Tensor:
        if isinstance(weight, Codes) or not self._cuda.reads_codes(x, weight, gated=True):
            return super().silu_and_mul(weight, x, bias)
        return self._cuda.multiply_codes(x, weight, bias, gated=True)

    def silu_and_mul_float8(self, weight: Any, x: Any, bias: torch.Tensor | None, group: int) -> Activations:
        if isinstance(weight, Codes) or self._cuda.reads_codes(x, weight, gated=True):
            return self.silu_and_mul(weight, x, bias)
        return self._cuda.silu_and_mul_float8(self.linear(weight, x, bias), group)

    def partial_sum(self, weight: Any, x: Any, bias: torch.Tensor | None, group: TPGroup | None) -> PartialSum:
        communicator = None if group is None else group.communicator
        if communicator is not None and not isinstance(weight, Codes) and self._cuda.reads_codes(x, weight):
            send = communicator.send_buffer(x.shape[0], weight.shape[0], x.dtype)
            if send is not None:
                return PartialSum(self._cuda.multiply_codes(x, weight, bias, send=send), sent=True)
        return super().partial_sum(weight, x, bias, group)

    def prepare_experts(self, gate_up: Tensors, down: Tensors, *, biased: bool) -> tuple[Any, Any]:
        codes = self._layout.codes(gate_up), self._layout.codes(down)
        packed = packed_weights(codes[0]), packed_weights(codes[1])
        return codes if packed[0] is None or packed[1] is None else packed

    def experts(
        self,
        gate_up: Any,
        down: Any,
        x: torch.Tensor,
        experts: torch.Tensor,
        weights: torch.Tensor,
        biased: BiasedSwiGLU | None,
    ) -> torch.Tensor | None:
        if isinstance(gate_up, Codes):
            return None
        return self._cuda.run_experts(x, experts, weights, gate_up, down, biased)


def fragment_codes(weight: Codes) -> PackedWeights | None:
    """Return a weight in the order that the kernels read; None where these do not support it."""
    from radixrt.kernels.triton.weight_formats import BLOCK_4, BLOCK_8, in_fragment_order

    scheme, group = weight.scheme, weight.scheme.columns
    if weight.codes.dim() != 2 or weight.shape[1] % (BLOCK_8 if scheme.bits == 8 else BLOCK_4):
        return None
    if group % STEP and (STEP % group or group < MIN_GROUP):
        return None
    rows, columns = weight.shape
    scales, shifts, scale_rows = weight.scales.contiguous(), shifts_of(weight), scheme.rows
    if scale_rows > 1:  # there are few of them, and cuBLAS takes them in float32
        scales = scales.float()
    if shifts is not None and scale_rows > 1:
        return None
    if shifts is not None and not group:
        group = columns
    if not group:
        scales, scale_rows = scales.float().repeat_interleave(scale_rows, dim=0)[:rows, 0].contiguous(), 1
    words = in_fragment_order(weight.codes, scheme.bits)
    return PackedWeights(words, scales, shifts, scheme.numbers, scale_rows, group, columns)
