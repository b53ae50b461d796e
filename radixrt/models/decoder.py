"""The one decoder that Llama, Mistral, Qwen2 and Qwen3 are, by the flags of a `DecoderSpec`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.distributed.partial_sum import Part
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.layers.linear import Linear, meta_parameter
from radixrt.layers.lm_head import LMHead
from radixrt.layers.norm import RMSNorm
from radixrt.layers.ops import LayerOps
from radixrt.layers.rotary import RotaryTable
from radixrt.models.loading.checkpoint import CheckpointTensor, checkpoint_tensors
from radixrt.models.loading.partition import Partition, partition
from radixrt.models.model_config import DecoderSpec, ModelSpec

if TYPE_CHECKING:
    from radixrt.distributed.parallel import TPGroup


class Attention(nn.Module):
    """Self-attention with fused q, k and v projections, over this rank's heads."""

    def __init__(self, spec: DecoderSpec, layer_id: int, dtype: torch.dtype, ops: LayerOps, part: Partition) -> None:
        super().__init__()
        heads, kv_heads = len(part.heads), len(part.kv_heads)
        self._ops, self._eps = ops, spec.rms_norm_eps
        self.layer = AttentionLayer(
            layer_id=layer_id,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=spec.head_dim,
            scale=spec.head_dim**-0.5,
            sliding_window=spec.sliding_windows[layer_id],
        )
        qkv_size = (heads + 2 * kv_heads) * spec.head_dim
        self.qkv_proj = Linear(spec.hidden_size, qkv_size, spec.qkv_bias, dtype, ops.linear)
        columns = heads * spec.head_dim
        self.o_proj = Linear(columns, spec.hidden_size, spec.o_bias, dtype, ops.linear)
        self.q_norm = RMSNorm(spec.head_dim, spec.rms_norm_eps, dtype, dtype) if spec.qk_norm else None
        self.k_norm = RMSNorm(spec.head_dim, spec.rms_norm_eps, dtype, dtype) if spec.qk_norm else None

    def attend(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        rotary_table: torch.Tensor,
        batch: ForwardBatch,
        attention: AttentionBackend,
        narrowed: ForwardBatch | None = None,
    ) -> torch.Tensor:
        """What qkv_proj gave, [T, qkv_size], to what o_proj takes; given batch.narrowed, of its [P] tokens."""
        qkv = qkv.view(qkv.shape[0], -1, self.layer.head_dim)
        q_weight = None if self.q_norm is None else self.q_norm.weight
        k_weight = None if self.k_norm is None else self.k_norm.weight
        pool = attention.pool(self.layer)
        q, k, v = self._ops.prepare_heads(
            qkv, self.layer, positions, rotary_table, q_weight, k_weight, self._eps, pool, batch.out_cache_loc
        )
        if narrowed is not None:
            if k is not None and v is not None:
                attention.store(self.layer, k, v, batch)
            if not narrowed.num_tokens:
                return q.new_empty(0, self.layer.num_heads * self.layer.head_dim)
            q, k, v, batch = q[batch.logits_index], None, None, narrowed
        return attention.attend(self.layer, q, k, v, batch)


