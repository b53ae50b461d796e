"""`DecoderSpec`: shape of a decoder, as config.json describes it. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from radixrt.layers.formats.base import Quantization
from radixrt.layers.rotary import RopeSpec
from radixrt.models.experts_spec import ExpertsSpec

RECURRENT_MIXERS = ("short_conv", "gated_delta_net")
"""Kinds of mixers that keep a state of constant size for each sequence, and no keys and values."""


@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer: a mixer, then a feed-forward.

    Attributes:
        mixer, feed_forward: kinds, which `radixrt.models.decoder` maps to classes.
        sliding_window: positions that a query of attention sees, itself included; None for all.
    """

    mixer: str = "attention"
    feed_forward: str = "dense"
    sliding_window: int | None = None

    @property
    def is_recurrent(self) -> bool:
        return self.mixer in RECURRENT_MIXERS


@dataclass(frozen=True)
class RecurrentSpec:
    """Shape of the recurrent layers.

    Attributes:
        taps: tokens that the convolution sees, the current one included.
        k_heads, v_heads, k_dim, v_dim: heads of gated delta nets, and their sizes; each key head serves
            v_heads / k_heads neighbouring value heads. 0 for short convolutions, which have a channel for each column
            of the hidden state.
        interleaved: whether a checkpoint has the rows of each key head together in the input projection.
    """

    taps: int
    k_heads: int = 0
    v_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    interleaved: bool = False

    def num_columns(self, hidden_size: int) -> int:
        """Parameters of a layer's linear layers for each column of the hidden state."""
        if not self.v_heads:
            return 4 * hidden_size
        return 2 * self.k_heads * self.k_dim + self.v_heads * (3 * self.v_dim + 2)


@dataclass(frozen=True)
class TensorNames:
    """Names in a checkpoint that differ among architectures.

    Attributes:
        final_norm: behind "model.".
        input_norm, post_mixer_norm, feed_forward, projections: in a decoder layer; the last are those of a dense
            feed-forward: gate, up and down.
        q_norm, k_norm, o_proj: in an attention.
        renamed: beginnings of names in a checkpoint of several parts, and the beginnings in their place here: "model."
            and "lm_head."; the first that a name has counts.
        skipped: beginnings of names whose tensors are no part of the decoder, and are not read.
    """

    final_norm: str = "norm"
    input_norm: str = "input_layernorm"
    post_mixer_norm: str = "post_attention_layernorm"
    feed_forward: str = "mlp"
    projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    q_norm: str = "q_norm"
    k_norm: str = "k_norm"
    o_proj: str = "o_proj"
    renamed: tuple[tuple[str, str], ...] = ()
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class DecoderSpec:
    """Shape of a decoder, whatever its family.

    Attributes:
        intermediate_size: columns of a dense feed-forward.
        layers: the decoder layers, in order.
        qkv_bias, o_bias, mlp_bias: whether these linear layers have a bias.
        qk_norm: whether an RMSNorm is applied to each head of q and k, before the rotary embedding.
        experts: of the layers with a mixture of experts; None where no layer has one.
        quantization: the formats of the checkpoint's weights; None where all are plain. Routers always are.
        rotary_dim: dimensions of a head that the rotary embedding rotates, the first ones; None for all.
        gated_attention: whether attention's output is multiplied by the sigmoid of a gate, which q_proj computes.
        unit_offset: whether norms multiply by 1 + weight.
        recurrent: of the layers with a recurrent mixer; None where no layer has one.
        attention_sinks: whether each head of attention has a learned score beside those of keys, without a value.
    """

    hidden_size: int
    intermediate_size: int
    layers: tuple[LayerSpec, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeSpec
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool
    experts: ExpertsSpec | None = None
    quantization: Quantization | None = None
    rotary_dim: int | None = None
    gated_attention: bool = False
    unit_offset: bool = False
    recurrent: RecurrentSpec | None = None
    attention_sinks: bool = False
    names: TensorNames = TensorNames()

    @property
    def num_linear_parameters(self) -> int:
        """Parameters of the weights of all linear layers but the output head, those of experts included."""
        return sum(map(self.linear_parameters, self.layers))

    @property
    def num_expert_parameters(self) -> int:
        """Parameters of the weights of all experts but shared ones."""
        if self.experts is None:
            return 0
        mixtures = sum(layer.feed_forward == "moe" for layer in self.layers)
        return mixtures * self.experts.num_experts * 3 * self.experts.intermediate_size * self.hidden_size

    def linear_parameters(self, layer: LayerSpec) -> int:
        """Return the parameters of the weights of a layer's linear layers, those of experts included."""
        if layer.is_recurrent and self.recurrent is not None:
            columns = self.recurrent.num_columns(self.hidden_size)
        else:
            columns = ((2 + self.gated_attention) * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        if layer.feed_forward == "moe" and self.experts is not None:
            columns += self.experts.num_linear_parameters
        else:
            columns += 3 * self.intermediate_size
        return self.hidden_size * columns

    @property
    def intermediate_sizes(self) -> tuple[int, ...]:
        """Columns of the feed-forwards of every kind that a layer has, each of which ranks split."""
        dense = (self.intermediate_size,) if any(layer.feed_forward != "moe" for layer in self.layers) else ()
        return dense if self.experts is None else (*dense, self.experts.intermediate_size)

    @property
    def recurrent_size(self) -> tuple[int, str] | None:
        """The number of what ranks split of a recurrent layer, and its name; None where no layer is recurrent."""
        if self.recurrent is None:
            return None
        heads = self.recurrent.k_heads
        return (heads, "key heads of gated delta nets") if heads else (self.hidden_size, "channels of convolutions")
