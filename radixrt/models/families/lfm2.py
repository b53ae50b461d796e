"""LFM2: short convolutions and attention."""

from __future__ import annotations

from radixrt.errors import ModelLoadError
from radixrt.layers.rotary import parse_rope
from radixrt.models.config_fields import flag, positive_float, positive_int
from radixrt.models.decoder_spec import DecoderSpec, LayerSpec, RecurrentSpec, TensorNames
from radixrt.models.families.family import Config, Family
from radixrt.models.families.fields import read_head_dim, read_hybrid_types, read_kv_heads

NAMES = TensorNames(
    final_norm="embedding_norm",
    input_norm="operator_norm",
    post_mixer_norm="ffn_norm",
    feed_forward="feed_forward",
    projections=("w1", "w3", "w2"),
    q_norm="q_layernorm",
    k_norm="k_layernorm",
    o_proj="out_proj",
)


def parse(config: Config, architecture: str) -> DecoderSpec:
    """As `Family.parse`."""
    if flag(config, "conv_bias"):
        raise ModelLoadError("config.json: conv_bias true is not supported")
    hidden, heads = positive_int(config, "hidden_size"), positive_int(config, "num_attention_heads")
    layers, attending = positive_int(config, "num_hidden_layers"), config.get("full_attn_idxs")
    default = None if attending is None else ["full_attention" if i in attending else "conv" for i in range(layers)]
    types = read_hybrid_types(config, default, "conv")
    return DecoderSpec(
        hidden_size=hidden,
        intermediate_size=_intermediate_size(config),
        layers=tuple(LayerSpec("attention" if kind == "full_attention" else "short_conv") for kind in types),
        num_heads=heads,
        num_kv_heads=read_kv_heads(config, heads),
        head_dim=read_head_dim(config, hidden // heads),
        rms_norm_eps=positive_float(config, "norm_eps"),
        rope=parse_rope(config, default_theta=1e6),
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=True,
        tie_word_embeddings=flag(config, "tie_embedding", flag(config, "tie_word_embeddings", True)),
        recurrent=RecurrentSpec(positive_int(config, "conv_L_cache", 3, low=2)),
        names=NAMES,
    )


def _intermediate_size(config: Config) -> int:
    """Return the columns of the feed-forwards, by the rules of transformers' modeling code."""
    key = "block_ff_dim" if config.get("block_ff_dim") is not None else "intermediate_size"
    size = positive_int(config, key)
    if not flag(config, "block_auto_adjust_ff_dim", True):
        return size
    size = int(2 * size / 3)
    if config.get("block_ffn_dim_multiplier", 1.0) is None:
        return size
    factor = positive_float({"block_ffn_dim_multiplier": 1.0, **config}, "block_ffn_dim_multiplier")
    multiple = positive_int(config, "block_multiple_of", 256)
    return -(-int(factor * size) // multiple) * multiple


FAMILY = Family(("Lfm2ForCausalLM",), parse, nearest=("lfm",))
