"""`Attention`: self-attention with grouped heads, the mixer of most layers."""

from __future__ import annotations

import torch

from radixrt.attention.base import AttentionLayer
from radixrt.distributed.partial_sum import PartialSum
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.kernels.float8_rows import Activations
from radixrt.layers.formats.checkpoint import CheckpointTensor, ParameterSources, joined
from radixrt.layers.linear import Linear, meta_parameter
from radixrt.models.decoder_layer import LayerContext, Mixer, MixerInputs
from radixrt.models.decoder_spec import LayerSpec


class Attention(Mixer):
    """Self-attention over this rank's heads, with one projection for q, k, v and, where the spec says so, the gate that
    the output is multiplied by."""

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
            has_sinks=spec.attention_sinks,
        )
        self.qkv_proj = self._input_projection()
        inputs = range(context.part.heads.start * dim, context.part.heads.stop * dim)
        self.o_proj = context.row_parallel(
            f"self_attn.{spec.names.o_proj}", spec.num_heads * dim, inputs, spec.hidden_size, bias=spec.o_bias
        )
        self.q_norm = meta_parameter(dim, dtype=context.norm_dtype) if spec.qk_norm else None
        self.k_norm = meta_parameter(dim, dtype=context.norm_dtype) if spec.qk_norm else None
        self.sinks = meta_parameter(heads, dtype=torch.float32) if spec.attention_sinks else None

    def _input_projection(self) -> Linear:
        """Return the projection to the rows of q, k and v, and then of the gate."""
        spec, part, dim = self._context.spec, self._context.part, self._context.spec.head_dim
        rotated = rotary_order(dim, spec.rotary_dim or dim)
        # With a gate, q_proj has for each head the rows of q, then those of its gate.
        parts = 2 if spec.gated_attention else 1
        of_q, of_kv = spec.num_heads * dim * parts, spec.num_kv_heads * dim
        projections = [
            ("q_proj", of_q, _rows(part.heads, dim * parts, rotated)),
            ("k_proj", of_kv, _rows(part.kv_heads, dim, rotated)),
            ("v_proj", of_kv, _rows(part.kv_heads, dim, [range(dim)])),
        ]
        if spec.gated_attention:
            projections.append(("q_proj", of_q, _rows(part.heads, dim * parts, [range(dim, 2 * dim)])))
        return self._context.column_parallel("self_attn", projections, spec.hidden_size, bias=spec.qkv_bias)

    @property
    def reader(self) -> Linear:
        return self.qkv_proj

    def mix(self, x: Activations, inputs: MixerInputs, narrowed: ForwardBatch | None) -> torch.Tensor:
        layer, batch, attention = self.attention_layer, inputs.batch, inputs.attention
        projected = self.qkv_proj(x)
        size = (layer.num_heads + 2 * layer.num_kv_heads) * layer.head_dim
        qkv = projected[:, :size].view(projected.shape[0], -1, layer.head_dim)
        q, k, v = self._context.ops.prepare_heads(
            qkv,
            layer,
            inputs.positions,
            inputs.rotary_table,
            self.q_norm,
            self.k_norm,
            self._context.spec.rms_norm_eps,
            attention.pool(layer),
            batch.out_cache_loc,
        )
        gate = projected[:, size:] if self._context.spec.gated_attention else None
        if narrowed is not None:
            if k is not None and v is not None:
                attention.store(layer, k, v, batch)
            if not narrowed.num_tokens:
                return q.new_empty(0, layer.num_heads * layer.head_dim, dtype=projected.dtype)
            q, k, v, batch = q[batch.logits_index], None, None, narrowed
            gate = None if gate is None else gate[inputs.batch.logits_index]
        mixed = attention.attend(layer, q, k, v, batch, self.sinks)
        return mixed if gate is None else mixed * gate.sigmoid()

    def project(self, mixed: torch.Tensor) -> PartialSum:
        return self.o_proj.partial_sum(mixed, self._context.group)

    def checkpoint_tensors(self) -> ParameterSources:
        spec, part, prefix = self._context.spec, self._context.part, self._context.prefix + ".self_attn"
        dim, names = spec.head_dim, spec.names
        sources: ParameterSources = {}
        if spec.attention_sinks:
            sinks = CheckpointTensor(f"{prefix}.sinks", (spec.num_heads,), 0, part.heads, len(part.heads))
            sources["sinks"] = (sinks,)
        for path, name in (("q_norm", names.q_norm), ("k_norm", names.k_norm)) if spec.qk_norm else ():
            sources[path] = tuple(
                CheckpointTensor(
                    f"{prefix}.{name}.weight", (dim,), 0, each, len(each), offset=self._context.norm_offset
                )
                for each in joined(rotary_order(dim, spec.rotary_dim or dim))
            )
        return sources

    def kv_factors(self, key: float, value: float) -> list[tuple[str, str, float]]:
        """Return the factors of parameters with which the layer divides its keys by a power of two, and its values by
        another one, while its output stays the same: queries are multiplied by `key`, and the output by `value`.

        Returns:
            (path of a parameter in the layer, beginning of the names of the checkpoint's tensors, factor).
        """
        spec, prefix = self._context.spec, f"{self._context.prefix}.self_attn"
        inputs = [f"qkv_proj.{name}" for name in _proportional(self.qkv_proj)]
        found = [(path, f"{prefix}.v_proj.", 1 / value) for path in inputs]
        found += [
            (f"o_proj.{name}", f"{prefix}.{spec.names.o_proj}.", value)
            for name in _proportional(self.o_proj)
            if name != "bias"
        ]
        for norm, projection, factor in (("q_norm", "q_proj", key), ("k_norm", "k_proj", 1 / key)):
            if spec.qk_norm:  # which undoes a factor of the projection
                found.append((norm, prefix, factor))
            else:
                found += [(path, f"{prefix}.{projection}.", factor) for path in inputs]
        return found


def rotary_order(head_dim: int, rotary_dim: int) -> list[range]:
    """Return the dimensions of a checkpoint's heads of q and k in the order in which the decoder keeps them.

    A rotary embedding of the first rotary_dim dimensions pairs dimension i with i + rotary_dim / 2; the decoder's
    pairs are i and i + head_dim / 2, and it rotates the first rotary_dim / 2 pairs. Any order leaves products of q and
    k as they are.
    """
    half, pairs = head_dim // 2, rotary_dim // 2
    between = rotary_dim + half - pairs
    return [range(pairs), range(rotary_dim, between), range(pairs, rotary_dim), range(between, head_dim)]


def _proportional(linear: Linear) -> list[str]:
    """Return the names of the parameters that are multiplied where weight and bias are; see
    `WeightFormat.parameters`."""
    found = linear.named_parameters(recurse=False)
    return [name for name, parameter in found if parameter.is_floating_point() and parameter.itemsize >= 2]


def _rows(heads: range, stride: int, order: list[range]) -> list[range]:
    """Return the rows of some heads in a projection with `stride` rows for each, in this order within a head."""
    return [range(head * stride + each.start, head * stride + each.stop) for head in heads for each in order]
