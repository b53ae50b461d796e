"""`Decoder`: the causal language model of all families, assembled by a `DecoderSpec`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from radixrt.attention.base import AttentionBackend
from radixrt.distributed.partial_sum import PartialSum
from radixrt.forward_batch.forward_batch import ForwardBatch, StepInputs
from radixrt.layers.classification_head import ClassificationHead
from radixrt.layers.formats.base import Quantization
from radixrt.layers.formats.checkpoint import CheckpointTensor, ParameterSources, replicated, split_by_output
from radixrt.layers.formats.model_formats import ModelFormats
from radixrt.layers.linear import meta_parameter
from radixrt.layers.lm_head import LMHead
from radixrt.layers.ops import LayerOps
from radixrt.layers.rotary import rotary_table
from radixrt.models.attention import Attention
from radixrt.models.decoder_layer import DecoderLayer, FeedForward, LayerContext, Mixer, MixerInputs
from radixrt.models.decoder_spec import DecoderSpec, LayerSpec
from radixrt.models.dense import DenseFeedForward
from radixrt.models.gated_delta_net import GatedDeltaNet
from radixrt.models.model_config import ModelSpec
from radixrt.models.moe import MoEFeedForward
from radixrt.models.partition import partition
from radixrt.models.precision import Precision, torch_dtype
from radixrt.models.registry import no_progress
from radixrt.models.short_conv import ShortConv
from radixrt.models.stages import Stage, whole

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

EMBEDDING = "model.embed_tokens.weight"


def build_layers(context: LayerContext, stage: Stage) -> list[DecoderLayer]:
    """Build a stage's decoder layers, which the spec lists."""
    layers, counts = [], Counter[str]()
    for i in stage.layers:
        layer, context = context.spec.layers[i], replace(context, prefix=f"model.layers.{i}")
        pool = "recurrent" if layer.is_recurrent else layer.mixer
        mixer = MIXERS[layer.mixer](context, layer, counts[pool])
        counts[pool] += 1
        # The addends of a stage's last layer go to the next stage, whose ranks add them up: no kernel of this one may.
        sends = i + 1 == stage.layers.stop and not stage.is_last
        fed = FEED_FORWARDS[layer.feed_forward](replace(context, group=None) if sends else context, layer)
        layers.append(DecoderLayer(context, mixer, fed))
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
        stage: the pipeline stage to build; None for all of the model.

    Attributes:
        tensor_names: names that differ among families.
        tensors_elsewhere: beginnings of names of checkpoint tensors that other stages hold.
        ignored: says of a checkpoint tensor's name whether nobody reads it, see `Quantization.ignored`.

    Raises:
        ConfigError: the ranks cannot share the model.
    """

    def __init__(
        self,
        spec: ModelSpec,
        precision: Precision,
        ops: LayerOps,
        group: TPGroup | None = None,
        stage: Stage | None = None,
    ) -> None:
        super().__init__()
        if spec.decoder is None:
            raise ValueError(f"{spec.architecture} is not an architecture of this decoder")
        group = None if group is None or group.size == 1 else group
        decoder = spec.decoder
        rank, size = (0, 1) if group is None else (group.rank, group.size)
        formats = ModelFormats(decoder.quantization, ops, precision.float32_min_tokens)
        part = partition(spec, rank, size, expert_columns=formats.expert_columns)
        self._model_spec, self._part, self._group, self._ops = spec, part, group, ops
        self._stage = stage = stage or whole(spec)
        self.narrows = stage.is_last
        dtype, activation_dtype = torch_dtype(precision.dtype), torch_dtype(precision.activations)
        self._activation_dtype, self._eps = activation_dtype, decoder.rms_norm_eps
        self._precision = precision
        self._context = LayerContext(decoder, dtype, activation_dtype, ops, formats, part, group)
        layers = build_layers(self._context, stage)
        vocabulary = part.vocab_rows, decoder.hidden_size
        self.embed_tokens = meta_parameter(*vocabulary, dtype=dtype) if stage.is_first else None
        self.layers = nn.ModuleList(layers)
        mixers = [layer.mixer for layer in layers]
        self.attention_layers = [mixer.attention_layer for mixer in mixers if mixer.attention_layer is not None]
        self.states = [mixer.state for mixer in mixers if mixer.state is not None]
        self.tensor_names = decoder.names
        self.tensors_elsewhere = _elsewhere(decoder, stage)
        self.ignored = (decoder.quantization or Quantization()).ignored
        self.norm = meta_parameter(decoder.hidden_size, dtype=self._context.norm_dtype) if stage.is_last else None
        self.lm_head: LMHead | None = None
        if stage.is_last:
            head = split_by_output(
                "lm_head", spec.vocab_size, decoder.hidden_size, [part.vocab], height=part.vocab_rows
            )
            self.lm_head = LMHead(head, dtype, formats.head(head))
        labels = () if spec.classifier is None or not stage.is_last else spec.classifier.labels
        self.classifier = ClassificationHead(decoder.hidden_size, len(labels)) if labels else None
        self._rotary_table: torch.Tensor | None = None
        self._rotary_axes: torch.Tensor | None = None
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
            self._device,
        )
        if spec.vision is not None and spec.vision.rotary_axes:
            # The table has the frequencies twice, once for each half of the rotated dimensions.
            self._rotary_axes = torch.tensor(spec.vision.rotary_axes * 2, device=self._device)

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        batch: ForwardBatch,
        attention: AttentionBackend,
        received: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run one step over T tokens.

        Args:
            input_ids, positions: int64 [T].
            batch: the step, which the backend has been prepared for.
            received: result of the stage before, [T, 2, hidden]; None on the first one.

        Returns:
            [T, hidden] in activation_dtype, the final norm applied; in a narrowed step, [P, hidden]. On a stage before
            the last [T, 2, hidden]: see `Model.forward`.
        """
        residual: torch.Tensor
        if received is None:
            residual, added = self._embed(input_ids)
            if batch.inputs is not None:
                _replace_embeddings(residual, added, batch.inputs)
        else:
            residual, added = received[:, 0].contiguous(), PartialSum(received[:, 1].contiguous())
        return self.run_layers(residual, added, positions, batch, attention)

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the residual stream [T, hidden] before the first layer, on a rank that has the whole embedding."""
        assert self.embed_tokens is not None
        return F.embedding(input_ids, self.embed_tokens).to(self._activation_dtype)

    def run_layers(
        self,
        residual: torch.Tensor,
        added: PartialSum | None,
        positions: torch.Tensor,
        batch: ForwardBatch,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        """Run the layers and the final norm.

        Args:
            residual: the residual stream [T, hidden], updated in place.
            added: the addend before the first layer; None if there is none.

        Returns:
            As `forward`.
        """
        assert self._rotary_table is not None, "finalize was not called"
        inputs = MixerInputs(positions, self._rotary_table, batch, attention)
        if batch.inputs is not None and batch.inputs.positions is not None:
            inputs = self._on_axes(inputs, batch.inputs.positions)
        *before, last = self.layers
        for i, layer in enumerate(before):
            residual, added = layer(residual, added, inputs)
            if batch.inputs is not None:
                self._add_rows(residual, batch.inputs, i)
            self.progress()
        residual, added = last(residual, added, inputs, batch.narrowed)
        if batch.inputs is not None:
            self._add_rows(residual, batch.inputs, len(before))
        if not residual.shape[0]:
            return residual
        if self.norm is None:
            assert added is not None, "no layer has run"
            # An addend of fewer bits than the residual stream is widened, which loses nothing.
            return torch.stack((residual, added.x.to(residual.dtype)), dim=1)
        return self._ops.all_reduce_add_rms_norm(
            residual, added, self.norm, self._eps, self._activation_dtype, self._group
        )

    def _add_rows(self, residual: torch.Tensor, inputs: StepInputs, layer: int) -> None:
        """Add the rows for the hidden states after a layer, in place. The last layer of a model has none, so that the
        hidden states [T, hidden] are those of all tokens."""
        if self._stage.is_first and layer < len(inputs.added):
            residual.index_add_(0, inputs.places, inputs.added[layer].to(residual.dtype))

    def _on_axes(self, inputs: MixerInputs, positions: torch.Tensor) -> MixerInputs:
        """Return the inputs with a rotary table of this step: each token has a row, in which each frequency comes from
        the token's position on the frequency's axis.

        Args:
            positions: int64 [3, T].
        """
        assert self._rotary_table is not None
        assert self._rotary_axes is not None, "a model of text has one axis"
        rows = positions[self._rotary_axes].t().contiguous()[:, None, :]  # [T, 1, columns of the table]
        sides = torch.arange(2, device=rows.device)[None, :, None]
        table = self._rotary_table[rows, sides, torch.arange(rows.shape[2], device=rows.device)]
        return replace(inputs, positions=torch.arange(rows.shape[0], device=rows.device), rotary_table=table)

    def _embed(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, PartialSum | None]:
        """Return the residual stream before the first layer and its first addend. With several ranks each has the rows
        of some tokens, so the stream is zero and everything comes from the addends."""
        assert self.embed_tokens is not None, "a stage behind the first needs what the one before it computed"
        if self._group is None:
            return self.embed(input_ids), None
        x = self._ops.embed_shard(input_ids, self.embed_tokens, self._part.vocab.start)
        return torch.zeros_like(x, dtype=self._activation_dtype), PartialSum(x)

    def stage_input(self, tokens: int) -> torch.Tensor | None:
        """As `Model.stage_input`."""
        return None if self._stage.is_first else self._between_stages(tokens)

    def stage_output(self, tokens: int) -> torch.Tensor | None:
        """As `Model.stage_output`."""
        return None if self._stage.is_last else self._between_stages(tokens)

    def _between_stages(self, tokens: int) -> torch.Tensor:
        shape = tokens, 2, self._context.spec.hidden_size
        return torch.empty(shape, dtype=self._activation_dtype, device=self._device)

    def compute_logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[S, hidden] -> float32 [S, vocab], on every rank; in `out` where that can be done without a copy."""
        assert self.lm_head is not None, "only the last stage computes logits"
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
        assert self.lm_head is not None, "only the last stage computes logits"
        own: torch.Tensor = self.lm_head(hidden, place)
        return own if own.data_ptr() == place.data_ptr() else place.copy_(own)

    def checkpoint_tensors(self) -> ParameterSources:
        """Sources of all parameters. The head is listed also where it is tied: see `tie_head`."""
        hidden, sources = self._context.spec.hidden_size, ParameterSources()
        names, offset = self._context.spec.names, self._context.norm_offset
        if self.norm is not None:
            sources["norm"] = replicated(f"model.{names.final_norm}.weight", (hidden,), offset=offset)
        if self.lm_head is not None:
            sources |= {f"lm_head.{name}": tensors for name, tensors in self.lm_head.sources.items()}
        if self.classifier is not None:
            sources["classifier.weight"] = replicated("score.weight", tuple(self.classifier.weight.shape))
        if self.embed_tokens is not None:
            sources["embed_tokens"] = self._vocabulary_rows(EMBEDDING)
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            sources |= {f"layers.{i}.{name}": tensors for name, tensors in layer.checkpoint_tensors().items()}
        return sources

    def divide_keys_and_values(
        self, sources: ParameterSources, scales_of: Callable[[int], tuple[float, float] | None]
    ) -> None:
        """Change the sources so that each layer stores its keys and values divided by scales, and returns the same.

        Args:
            sources: see `checkpoint_tensors`.
            scales_of: returns powers of two for the keys and the values of a decoder layer; None for 1 and 1.
        """
        for place, i in enumerate(self._stage.layers):
            mixer = self.layers[place].mixer
            if not isinstance(mixer, Attention) or (scales := scales_of(i)) is None:
                continue
            for path, beginning, factor in mixer.kv_factors(*scales):
                parameter = f"layers.{place}.mixer.{path}"
                if parameter in sources:
                    sources[parameter] = tuple(
                        replace(tensor, factor=factor) if tensor.name.startswith(beginning) else tensor
                        for tensor in sources[parameter]
                    )

    def tie_head(self, sources: ParameterSources) -> None:
        """Change the sources of a head whose weight is the embedding's: the parameter is the embedding's own where the
        stage has that, and has no source; else it is read where the embedding is. A quantized head is stored beside
        the embedding, and its sources stay."""
        if self.lm_head is not None and not self.lm_head.format.loads_plain:
            return
        if self.embed_tokens is not None:
            sources.pop("lm_head.weight", None)
        elif "lm_head.weight" in sources:
            sources["lm_head.weight"] = self._vocabulary_rows(EMBEDDING)

    def _vocabulary_rows(self, tensor: str) -> tuple[CheckpointTensor, ...]:
        shape = self._model_spec.vocab_size, self._context.spec.hidden_size
        return (CheckpointTensor(tensor, shape, 0, self._part.vocab, self._part.vocab_rows),)


def _replace_embeddings(residual: torch.Tensor, added: PartialSum | None, inputs: StepInputs) -> None:
    """Replace the embeddings of a step's tokens by the rows of other inputs, in place.

    Args:
        residual, added: the residual stream [T, hidden] and its addend, of which ranks have a part each.
    """
    residual[inputs.places] = inputs.rows.to(residual.dtype)
    if added is not None:
        added.x[inputs.places] = 0


def _elsewhere(decoder: DecoderSpec, stage: Stage) -> tuple[str, ...]:
    """Return beginnings of the names of tensors that belong to other stages."""
    names = [f"model.layers.{i}." for i in range(len(decoder.layers)) if i not in stage.layers]
    if not stage.is_first:
        names.append(EMBEDDING)
    if not stage.is_last:
        names += [f"model.{decoder.names.final_norm}.", "lm_head.", "score."]
    return tuple(names)
