"""`GatedDeltaNet`: the recurrent mixer of Qwen3-Next and Qwen3.5."""

from __future__ import annotations

import torch

from radixrt.attention.state_pool import LayerStates, StateShape
from radixrt.distributed.partial_sum import PartialSum
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.forward_batch.state_rows import StateRows
from radixrt.kernels.float8_rows import Activations
from radixrt.layers.formats.checkpoint import CheckpointTensor, ParameterSources, replicated
from radixrt.layers.linear import Linear, meta_parameter
from radixrt.layers.recurrence import GatedDeltaShape, GatedDeltaWeights
from radixrt.models.decoder_layer import LayerContext, Mixer, MixerInputs
from radixrt.models.decoder_spec import LayerSpec, RecurrentSpec


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
        self.in_proj = self._input_projection()
        self.conv = meta_parameter(shape.channels, sizes.taps, dtype=context.dtype)
        self.a_log = meta_parameter(shape.v_heads, dtype=torch.float32)
        self.dt_bias = meta_parameter(shape.v_heads, dtype=torch.float32)
        self.norm = meta_parameter(shape.v_dim, dtype=torch.float32)
        self.out_proj = context.row_parallel(
            "linear_attn.out_proj", sizes.v_heads * sizes.v_dim, self._head_values, spec.hidden_size
        )

    def verify(self, device: torch.device) -> None:
        """Verify the kernels that compute the layer; see `RecurrenceOps.verify`."""
        taps = self._sizes.taps
        self._context.ops.recurrence.verify(self._shape, taps, self._context.activation_dtype, device)

    @property
    def reader(self) -> Linear:
        return self.in_proj

    def mix(self, x: Activations, inputs: MixerInputs, narrowed: ForwardBatch | None) -> torch.Tensor:
        mixed = inputs.attention.mix_states(self, self.in_proj(x), inputs.batch)
        return mixed if narrowed is None else mixed[inputs.batch.logits_index]

    def recur(self, x: torch.Tensor, states: LayerStates, rows: StateRows) -> torch.Tensor:
        """As `RecurrentLayer.recur`."""
        weights = GatedDeltaWeights(self.conv, self.a_log, self.dt_bias, self.norm, self._context.spec.rms_norm_eps)
        recurrence = self._context.ops.recurrence
        return recurrence.gated_delta_net(x, self._shape, weights, states.conv, states.recurrent, rows)

    def project(self, mixed: torch.Tensor) -> PartialSum:
        return self.out_proj.partial_sum(mixed, self._context.group)

    @property
    def _head_values(self) -> range:
        """This rank's values of the value heads."""
        heads, dim = self._context.part.v_heads, self._sizes.v_dim
        return range(heads.start * dim, heads.stop * dim)

    def _input_projection(self) -> Linear:
        sizes, part = self._sizes, self._context.part
        keys, values = sizes.k_heads * sizes.k_dim, sizes.v_heads * sizes.v_dim
        projections: list[tuple[str, int, list[range]]]
        if not sizes.interleaved:
            projections = [
                ("in_proj_qkv", 2 * keys + values, _blocks(part.k_heads, part.v_heads, sizes)),
                ("in_proj_z", values, [self._head_values]),
                ("in_proj_b", sizes.v_heads, [part.v_heads]),
                ("in_proj_a", sizes.v_heads, [part.v_heads]),
            ]
        else:
            qkvz, ba = _interleaved(part.k_heads, sizes)
            projections = [
                ("in_proj_qkvz", 2 * keys + 2 * values, qkvz),
                ("in_proj_ba", 2 * sizes.v_heads, ba),
            ]
        return self._context.column_parallel("linear_attn", projections, self._context.spec.hidden_size)

    def checkpoint_tensors(self) -> ParameterSources:
        sizes, part, prefix = self._sizes, self._context.part, self._context.prefix + ".linear_attn"
        channels, heads = 2 * sizes.k_heads * sizes.k_dim + sizes.v_heads * sizes.v_dim, (sizes.v_heads,)
        return {
            "conv": tuple(
                CheckpointTensor(f"{prefix}.conv1d.weight", (channels, 1, sizes.taps), 0, block, len(block))
                for block in _blocks(part.k_heads, part.v_heads, sizes)
            ),
            "a_log": (CheckpointTensor(f"{prefix}.A_log", heads, 0, part.v_heads, len(part.v_heads)),),
            "dt_bias": (CheckpointTensor(f"{prefix}.dt_bias", heads, 0, part.v_heads, len(part.v_heads)),),
            "norm": replicated(f"{prefix}.norm.weight", (sizes.v_dim,)),
        }


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
