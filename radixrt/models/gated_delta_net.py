"""`GatedDeltaNet`: the recurrent mixer of Qwen3-Next and Qwen3.5."""

from __future__ import annotations

import torch

from radixrt.attention.state_pool import LayerStates, StateShape
from radixrt.distributed.partial_sum import PartialSum
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.forward_batch.state_rows import StateRows
from radixrt.layers.linear import meta_parameter
from radixrt.layers.recurrence import GatedDeltaShape, GatedDeltaWeights
from radixrt.models.decoder_layer import LayerContext, Mixer, MixerInputs
from radixrt.models.decoder_spec import LayerSpec, RecurrentSpec
from radixrt.models.loading.checkpoint import (
    CheckpointTensor,
    ParameterSources,
    column_slices,
    replicated,
    row_parallel,
)


class GatedDeltaNet(Mixer):
    """A gated delta net over this rank's heads; see `RecurrenceOps.gated_delta_net`.

    The input projection computes q, k and v, then the output's gate z, then b and a, each of the six in one block. A
    checkpoint of Qwen3-Next has two tensors for it, in which the rows of a key head stand together.
    """

    def __init__(self, context: LayerContext, layer: LayerSpec, index: int) -> None:
        super().__init__()
        spec, part, sizes = context.spec, context.part, context.spec.recurrent
        if sizes is None:
            raise ValueError("a layer has a gated delta net, but the spec does not describe one")
        self._context, self._sizes = context, sizes
        self._shape = shape = GatedDeltaShape(len(part.k_heads), len(part.v_heads), sizes.k_dim, sizes.v_dim)
        self.state: StateShape = StateShape(
            index, shape.channels, sizes.taps - 1, context.activation_dtype, shape.v_heads, shape.v_dim, shape.k_dim
        )
        self.mixed_features = shape.v_heads * shape.v_dim
        self.in_proj = context.linear(spec.hidden_size, shape.in_features, bias=False)
        self.conv = meta_parameter(shape.channels, sizes.taps, dtype=context.dtype)
        self.a_log = meta_parameter(shape.v_heads, dtype=torch.float32)
        self.dt_bias = meta_parameter(shape.v_heads, dtype=torch.float32)
        self.norm = meta_parameter(shape.v_dim, dtype=torch.float32)
        self.out_proj = context.linear(self.mixed_features, spec.hidden_size, bias=False)

    def verify(self, device: torch.device) -> None:
        """Verify the kernels that compute the layer; see `RecurrenceOps.verify`."""
        taps = self._sizes.taps
        self._context.ops.recurrence.verify(self._shape, taps, self._context.activation_dtype, device)

    def mix(self, x: torch.Tensor, inputs: MixerInputs, narrowed: ForwardBatch | None) -> torch.Tensor:
        mixed = inputs.attention.mix_states(self, self.in_proj(x), inputs.batch)
        return mixed if narrowed is None else mixed[inputs.batch.logits_index]

    def recur(self, x: torch.Tensor, states: LayerStates, rows: StateRows) -> torch.Tensor:
        """As `RecurrentLayer.recur`."""
        weights = GatedDeltaWeights(self.conv, self.a_log, self.dt_bias, self.norm, self._context.spec.rms_norm_eps)
        recurrence = self._context.ops.recurrence
        return recurrence.gated_delta_net(x, self._shape, weights, states.conv, states.recurrent, rows)

    def project(self, mixed: torch.Tensor) -> PartialSum:
        return self.out_proj.partial_sum(mixed, self._context.group)

    def checkpoint_tensors(self, prefix: str) -> ParameterSources:
        sizes, part = self._sizes, self._context.part
        prefix += ".linear_attn"
        keys, values = sizes.k_heads * sizes.k_dim, sizes.v_heads * sizes.v_dim
        channels, heads = 2 * keys + values, (sizes.v_heads,)
        blocks = _blocks(part.k_heads, part.v_heads, sizes)
        conv = tuple(
            CheckpointTensor(f"{prefix}.conv1d.weight", (channels, 1, sizes.taps), 0, block, len(block))
            for block in blocks
        )
        head_values = range(part.v_heads.start * sizes.v_dim, part.v_heads.stop * sizes.v_dim)
        return {
            **self._input_projection(prefix, blocks, head_values),
            **row_parallel(self.out_proj, "out_proj", prefix, (values, head_values), part.rank),
            "conv": conv,
            "a_log": (CheckpointTensor(f"{prefix}.A_log", heads, 0, part.v_heads, len(part.v_heads)),),
            "dt_bias": (CheckpointTensor(f"{prefix}.dt_bias", heads, 0, part.v_heads, len(part.v_heads)),),
            "norm": replicated(f"{prefix}.norm.weight", (sizes.v_dim,)),
        }

    def _input_projection(self, prefix: str, blocks: list[range], head_values: range) -> ParameterSources:
        sizes, heads = self._sizes, self._context.part.v_heads
        keys, values = sizes.k_heads * sizes.k_dim, sizes.v_heads * sizes.v_dim
        if not sizes.interleaved:
            projections = [
                ("in_proj_qkv", 2 * keys + values, blocks),
                ("in_proj_z", values, [head_values]),
                ("in_proj_b", sizes.v_heads, [heads]),
                ("in_proj_a", sizes.v_heads, [heads]),
            ]
        else:
            qkvz, ba = _interleaved(self._context.part.k_heads, sizes)
            projections = [
                ("in_proj_qkvz", 2 * keys + 2 * values, qkvz),
                ("in_proj_ba", 2 * sizes.v_heads, ba),
            ]
        return column_slices(self.in_proj, "in_proj", prefix, projections)


def _blocks(k_heads: range, v_heads: range, sizes: RecurrentSpec) -> list[range]:
    """Return the rows of some heads in a tensor with the rows of q, then of k, then of v."""
    keys = sizes.k_heads * sizes.k_dim
    first, end = k_heads.start * sizes.k_dim, k_heads.stop * sizes.k_dim
    of_v = range(2 * keys + v_heads.start * sizes.v_dim, 2 * keys + v_heads.stop * sizes.v_dim)
    return [range(first, end), range(keys + first, keys + end), of_v]


def _interleaved(k_heads: range, sizes: RecurrentSpec) -> tuple[list[range], list[range]]:
    """Return the rows of some key heads, and of their value heads, in the tensors of Qwen3-Next.

    A key head has its rows of q, k, v and z together in one tensor, and those of b and a in the other.

    Returns:
        Ranges of the first tensor: q of all heads, then k, v and z; and of the second: b of all heads, then a.
    """
    served = sizes.v_heads // sizes.k_heads

    def of_heads(lengths: list[int]) -> list[range]:
        ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
        return [
            range(head * ends[-1] + end - length, head * ends[-1] + end)
            for end, length in zip(ends, lengths, strict=True)
            for head in k_heads
        ]

    values = served * sizes.v_dim
    return of_heads([sizes.k_dim, sizes.k_dim, values, values]), of_heads([served, served])
