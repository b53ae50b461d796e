"""`DecoderLayer`: a mixer and a feed-forward, each behind a norm and added to the residual stream.

The layer's spec names the kinds of both (`model_config.LayerSpec`), and the tables in `decoder` name their classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.attention.state_pool import StateShape
from radixrt.distributed.partial_sum import PartialSum
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.kernels.float8_rows import Activations
from radixrt.layers.experts import FusedExperts
from radixrt.layers.formats.checkpoint import ParameterSources, Projection, replicated, split_by_input, split_by_output
from radixrt.layers.formats.model_formats import ModelFormats
from radixrt.layers.linear import Linear, meta_parameter
from radixrt.layers.ops import LayerOps
from radixrt.models.decoder_spec import DecoderSpec
from radixrt.models.partition import Partition

if TYPE_CHECKING:
    from radixrt.distributed.parallel import TPGroup


@dataclass(frozen=True)
class LayerContext:
    """Constructor arguments of the parts of a layer. All but the prefix are those of the whole model.

    Attributes:
        dtype: of weights.
        activation_dtype: of the residual stream and of activations.
        ops: kernels for the device.
        formats: the format of each weight.
        part: the heads, columns and rows that this rank holds.
        group: the ranks that the model is split over; None for one rank.
        prefix: the checkpoint's path of the layer.
    """

    spec: DecoderSpec
    dtype: torch.dtype
    activation_dtype: torch.dtype
    ops: LayerOps
    formats: ModelFormats
    part: Partition
    group: TPGroup | None
    prefix: str = ""

    @property
    def norm_dtype(self) -> torch.dtype:
        """Dtype of the weights of norms: that of activations, or float32 where 1 is added to them, which bfloat16 would
        round."""
        return torch.float32 if self.spec.unit_offset else self.activation_dtype

    @property
    def norm_offset(self) -> float:
        """Number that is added to the weights of norms."""
        return 1.0 if self.spec.unit_offset else 0.0

    def column_parallel(
        self,
        module: str,
        projections: Sequence[tuple[str, int, Sequence[range]]],
        inputs: int,
        *,
        bias: bool = False,
        gated: bool = False,
    ) -> Linear:
        """Return a linear layer that is split by output.

        Args:
            module: the path of the projections' module in the layer.
            projections: name and outputs of each whole projection, and the ranges of its outputs that this rank has; in
                the order of the rows. A name may come again.
            gated: see `Linear`.
        """
        parts = [
            split_by_output(f"{self.prefix}.{module}.{name}", outputs, inputs, ranges)
            for name, outputs, ranges in projections
        ]
        return self._linear(parts, bias=bias, gated=gated)

    def row_parallel(self, path: str, inputs: int, taken: range, outputs: int, *, bias: bool = False) -> Linear:
        """Return a linear layer that is split by input; its outputs are addends.

        Args:
            path: of the projection in the layer.
            taken: the inputs that this rank has.
        """
        return self._linear([split_by_input(f"{self.prefix}.{path}", outputs, inputs, taken)], bias=bias)

    def _linear(self, projections: Sequence[Projection], *, bias: bool, gated: bool = False) -> Linear:
        return Linear(projections, bias, self.dtype, self.formats.linear(projections), gated=gated)


@dataclass(frozen=True)
class MixerInputs:
    """Arguments of one forward pass that every mixer gets.

    Attributes:
        positions: int64 [T].
        rotary_table: see `radixrt.layers.rotary.rotary_table`.
        batch: the step; the backend has been prepared for it.
    """

    positions: torch.Tensor
    rotary_table: torch.Tensor
    batch: ForwardBatch
    attention: AttentionBackend


class Mixer(nn.Module, ABC):
    """The part of a decoder layer in which tokens of a sequence meet, for example attention.

    A mixer is called in two steps, `mix` and `project`, because the layer selects rows of the residual stream between
    them. Classes are constructed with a `LayerContext`, the `LayerSpec`, and the number of earlier layers with the same
    kind of pool, which is the layer's index there.

    Attributes:
        attention_layer: the layer's entry in the KV pool; None for a mixer without keys and values.
        state: the layer's entry in the pool of states; None for a mixer without one. A mixer that has one is a
            `RecurrentLayer`.
    """

    attention_layer: AttentionLayer | None = None
    state: StateShape | None = None

    @property
    def reader(self) -> Linear | None:
        """The only layer that reads the x of `mix`; None if others read it too."""
        return None

    @abstractmethod
    def mix(self, x: Any, inputs: MixerInputs, narrowed: ForwardBatch | None) -> torch.Tensor:
        """Mix the tokens of each sequence, and store what later steps read of them.

        Args:
            x: [T, hidden], normalized; `Activations` where there is a `reader`, else a tensor.
            narrowed: `batch.narrowed` in the last layer of a narrowed step: only its P tokens are wanted.

        Returns:
            [T, n], or [P, n] if narrowed, for `project`.
        """

    @abstractmethod
    def project(self, mixed: torch.Tensor) -> PartialSum:
        """Apply the output projection: [T, n] -> this rank's addend [T, hidden] of an all-reduce."""

    def checkpoint_tensors(self) -> ParameterSources:
        """Sources of the mixer's parameters, but for those of its linear layers, which have their own."""
        return {}


