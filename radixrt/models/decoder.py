"""`Decoder`: the causal language model of `DECODER_ARCHITECTURES`, assembled by a `DecoderSpec`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from radixrt.attention.base import AttentionBackend
from radixrt.distributed.partial_sum import PartialSum
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.layers.classification_head import ClassificationHead
from radixrt.layers.linear import LINEAR_METHODS, meta_parameter
from radixrt.layers.lm_head import LMHead
from radixrt.layers.ops import LayerOps
from radixrt.layers.rotary import rotary_table
from radixrt.models.attention import Attention
from radixrt.models.decoder_layer import DecoderLayer, FeedForward, LayerContext, Mixer, MixerInputs
from radixrt.models.decoder_spec import LayerSpec
from radixrt.models.dense import DenseFeedForward
from radixrt.models.gated_delta_net import GatedDeltaNet
from radixrt.models.loading.checkpoint import CheckpointTensor, ParameterSources, replicated
from radixrt.models.loading.partition import partition
from radixrt.models.model_config import ModelSpec
from radixrt.models.moe import MoEFeedForward
from radixrt.models.precision import Precision, torch_dtype
from radixrt.models.registry import no_progress
from radixrt.models.short_conv import ShortConv

if TYPE_CHECKING:
    from radixrt.distributed.parallel import TPGroup

MIXERS: dict[str, Callable[[LayerContext, LayerSpec, int], Mixer]] = {
    "attention": Attention,
    "gated_delta_net": GatedDeltaNet,
    "short_conv": ShortConv,
}
FEED_FORWARDS: dict[str, Callable[[LayerContext, LayerSpec], FeedForward]] = {
    "dense": DenseFeedForward,
    "moe": MoEFeedForward,
}
"""Classes of both parts of a decoder layer, by the kinds that a `LayerSpec` names."""


def build_layers(context: LayerContext) -> list[DecoderLayer]:
    """Build the decoder layers that the spec lists."""
    layers, counts = [], Counter[str]()
    for layer in context.spec.layers:
        pool = "recurrent" if layer.is_recurrent else layer.mixer
        mixer = MIXERS[layer.mixer](context, layer, counts[pool])
        counts[pool] += 1
        layers.append(DecoderLayer(context, mixer, FEED_FORWARDS[layer.feed_forward](context, layer)))
    return layers


class Decoder(nn.Module):
    """A causal language model. Parameters start on the meta device; `radixrt.models.loading.weights` sets them.

    In a narrowed step (`ForwardBatch.narrowed`) the last layer computes what its mixer stores for every token, and
    everything else only for the tokens whose hidden states are wanted.

    Args:
        spec: a spec whose `decoder` is set; positions up to its context_length can be computed.
        precision: dtypes of the computation.
        ops: kernels for the device.
        group: the ranks that the model is split over; None, or a group of one, for the whole model.

    Raises:
        ConfigError: the ranks cannot share the model.
    """

    narrows = True

    def __init__(self, spec: ModelSpec, precision: Precision, ops: LayerOps, group: TPGroup | None = None) -> None:
        super().__init__()
        if spec.decoder is None:
            raise ValueError(f"{spec.architecture} is not an architecture of this decoder")
        group = None if group is None or group.size == 1 else group
        decoder = spec.decoder
        part = partition(spec) if group is None else partition(spec, group.rank, group.size)
        self._model_spec, self._part, self._group, self._ops = spec, part, group, ops
        dtype, activation_dtype = torch_dtype(precision.dtype), torch_dtype(precision.activations)
        self._activation_dtype, self._eps = activation_dtype, decoder.rms_norm_eps
        self._precision = precision
        method = LINEAR_METHODS[decoder.linear_method](ops, float32_min_rows=precision.float32_min_tokens)
        self._context = LayerContext(decoder, dtype, activation_dtype, ops, method, part, group)
        layers = build_layers(self._context)
        self.embed_tokens = meta_parameter(part.vocab_rows, decoder.hidden_size, dtype=dtype)
        self.layers = nn.ModuleList(layers)
        mixers = [layer.mixer for layer in layers]
        self.attention_layers = [mixer.attention_layer for mixer in mixers if mixer.attention_layer is not None]
        self.states = [mixer.state for mixer in mixers if mixer.state is not None]
        self.skipped_tensors = decoder.names.skipped
        self.norm = meta_parameter(decoder.hidden_size, dtype=self._context.norm_dtype)
        self.lm_head = LMHead(decoder.hidden_size, part.vocab_rows, dtype, ops)
        classifier = spec.classifier
        self.classifier = (
            None if classifier is None else ClassificationHead(decoder.hidden_size, len(classifier.labels))
        )
        self._rotary_table: torch.Tensor | None = None
        self.progress: Callable[[], None] = no_progress

    def finalize(self) -> None:
        """Compute what is derived from the spec on the parameters' device. Called once, after loading."""
        spec = self._model_spec
        assert spec.decoder is not None
        self._rotary_table = rotary_table(
            spec.decoder.rope,
            spec.decoder.rotary_dim or spec.decoder.head_dim,
            spec.context_length,
            torch_dtype(self._precision.rotary),
            self.embed_tokens.device,
        )

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, batch: ForwardBatch, attention: AttentionBackend
    ) -> torch.Tensor:
        """Run one step over T tokens.

        Args:
            input_ids, positions: int64 [T].
            batch: the step, which the backend has been prepared for.

        Returns:
            [T, hidden] in activation_dtype, the final norm applied; in a narrowed step, [P, hidden].
        """
        assert self._rotary_table is not None, "finalize was not called"
        inputs = MixerInputs(positions, self._rotary_table, batch, attention)
        residual: torch.Tensor
        residual, added = self._embed(input_ids)
        *before, last = self.layers
        for layer in before:
            residual, added = layer(residual, added, inputs)
            self.progress()
        residual, added = last(residual, added, inputs, batch.narrowed)
        if not residual.shape[0]:
            return residual
        return self._ops.all_reduce_add_rms_norm(
            residual, added, self.norm, self._eps, self._activation_dtype, self._group
        )

    def _embed(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, PartialSum | None]:
        """Return the residual stream before the first layer and its first addend. With several ranks each has the rows
        of some tokens, so the stream is zero and everything comes from the addends."""
        if self._group is None:
            return F.embedding(input_ids, self.embed_tokens).to(self._activation_dtype), None
        x = self._ops.embed_shard(input_ids, self.embed_tokens, self._part.vocab.start)
        return torch.zeros_like(x, dtype=self._activation_dtype), PartialSum(x)

    def compute_logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[S, hidden] -> float32 [S, vocab], on every rank; in `out` where that can be done without a copy."""
        if self._group is None:
            logits: torch.Tensor = self.lm_head(hidden, out)
            return logits
        place = self._group.gather_buffer(hidden.shape[0], self._part.vocab_rows)
        return self._group.all_gather_columns(self.lm_head(hidden, place), self._model_spec.vocab_size, out)

    def compute_local_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """As `Model.compute_local_logits`."""
        one_shot = None if self._group is None else self._group.communicator
        place = None if one_shot is None else one_shot.sample_buffer(hidden.shape[0], self._part.vocab_rows)
        if place is None:
            return None
        own: torch.Tensor = self.lm_head(hidden, place)
        return own if own.data_ptr() == place.data_ptr() else place.copy_(own)

    def checkpoint_tensors(self) -> ParameterSources:
        """Sources of all parameters. The head is listed also where it is tied; the loader takes the embedding if the
        checkpoint has no head."""
        part, (rows, hidden) = self._part, self.embed_tokens.shape
        shape = (self._model_spec.vocab_size, hidden)
        names, offset = self._context.spec.names, self._context.norm_offset
        sources = {"norm": replicated(f"model.{names.final_norm}.weight", (hidden,), offset=offset)}
        if self.classifier is not None:
            sources["classifier.weight"] = replicated("score.weight", tuple(self.classifier.weight.shape))
        for name, tensor in (("embed_tokens", "model.embed_tokens.weight"), ("lm_head.weight", "lm_head.weight")):
            sources[name] = (CheckpointTensor(tensor, shape, 0, part.vocab, rows),)
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            found = layer.checkpoint_tensors(f"model.layers.{i}")
            sources |= {f"layers.{i}.{name}": tensors for name, tensors in found.items()}
        return sources
