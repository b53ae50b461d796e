"""`LayerOps`: the operations of a decoder layer but attention, as a reference in torch and as compiled CPU kernels.

A decode step of a small model has a few hundred small operations between GEMMs, each a few microseconds of work; run
one by one in torch they cost as much as a fifth of the step.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from radixrt.distributed.partial_sum import PartialSum
from radixrt.kernels.compiled import Kernel
from radixrt.kernels.float8_rows import Activations
from radixrt.layers.cpu_recurrence import CpuRecurrence
from radixrt.layers.formats.weight_memory import WeightMemory
from radixrt.layers.recurrence import RecurrenceOps
from radixrt.layers.refine_top import MAX_NEAR, NEAR_TOP, refine_top
from radixrt.layers.routing import Routing, route
from radixrt.layers.swiglu import BiasedSwiGLU

if TYPE_CHECKING:
    from radixrt.attention.base import AttentionLayer
    from radixrt.distributed.parallel import TPGroup

LANES = 16
"""The compiled kernels support rows of a multiple of this many elements."""


class LayerOps(ABC):
    """Operations of a decoder layer on plain tensors. Weights of other formats belong to a `WeightFormat`.

    Attributes:
        recurrence: the operations of recurrent layers.
    """

    recurrence: RecurrenceOps = RecurrenceOps()

    @abstractmethod
    def add_rms_norm(
        self, residual: torch.Tensor, x: torch.Tensor | None, weight: torch.Tensor, eps: float, dtype: torch.dtype
    ) -> torch.Tensor:
        """Add x to the residual stream in place, then normalize the sum (RMSNorm, Zhang and Sennrich, 2019).

        Args:
            residual: [T, hidden].
            x: [T, hidden] in any dtype, or None to add nothing.
            weight: [hidden], in residual's dtype or float32.
            dtype: of the result.

        Returns:
            [T, hidden]: residual / rms(residual) * weight, computed in float32 and rounded once.
        """

    def all_reduce_add_rms_norm(
        self,
        residual: torch.Tensor,
        added: PartialSum | None,
        weight: torch.Tensor,
        eps: float,
        dtype: torch.dtype,
        group: TPGroup | None,
    ) -> torch.Tensor:
        """`add_rms_norm` of the addends of all ranks of the group, if there is one; the addend may be overwritten."""
        x = None if added is None else added.x
        if group is not None and x is not None:
            x = group.all_reduce(x)
        return self.add_rms_norm(residual, x, weight, eps, dtype)

    def all_reduce_add_rms_norm_float8(
        self,
        residual: torch.Tensor,
        added: PartialSum | None,
        weight: torch.Tensor,
        eps: float,
        dtype: torch.dtype,
        group: TPGroup | None,
        columns: int,
    ) -> Activations:
        """`all_reduce_add_rms_norm`, perhaps in float8, for a layer that quantizes its activations anyway.

        Args:
            columns: columns that share a scale, see `WeightFormat.float8_group`.
        """
        return self.all_reduce_add_rms_norm(residual, added, weight, eps, dtype, group)

    def embed_shard(self, input_ids: torch.Tensor, rows: torch.Tensor, first: int) -> torch.Tensor:
        """Look int64 [T] ids up in this rank's shard of the embedding -> [T, hidden], zeros for tokens of other ranks.

        Args:
            rows: [n, hidden], the shard.
            first: token id of its first row.
        """
        local = input_ids - first
        elsewhere = (local < 0) | (local >= rows.shape[0])
        hidden = F.embedding(local.masked_fill_(elsewhere, 0), rows)
        return hidden.masked_fill_(elsewhere[:, None], 0)

    @abstractmethod
    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up [T, n], for rows [2 * n] of gate, then up."""

    def join_columns(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return parts [T, n] side by side."""
        return torch.cat(tuple(parts), dim=1)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return x W^T + bias [T, M], for x [T, K], a plain weight [M, K] and a bias [M]."""
        return F.linear(x, weight, bias)

    def refine_top(self, logits: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor) -> None:
        """Recompute in float32, in place, the logits near each row's largest; see `radixrt.layers.refine_top`."""
        refine_top(logits, hidden, weight)

    def linear_silu_and_mul(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return `silu_and_mul` of `linear` [T, M / 2], for a weight whose rows are those of gate, then those of up."""
        return self.silu_and_mul(self.linear(x, weight, bias))

    def linear_partial_sum(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, group: TPGroup | None
    ) -> PartialSum:
        """Return `linear` [T, hidden] as this rank's addend of an all-reduce.

        The next `all_reduce_add_rms_norm` on the same stream takes it, before another addend is computed.
        """
        return PartialSum(self.linear(x, weight, bias))

    def route(
        self, x: torch.Tensor, router: torch.Tensor, routing: Routing, bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose the experts of each token; see `radixrt.layers.routing.route`."""
        return route(x, router, routing, bias)

    def run_experts(
        self,
        x: torch.Tensor,
        experts: torch.Tensor,
        weights: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        biased: BiasedSwiGLU | None = None,
    ) -> torch.Tensor | None:
        """Return the weighted sum [T, hidden] of the outputs of each token's experts, without waiting for the device;
        None where there is no kernel for it.

        Args:
            x: [T, hidden] in the weights' dtype.
            experts, weights: from `route`, [T, k].
            gate_up, down: plain weights [E, 2 * n, hidden] and [E, hidden, n].
            biased: of experts with biases; None for SiLU-gated ones without.
        """
        return None

    @abstractmethod
    def prepare_heads(
        self,
        qkv: torch.Tensor,
        layer: AttentionLayer,
        positions: torch.Tensor,
        table: torch.Tensor,
        q_weight: torch.Tensor | None,
        k_weight: torch.Tensor | None,
        eps: float,
        pool: tuple[torch.Tensor, torch.Tensor] | None,
        slots: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Process the heads between the fused projection and attention: norm, rotary embedding, and perhaps the store.

        Args:
            qkv: [T, num_heads + 2 * num_kv_heads, head_dim], the heads of q, then of k, then of v, those of a token
                together; may be overwritten.
            layer: for its numbers of heads.
            positions: int64 [T].
            table: [context_length, 2, rotary_dim], from `rotary_table`. The embedding is that of Su et al., arXiv
                2104.09864, with halves as in transformers' Llama: dimension i of a head forms a pair with
                i + head_dim / 2, and the first rotary_dim / 2 pairs are rotated.
            q_weight, k_weight: [head_dim] of the RMSNorm of each head of q and of k; None for both where there is none.
            eps: of these norms.
            pool: keys and values of the layer, [slots, num_kv_heads, head_dim] each; implementations may store into it.
            slots: int64 [T], distinct but for the padding slot, whose content is never read.

        Returns:
            q [T, num_heads, head_dim], and k and v [T, num_kv_heads, head_dim], or None for both if they were stored.
            The reference stores nothing.
        """


class TorchOps(LayerOps):
    """The reference in torch, on any device."""

    def add_rms_norm(
        self, residual: torch.Tensor, x: torch.Tensor | None, weight: torch.Tensor, eps: float, dtype: torch.dtype
    ) -> torch.Tensor:
        if x is not None:
            residual.add_(x)
        return _rms_norm(residual, weight, eps).to(dtype)

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        size = gate_up.shape[-1] // 2
        return F.silu(gate_up[:, :size]).mul_(gate_up[:, size:])

    def prepare_heads(
        self,
        qkv: torch.Tensor,
        layer: AttentionLayer,
        positions: torch.Tensor,
        table: torch.Tensor,
        q_weight: torch.Tensor | None,
        k_weight: torch.Tensor | None,
        eps: float,
        pool: tuple[torch.Tensor, torch.Tensor] | None,
        slots: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        heads, rotated = layer.num_heads, layer.num_heads + layer.num_kv_heads
        qk = qkv[:, :rotated]
        if q_weight is not None and k_weight is not None:
            qk = self._norm_heads(qk, heads, q_weight, k_weight, eps)
        qk = self._rotate(qk, positions, table)  # one operation for the heads of q and of k
        return qk[:, :heads], qk[:, heads:], qkv[:, rotated:]

    def _norm_heads(
        self, qk: torch.Tensor, num_heads: int, q_weight: torch.Tensor, k_weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Return the RMSNorm of each head of q and k; qk may be overwritten."""
        q, k = qk[:, :num_heads], qk[:, num_heads:]
        return torch.cat((_rms_norm(q, q_weight, eps), _rms_norm(k, k_weight, eps)), dim=1)

    def _rotate(self, heads: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Return rotated heads of q and k, [T, H, head_dim]; they may be overwritten."""
        rows, dim, pairs = table.index_select(0, positions), heads.shape[-1], table.shape[-1] // 2
        if 2 * pairs == dim:
            rotated = torch.addcmul(heads * rows[:, :1], heads.roll(dim // 2, -1), rows[:, 1:])
            return rotated.to(heads.dtype)
        low, high = heads[..., :pairs], heads[..., dim // 2 : dim // 2 + pairs]
        cos, sin = rows[:, :1, :pairs], rows[:, 1:, pairs:]
        turned = (low * cos - high * sin).to(heads.dtype), (high * cos + low * sin).to(heads.dtype)
        rest = heads[..., pairs : dim // 2], heads[..., dim // 2 + pairs :]
        return torch.cat((turned[0], rest[0], turned[1], rest[1]), dim=-1)


class CpuOps(TorchOps):
    """The compiled kernels, for a float32 residual stream and float32 or bfloat16 activations.

    A shape that they do not support goes to the reference. Products with bfloat16 weights are those of the format
    `Panels`.

    Attributes:
        library: the compiled kernels.
        weights: memory of the weights that formats lay out for the kernels.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library, self.weights = library, WeightMemory()
        self.recurrence = CpuRecurrence(library)
        pointer, i32, i64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        self._place = Kernel(library, "radixrt_place_columns", [pointer, pointer, i32, i32, i64])
        self._gemm = Kernel(library, "radixrt_gemm_f32", [pointer] * 4 + [i64] * 3)
        self._norm_kernels, self._silu_kernels, self._rotate_kernels, self._head_norm_kernels = {}, {}, {}, {}
        self._refine_kernels = {}
        for dtype, suffix in ((torch.bfloat16, "bf16"), (torch.float32, "f32")):
            self._norm_kernels[dtype] = Kernel(
                library, f"radixrt_add_rms_norm_{suffix}", [pointer] * 4 + [i32, i32, ctypes.c_float]
            )
            self._silu_kernels[dtype] = Kernel(library, f"radixrt_silu_and_mul_{suffix}", [pointer, pointer, i32, i32])
            self._refine_kernels[dtype] = Kernel(
                library, f"radixrt_refine_top_{suffix}", [pointer] * 3 + [i64] * 3 + [ctypes.c_float, i64]
            )
            self._rotate_kernels[dtype] = Kernel(
                library, f"radixrt_rotate_{suffix}", [pointer, i64, pointer, pointer, i32, i32, i32, i32]
            )
            self._head_norm_kernels[dtype] = Kernel(
                library, f"radixrt_norm_heads_{suffix}", [pointer, i64, pointer, i32, i32, i32, ctypes.c_float]
            )

    def multiplies(self, weight: torch.Tensor) -> bool:
        """Return True if `linear` of a plain weight is a compiled kernel."""
        fits = weight.dim() == 2 and weight.shape[1] % LANES == 0 and weight.is_contiguous()
        return fits and weight.dtype == torch.float32

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        other = x.dtype != torch.float32 or (bias is not None and bias.dtype != torch.float32)
        if other or x.dim() != 2 or not self.multiplies(weight):
            return super().linear(x, weight, bias)
        x, out = x.contiguous(), torch.empty(x.shape[0], weight.shape[0])
        place = None if bias is None else bias.data_ptr()
        self._gemm.call(x.data_ptr(), weight.data_ptr(), place, out.data_ptr(), x.shape[0], *weight.shape)
        return out

    def refine_top(self, logits: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor) -> None:
        kernel = self._refine_kernels.get(weight.dtype)
        if kernel is None or weight.shape[1] % LANES or not weight.is_contiguous():
            super().refine_top(logits, hidden, weight)
            return
        hidden = hidden.float().contiguous()
        kernel.call(
            logits.data_ptr(), hidden.data_ptr(), weight.data_ptr(), len(logits), *weight.shape, NEAR_TOP, MAX_NEAR
        )

    def add_rms_norm(
        self, residual: torch.Tensor, x: torch.Tensor | None, weight: torch.Tensor, eps: float, dtype: torch.dtype
    ) -> torch.Tensor:
        rows, dim = residual.shape
        kernel = self._norm_kernels.get(dtype)
        if kernel is None or dim % LANES or residual.dtype != torch.float32 or (x is not None and x.dtype != dtype):
            return super().add_rms_norm(residual, x, weight, eps, dtype)
        out = torch.empty(rows, dim, dtype=dtype)
        kernel.call(
            residual.data_ptr(), None if x is None else x.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, dim, eps
        )
        return out

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        kernel = self._silu_kernels.get(gate_up.dtype)
        if kernel is None or size % LANES:
            return super().silu_and_mul(gate_up)
        out = torch.empty(rows, size, dtype=gate_up.dtype)
        kernel.call(gate_up.data_ptr(), out.data_ptr(), rows, size)
        return out

    def join_columns(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        if any(part.dtype != torch.float32 or not part.is_contiguous() for part in parts):
            return super().join_columns(parts)
        out = torch.empty(parts[0].shape[0], sum(part.shape[1] for part in parts))
        first = 0
        for part in parts:
            self._place.call(part.data_ptr(), out[:, first:].data_ptr(), *part.shape, out.shape[1])
            first += part.shape[1]
        return out

    def _norm_heads(
        self, qk: torch.Tensor, num_heads: int, q_weight: torch.Tensor, k_weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        rows, _, dim = qk.shape
        kernel = self._head_norm_kernels.get(qk.dtype)
        fits = dim % LANES == 0 and qk.stride(1) == dim and qk.stride(2) == 1
        if kernel is None or not fits or q_weight.dtype != torch.float32 or k_weight.dtype != torch.float32:
            return super()._norm_heads(qk, num_heads, q_weight, k_weight, eps)
        for heads, weight in ((qk[:, :num_heads], q_weight), (qk[:, num_heads:], k_weight)):
            kernel.call(heads.data_ptr(), qk.stride(0), weight.data_ptr(), rows, heads.shape[1], dim, eps)
        return qk

    def _rotate(self, heads: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        rows, count, dim = heads.shape
        kernel = self._rotate_kernels.get(heads.dtype)
        rotary = table.shape[-1]
        fits = rotary % (2 * LANES) == 0 and heads.stride(1) == dim and heads.stride(2) == 1
        if kernel is None or not fits or table.dtype != torch.float32:
            return super()._rotate(heads, positions, table)
        kernel.call(heads.data_ptr(), heads.stride(0), table.data_ptr(), positions.data_ptr(), rows, count, dim, rotary)
        return heads


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalize the last dimension; in float32 if the weight is float32. The result has x's dtype."""
    wide = x.to(weight.dtype) if weight.dtype == torch.float32 else x
    return F.rms_norm(wide, (x.shape[-1],), weight.to(wide.dtype), eps).to(x.dtype)