class FeedForward(nn.Module, ABC):
    """The part of a decoder layer that treats each token alone. Classes are constructed with a `LayerContext` and the
    `LayerSpec`."""

    @property
    def reader(self) -> Linear | None:
        """The only layer that reads the x of `forward`; None if others read it too."""
        return None

    @abstractmethod
    def forward(self, x: Any) -> PartialSum:
        """[T, hidden], normalized -> this rank's addend [T, hidden] of an all-reduce.

        Args:
            x: `Activations` where there is a `reader`, else a tensor.
        """

    def checkpoint_tensors(self) -> ParameterSources:
        """Sources of the feed-forward's parameters, but for those of its linear layers and experts, which have their
        own."""
        return {}


class DecoderLayer(nn.Module):
    """A mixer, then a feed-forward. Each leaves an addend, which the next norm adds to the residual stream; where a
    group shares the model, that norm also adds up the addends of all ranks."""

    def __init__(self, context: LayerContext, mixer: Mixer, feed_forward: FeedForward) -> None:
        super().__init__()
        self._ops, self._group = context.ops, context.group
        self._eps = context.spec.rms_norm_eps
        self._context = context
        self.input_norm = meta_parameter(context.spec.hidden_size, dtype=context.norm_dtype)
        self.mixer = mixer
        self.post_mixer_norm = meta_parameter(context.spec.hidden_size, dtype=context.norm_dtype)
        self.feed_forward = feed_forward

    def forward(
        self,
        residual: torch.Tensor,
        added: PartialSum | None,
        inputs: MixerInputs,
        narrowed: ForwardBatch | None = None,
    ) -> tuple[torch.Tensor, PartialSum | None]:
        """Run the layer.

        Args:
            residual: the residual stream [T, hidden], updated in place.
            added: the addend of the layer before, [T, hidden]; None if there is none.
            narrowed: `batch.narrowed`, in the last layer of a narrowed step.

        Returns:
            The residual stream and this layer's addend, [T, hidden]; if narrowed, [P, hidden] of its tokens.
        """
        normed = self._norm(residual, added, self.input_norm, self.mixer.reader)
        mixed = self.mixer.mix(normed, inputs, narrowed)
        if narrowed is not None:
            residual = residual[inputs.batch.logits_index]
            if not narrowed.num_tokens:
                return residual, None
        projected = self.mixer.project(mixed)
        mixed_norm = self._norm(residual, projected, self.post_mixer_norm, self.feed_forward.reader)
        fed: PartialSum = self.feed_forward(mixed_norm)
        return residual, fed

    def _norm(
        self, residual: torch.Tensor, added: PartialSum | None, weight: torch.Tensor, reader: Linear | None
    ) -> Activations:
        """Return the norm of the residual stream and its addend, perhaps in float8, for its only reader."""
        columns = None if reader is None else reader.float8_group(residual.shape[0], residual.dtype)
        arguments = (residual, added, weight, self._eps, residual.dtype, self._group)
        if columns is None:
            return self._ops.all_reduce_add_rms_norm(*arguments)
        return self._ops.all_reduce_add_rms_norm_float8(*arguments, columns)

    def checkpoint_tensors(self) -> ParameterSources:
        """Sources of the layer's parameters."""
        prefix, names, offset = self._context.prefix, self._context.spec.names, self._context.norm_offset
        hidden = tuple(self.input_norm.shape)
        found = {
            "input_norm": replicated(f"{prefix}.{names.input_norm}.weight", hidden, offset=offset),
            "post_mixer_norm": replicated(f"{prefix}.{names.post_mixer_norm}.weight", hidden, offset=offset),
        }
        for name, part in (("mixer", self.mixer), ("feed_forward", self.feed_forward)):
            found |= {f"{name}.{path}": tensors for path, tensors in part.checkpoint_tensors().items()}
        for path, module in self.named_modules():
            if isinstance(module, (Linear, FusedExperts)):
                found |= {f"{path}.{name}": tensors for name, tensors in module.sources.items()}
        return found
