"""`Attention`: the mixer of Llama, Mistral, Qwen2 and Qwen3."""

from __future__ import annotations

import torch

from radixrt.attention.base import AttentionLayer
from radixrt.distributed.partial_sum import PartialSum
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.layers.linear import meta_parameter
from radixrt.models.decoder_layer import LayerContext, Mixer, MixerInputs
from radixrt.models.loading.checkpoint import ParameterSources, column_parallel, replicated, row_parallel
from radixrt.models.model_config import LayerSpec


class Attention(Mixer):
    """Self-attention with fused q, k and v projections, over this rank's heads."""

    def __init__(self, context: LayerContext, layer: LayerSpec, index: int) -> None:
        super().__init__()
        spec, dim = context.spec, context.spec.head_dim
        heads, kv_heads = len(context.part.heads), len(context.part.kv_heads)
        self._context = context
        self.attention_layer: AttentionLayer = AttentionLayer(
            layer_id=index,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=dim,
            scale=dim**-0.5,
            sliding_window=layer.sliding_window,
        )
        self.qkv_proj = context.linear(spec.hidden_size, (heads + 2 * kv_heads) * dim, spec.qkv_bias)
        self.o_proj = context.linear(heads * dim, spec.hidden_size, spec.o_bias)
        self.q_norm = meta_parameter(dim, dtype=context.dtype) if spec.qk_norm else None
        self.k_norm = meta_parameter(dim, dtype=context.dtype) if spec.qk_norm else None

    def mix(self, x: torch.Tensor, inputs: MixerInputs, narrowed: ForwardBatch | None) -> torch.Tensor:
        layer, batch, attention = self.attention_layer, inputs.batch, inputs.attention
        qkv = self.qkv_proj(x)
        qkv = qkv.view(qkv.shape[0], -1, layer.head_dim)
        q, k, v = self._context.ops.prepare_heads(
            qkv, layer, inputs.positions, inputs.rotary_table, self.q_norm, self.k_norm,
            self._context.spec.rms_norm_eps, attention.pool(layer), batch.out_cache_loc,
        )  # fmt: skip
        if narrowed is not None:
            if k is not None and v is not None:
                attention.store(layer, k, v, batch)
            if not narrowed.num_tokens:
                return q.new_empty(0, layer.num_heads * layer.head_dim, dtype=x.dtype)
            q, k, v, batch = q[batch.logits_index], None, None, narrowed
        return attention.attend(layer, q, k, v, batch)

    def project(self, mixed: torch.Tensor) -> PartialSum:
        return self.o_proj.partial_sum(mixed, self._context.group)

    def checkpoint_tensors(self, prefix: str) -> ParameterSources:
        spec, part, dim = self._context.spec, self._context.part, self._context.spec.head_dim
        prefix += ".self_attn"
        q = (spec.num_heads * dim, _columns(part.heads, dim))
        kv = (spec.num_kv_heads * dim, _columns(part.kv_heads, dim))
        sources = {
            **column_parallel(self.qkv_proj, "qkv_proj", prefix, {"q_proj": q, "k_proj": kv, "v_proj": kv}),
            **row_parallel(self.o_proj, "o_proj", prefix, q, part.rank),
        }
        if spec.qk_norm:
            sources |= {name: replicated(f"{prefix}.{name}.weight", (dim,)) for name in ("q_norm", "k_norm")}
        return sources


def _columns(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)