class FeedForward(nn.Module):
    """SiLU-gated feed-forward layer with fused gate and up projections."""

    def __init__(self, spec: DecoderSpec, dtype: torch.dtype, ops: LayerOps, part: Partition) -> None:
        super().__init__()
        columns = len(part.intermediate)
        self._ops = ops
        self.gate_up_proj = Linear(spec.hidden_size, 2 * columns, spec.mlp_bias, dtype, ops.linear)
        self.down_proj = Linear(columns, spec.hidden_size, spec.mlp_bias, dtype, ops.linear)

    def forward(self, x: torch.Tensor, group: TPGroup | None) -> Part:
        """[T, hidden] -> this rank's part of [T, hidden]."""
        return self._ops.linear_part(self._ops.gate_up_silu(x, self.gate_up_proj), self.down_proj, group)


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual.

    Where a group shares the model, each rank has a part of what either adds; the next norm sums them.
    """

    def __init__(
        self, spec: DecoderSpec, layer_id: int, dtype: torch.dtype, residual_dtype: torch.dtype, ops: LayerOps,
        part: Partition, group: TPGroup | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._ops, self._dtype, self._eps, self._group = ops, dtype, spec.rms_norm_eps, group
        self.input_norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps, residual_dtype, dtype)
        self.attention = Attention(spec, layer_id, dtype, ops, part)
        self.post_attention_norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps, residual_dtype, dtype)
        self.feed_forward = FeedForward(spec, dtype, ops, part)

    def forward(
        self,
        residual: torch.Tensor,
        added: Part | None,
        positions: torch.Tensor,
        rotary_table: torch.Tensor,
        batch: ForwardBatch,
        attention: AttentionBackend,
        narrowed: ForwardBatch | None = None,
    ) -> tuple[torch.Tensor, Part | None]:
        """Add what the layer before left to the residual sum [T, hidden], in place.

        Args:
            added: of [T, hidden]; None if nothing is to be added.

        Returns:
            The sum, and what this layer adds next; given batch.narrowed, [P, hidden] of its tokens.
        """
        qkv = self.attention.qkv_proj(self._norm(residual, added, self.input_norm))
        heads = self.attention.attend(qkv, positions, rotary_table, batch, attention, narrowed)
        if narrowed is not None:
            residual = residual[batch.logits_index]
            if not narrowed.num_tokens:
                return residual, None
        attended = self._ops.linear_part(heads, self.attention.o_proj, self._group)
        fed: Part = self.feed_forward(self._norm(residual, attended, self.post_attention_norm), self._group)
        return residual, fed

    def _norm(self, residual: torch.Tensor, added: Part | None, norm: RMSNorm) -> torch.Tensor:
        return self._ops.sum_add_rms_norm(residual, added, norm.weight, self._eps, self._dtype, self._group)


class Decoder(nn.Module):
    """A causal language model. Parameters start on the meta device; `radixrt.models.loading.weights` sets them.

    The last layer computes keys and values of every token, and all else only for tokens whose hidden states are wanted
    (`ForwardBatch.narrowed`).

    Args:
        spec: a spec whose `decoder` is set; positions up to its context_length can be computed.
        dtype: of weights and activations.
        residual_dtype: of the sum that all layers add to. In bfloat16 its rounding is most of the model's error: on
            SmolLM2 the divergence from float32 halves (KL 0.0017 to 0.0008) when the sum alone is kept in float32.
        ops: the small operations, for the device.
        group: the ranks that the model is split over; None, or a group of one, for all of it.

    Raises:
        ConfigError: the ranks cannot share it.
    """

    narrows = True

    def __init__(
        self, spec: ModelSpec, dtype: torch.dtype, residual_dtype: torch.dtype, ops: LayerOps,
        group: TPGroup | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if spec.decoder is None:
            raise ValueError(f"{spec.architecture} is not an architecture of this decoder")
        group = None if group is None or group.size == 1 else group
        part = partition(spec) if group is None else partition(spec, group.rank, group.size)
        self._group, self._part = group, part
        self._model_spec, self._spec, self._context_length = spec, spec.decoder, spec.context_length
        self._dtype, self._residual_dtype, self._ops = dtype, residual_dtype, ops
        decoder = spec.decoder
        self.embed_tokens = meta_parameter(part.vocab_rows, decoder.hidden_size, dtype=dtype)
        layers = [DecoderLayer(decoder, i, dtype, residual_dtype, ops, part, group) for i in range(decoder.num_layers)]
        self.layers = nn.ModuleList(layers)
        self.attention_layers = [layer.attention.layer for layer in layers]
        self.norm = RMSNorm(decoder.hidden_size, decoder.rms_norm_eps, residual_dtype, residual_dtype)
        self.lm_head = LMHead(decoder.hidden_size, part.vocab_rows, dtype)
        self._rotary: RotaryTable | None = None

    def finalize(self) -> None:
        """Make what is derived from the parameters. Call once, when they are all set."""
        device = self.embed_tokens.device
        self._rotary = RotaryTable(self._spec.rope, self._spec.head_dim, self._context_length, self._dtype, device)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, batch: ForwardBatch, attention: AttentionBackend
    ) -> torch.Tensor:
        """One step over T tokens.

        Args:
            input_ids, positions: int64 [T].
            batch: handed to the backend, which has been prepared for it.

        Returns:
            [T, hidden] in residual_dtype, the final norm applied; of a batch that is narrowed, [P, hidden].
        """
        assert self._rotary is not None, "finalize was not called"
        table = self._rotary.table
        residual: torch.Tensor
        residual, added = self._embed(input_ids)
        *before, last = self.layers
        for layer in before:
            residual, added = layer(residual, added, positions, table, batch, attention)
        residual, added = last(residual, added, positions, table, batch, attention, batch.narrowed)
        if not residual.shape[0]:
            return residual
        weight, eps = self.norm.weight, self._spec.rms_norm_eps
        return self._ops.sum_add_rms_norm(residual, added, weight, eps, self._residual_dtype, self._group)

    def _embed(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, Part | None]:
        """The residual sum before the first layer, and what it adds; with several ranks, all of it comes from them."""
        if self._group is None:
            return F.embedding(input_ids, self.embed_tokens).to(self._residual_dtype), None
        x = self._ops.embed_part(input_ids, self.embed_tokens, self._part.vocab.start)
        return torch.zeros_like(x, dtype=self._residual_dtype), Part(x)

    def compute_logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[S, hidden] -> float32 [S, vocab], on every rank; in `out` where that can be done without a copy."""
        if self._group is None:
            logits: torch.Tensor = self.lm_head(hidden, out)
            return logits
        place = self._group.gather_place(hidden.shape[0], self._part.vocab_rows)
        return self._group.gather_columns(self.lm_head(hidden, place), self._model_spec.vocab_size, out)

    def compute_own_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """As `Model.compute_own_logits`."""
        one_shot = None if self._group is None else self._group.one_shot
        place = None if one_shot is None else one_shot.sample_place(hidden.shape[0], self._part.vocab_rows)
        if place is None:
            return None
        own: torch.Tensor = self.lm_head(hidden, place)
        return own if own.data_ptr() == place.data_ptr() else place.copy_(own)

    def checkpoint_tensors(self) -> dict[str, tuple[CheckpointTensor, ...]]:
        """For each parameter, where a checkpoint has it. See `radixrt.models.loading.checkpoint`."""
        shapes = {name: tuple(parameter.shape) for name, parameter in self.named_parameters()}
        return checkpoint_tensors(shapes, self._model_spec, self._part)
