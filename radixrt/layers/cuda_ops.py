"""`LayerOps` by Triton kernels; GEMMs with many rows are left to cuBLAS."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from radixrt.attention.base import AttentionLayer
from radixrt.distributed.partial_sum import PartialSum
from radixrt.kernels.float8_rows import Activations, Float8Rows
from radixrt.kernels.packed_weights import PackedWeights
from radixrt.kernels.triton import codes_gemm_config
from radixrt.kernels.triton.skinny_gemm_config import Config, find_config
from radixrt.layers.cuda_recurrence import CudaRecurrence
from radixrt.layers.ops import TorchOps
from radixrt.layers.routing import Routing
from radixrt.layers.swiglu import BiasedSwiGLU

if TYPE_CHECKING:
    from radixrt.distributed.parallel import TPGroup
    from radixrt.kernels.triton.activation import ExpertRule
    from radixrt.kernels.triton.skinny_gemm import Workspace
    from radixrt.kernels.triton.symmetric_memory import SymmetricMemory


class CudaOps(TorchOps):
    """One launch per operation. A shape or layout that a kernel does not support goes to the reference.

    Args:
        early: launch each kernel before the one before it has ended (CUDA's programmatic dependent launch, on sm_90 and
            later, in captured graphs too); the kernel waits on the device before it reads the other's results.

    Raises:
        ImportError: triton is not installed.
    """

    def __init__(self, *, early: bool = False) -> None:
        # Imported here, because machines without triton import this module too.
        from radixrt.kernels.triton import (
            activation,
            codes,
            codes_gemv,
            embedding,
            expert_codes_gemv,
            expert_gemm,
            expert_gemv,
            gemv,
            heads,
            norm,
            quantize,
            routing,
            skinny_gemm,
        )

        self._activation, self._embedding, self._gemv, self._heads = activation, embedding, gemv, heads
        self._expert_gemm, self._expert_gemv = expert_gemm, expert_gemv
        self._expert_codes_gemv = expert_codes_gemv
        self._norm, self._routing = norm, routing
        self._codes, self._codes_gemv, self._quantize = codes, codes_gemv, quantize
        self.recurrence = CudaRecurrence(early=early)
        self._skinny_gemm = skinny_gemm
        self._workspaces: dict[torch.device, Workspace] = {}
        self._scratches: dict[torch.device, torch.Tensor] = {}
        self._early = early

    def add_rms_norm(
        self, residual: torch.Tensor, x: torch.Tensor | None, weight: torch.Tensor, eps: float, dtype: torch.dtype
    ) -> torch.Tensor:
        if not self._norm.supports(residual, x, weight):
            return super().add_rms_norm(residual, x, weight, eps, dtype)
        return self._norm.add_rms_norm(residual, x, weight, eps, dtype, self._early)

    def all_reduce_add_rms_norm(
        self,
        residual: torch.Tensor,
        added: PartialSum | None,
        weight: torch.Tensor,
        eps: float,
        dtype: torch.dtype,
        group: TPGroup | None,
    ) -> torch.Tensor:
        communicator = None if group is None else group.communicator
        if communicator is None or added is None or not communicator.supports(residual, added.x, weight):
            assert added is None or not added.sent
            return super().all_reduce_add_rms_norm(residual, added, weight, eps, dtype, group)
        return communicator.all_reduce_add_rms_norm(residual, added, weight, eps, dtype, early=self._early)

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
        """As `LayerOps.all_reduce_add_rms_norm_float8`; in the fused kernel of several ranks nothing is quantized."""
        x = None if added is None else added.x
        communicator = None if group is None else group.communicator
        sums = communicator is not None and x is not None and communicator.supports(residual, x, weight)
        if sums or dtype != residual.dtype or not self._norm.supports(residual, x, weight):
            return self.all_reduce_add_rms_norm(residual, added, weight, eps, dtype, group)
        if group is not None and x is not None:
            x = group.all_reduce(x)
        return self._norm.add_rms_norm_float8(residual, x, weight, eps, columns, self._early)

    def linear_partial_sum(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, group: TPGroup | None
    ) -> PartialSum:
        if group is not None and group.communicator is not None:
            send = group.communicator.send_buffer(x.shape[0], weight.shape[0], x.dtype)
            sent = None if send is None else self._multiply(x, weight, bias, send)
            if sent is not None:
                return PartialSum(sent, sent=True)
        return super().linear_partial_sum(x, weight, bias, group)

    def embed_shard(self, input_ids: torch.Tensor, rows: torch.Tensor, first: int) -> torch.Tensor:
        return self._embedding.embed_shard(input_ids, rows, first, self._early)

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        if not gate_up.is_contiguous():
            return super().silu_and_mul(gate_up)
        return self._activation.silu_and_mul(gate_up, self._early)

    def silu_and_mul_float8(self, gate_up: torch.Tensor, group: int) -> Activations:
        """Return `silu_and_mul`, in float8 if the kernel supports the rows.

        Args:
            group: columns that share a scale; 0 for whole rows.
        """
        if not self._activation.quantizes(gate_up, group):
            return self.silu_and_mul(gate_up)
        return self._activation.silu_and_mul_float8(gate_up, group, self._early)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        y = self._multiply(x, weight, bias)
        return F.linear(x, weight, bias) if y is None else y

    def _multiply(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, send: SymmetricMemory | None = None
    ) -> torch.Tensor | None:
        """As `linear`, by a Triton kernel; None where cuBLAS is the better choice.

        Args:
            send: see `skinny_gemm.multiply`.
        """
        if self._uses_gemv(x, weight):
            return self._gemv.gemv(x, weight, bias, self._early, send)
        tiling = self._tiling(x, weight, gated=False)
        if tiling is None:
            return None
        workspace = self._workspace(x.device)
        return self._skinny_gemm.multiply(x, weight, bias, workspace, tiling, early=self._early, send=send)

    def linear_silu_and_mul(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self._uses_gemv(x, weight):
            return self._gemv.gate_up_silu(x, weight, bias, self._early)
        tiling = self._tiling(x, weight, gated=True)
        if tiling is None:
            return super().linear_silu_and_mul(x, weight, bias)
        workspace = self._workspace(x.device)
        return self._skinny_gemm.multiply(x, weight, bias, workspace, tiling, gated=True, early=self._early)

    def float8_group(self, weight: PackedWeights, tokens: int, dtype: torch.dtype) -> int | None:
        """As `WeightFormat.float8_group`."""
        many = tokens > codes_gemm_config.max_tokens_of_e4m3(weight.shape[0], group=weight.group)
        return weight.group if many and self._codes.multiplies_float8(weight, dtype) else None

    def reads_codes(self, x: Activations, weight: PackedWeights, *, gated: bool = False) -> bool:
        """Return True if `multiply_codes` is a kernel of ours, which may be gated, and send its result."""
        return self._config_of_codes(x, weight, gated=gated) is not None

    def _config_of_codes(self, x: Activations, weight: PackedWeights, *, gated: bool) -> Config | None:
        """Return the tiling of a product with codes; None where cuBLAS computes it."""
        tokens, config, group = x.shape[0], codes_gemm_config, weight.group
        if self.float8_group(weight, tokens, x.dtype) is not None:
            return config.find_float8_config(tokens, *weight.shape, gated=gated, group=group)
        assert isinstance(x, torch.Tensor)
        if not 0 < tokens <= config.MAX_TOKENS or not self._skinny_gemm.supports(x, weight.words, x.dtype):
            return None
        return config.find_config(tokens, *weight.shape, gated=gated, bits=32 // weight.in_word, group=group)

    def multiply_codes(
        self,
        x: Activations,
        weight: PackedWeights,
        bias: torch.Tensor | None,
        *,
        gated: bool = False,
        send: SymmetricMemory | None = None,
    ) -> torch.Tensor:
        """Return x W^T + bias [T, rows] in x's dtype, for x [T, columns] in a floating dtype.

        Args:
            x: in float8 only where `float8_group` says so.
            gated: return silu(gate) * up [T, rows / 2] instead; only where `reads_codes`.
            send: see `skinny_gemm.multiply`; only where `reads_codes`.
        """
        tiling = self._config_of_codes(x, weight, gated=gated)
        assert tiling is not None or not (gated or send is not None)
        if isinstance(x, torch.Tensor):
            if self.float8_group(weight, x.shape[0], x.dtype) is not None:
                x = self._quantize.quantize_rows(x.contiguous(), self._early, weight.group)
            elif tiling is None:
                return F.linear(x, self._codes.dequantize(weight, self._scratch(x, weight.shape)), bias)
            elif self._codes_gemv.wins(x, weight, gated=gated):
                return self._codes_gemv.multiply(x, weight, bias, gated=gated, early=self._early, send=send)
        if tiling is not None:
            return self._skinny_gemm.multiply(
                x, weight, bias, self._workspace(weight.words.device), tiling, gated=gated, early=self._early, send=send
            )
        assert isinstance(x, Float8Rows)
        return self._codes.multiply_float8(x, weight, bias)

    def _scratch(self, x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """Return memory for a weight in x's dtype, which the next product may overwrite.

        The products of a device's one stream run in turn. No step has more tokens than the first one, which is not
        captured, so that captured steps find the memory large enough.
        """
        nbytes, found = math.prod(shape) * x.element_size(), self._scratches.get(x.device)
        if found is None or found.numel() < nbytes:
            found = self._scratches[x.device] = torch.empty(nbytes, dtype=torch.uint8, device=x.device)
        return found[:nbytes].view(x.dtype).view(shape)

    def _uses_gemv(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        return self._gemv.wins(x.shape[0], *weight.shape) and self._gemv.supports(x, weight)

    def _tiling(self, x: torch.Tensor, weight: torch.Tensor, *, gated: bool) -> Config | None:
        """Return the tiling of a GEMM with a batch; None where cuBLAS is used."""
        tiling = find_config(x.shape[0], *weight.shape, gated=gated)
        return tiling if tiling is not None and self._skinny_gemm.supports(x, weight) else None

    def _workspace(self, device: torch.device) -> Workspace:
        """Return the workspace of all GEMMs of a device, whose one stream runs them in turn. The first call is not
        captured."""
        if device not in self._workspaces:
            self._workspaces[device] = self._skinny_gemm.Workspace(device)
        return self._workspaces[device]

    def route(
        self, x: torch.Tensor, router: torch.Tensor, routing: Routing, bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._routing.route(
            x.contiguous(),
            router,
            self._workspace(x.device).arrived,
            top_k=routing.top_k,
            num_shared=routing.num_shared,
            renormalize=routing.renormalize,
            bias=bias,
            early=self._early,
        )

    def run_experts(
        self,
        x: torch.Tensor,
        experts: torch.Tensor,
        weights: torch.Tensor,
        gate_up: torch.Tensor | PackedWeights,
        down: torch.Tensor | PackedWeights,
        biased: BiasedSwiGLU | None = None,
    ) -> torch.Tensor | None:
        """As `LayerOps.run_experts`, also for packed weights and an x of any floating dtype."""
        x, experts, rule = x.contiguous(), experts.int(), self._rule(biased)
        if isinstance(gate_up, torch.Tensor) and isinstance(down, torch.Tensor):
            if x.dtype != gate_up.dtype:
                return None
            if self._expert_gemv.supports(x, gate_up, down):
                return self._expert_gemv.run_experts(x, experts, weights, gate_up, down, self._early, rule)
        else:
            assert isinstance(gate_up, PackedWeights)
            assert isinstance(down, PackedWeights)
            if self._expert_codes_gemv.supports(x, gate_up, down):
                return self._expert_codes_gemv.run_experts(x, experts, weights, gate_up, down, self._early, rule)
        return self._expert_gemm.run_experts(x, experts, weights, gate_up, down, self._early, rule)

    def _rule(self, biased: BiasedSwiGLU | None) -> ExpertRule:
        if biased is None:
            return self._activation.SILU
        of = biased.swiglu
        return self._activation.ExpertRule(biased.gate_up, biased.down, of.alpha, of.limit)

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
        """As `LayerOps.prepare_heads`; q is contiguous, and k and v are stored if there is a pool."""
        if not self._heads.supports(qkv, table, q_weight, k_weight, pool):
            q, k, v = super().prepare_heads(qkv, layer, positions, table, q_weight, k_weight, eps, None, slots)
            return q.contiguous(), k, v
        return self._heads.prepare_heads(
            qkv, layer.num_heads, positions, table, q_weight, k_weight, eps, pool, slots, self._early
        )
