"""Fields of config.json of architectures with recurrent layers: LFM2, Qwen3-Next and Qwen3.5. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radixrt.errors import ModelLoadError
from radixrt.layers.rotary import RopeSpec, parse_rope
from radixrt.models.config_fields import flag, positive_float, positive_int
from radixrt.models.decoder_spec import DecoderSpec, LayerSpec, RecurrentSpec, TensorNames
from radixrt.models.experts_spec import parse_experts

QWEN3_5 = (
    "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
)
HYBRID_ARCHITECTURES = ("Lfm2ForCausalLM", "Qwen3NextForCausalLM", *QWEN3_5)

LFM2_NAMES = TensorNames(
    final_norm="embedding_norm",
    input_norm="operator_norm",
    post_mixer_norm="ffn_norm",
    feed_forward="feed_forward",
    projections=("w1", "w3", "w2"),
    q_norm="q_layernorm",
    k_norm="k_layernorm",
    o_proj="out_proj",
)
QWEN_NAMES = TensorNames(skipped=("model.visual.", "mtp."))
"""The vision tower of Qwen3.5, and the layers that draft tokens."""
OUTPUT_GATES = (None, "swish", "silu")
"""Values of output_gate_type, the activation of the gate of gated delta nets."""


def text_fields(architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a vision model's decoder, `text_config`, and those beside it that it has too; of any other
    model, all fields.

    Raises:
        ModelLoadError: a vision model has no text_config.
    """
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        if architecture.endswith("ForConditionalGeneration"):
            raise ModelLoadError(f"config.json: text_config is missing, which describes the decoder of {architecture}")
        return dict(config)
    beside = {key: config[key] for key in ("architectures", "quantization_config") if key in config}
    tied = flag(config, "tie_word_embeddings") or flag(text, "tie_word_embeddings")
    dtype = text.get("dtype", config.get("dtype", config.get("torch_dtype")))
    return {**text, **beside, "tie_word_embeddings": tied, "dtype": dtype}


def parse_hybrid(architecture: str, config: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of one of HYBRID_ARCHITECTURES.

    Raises:
        ModelLoadError: a field is missing, malformed or not supported; the message names it.
    """
    return _parse_lfm2(config) if architecture == "Lfm2ForCausalLM" else _parse_qwen(architecture, config)


def _parse_lfm2(config: Mapping[str, Any]) -> DecoderSpec:
    if flag(config, "conv_bias"):
        raise ModelLoadError("config.json: conv_bias true is not supported")
    hidden, heads = positive_int(config, "hidden_size"), positive_int(config, "num_attention_heads")
    layers = positive_int(config, "num_hidden_layers")
    attending = config.get("full_attn_idxs")
    default = None if attending is None else ["full_attention" if i in attending else "conv" for i in range(layers)]
    types = _layer_types(config, layers, default, "conv")
    return DecoderSpec(
        hidden_size=hidden,
        intermediate_size=_lfm2_intermediate_size(config),
        layers=tuple(LayerSpec("attention" if kind == "full_attention" else "short_conv") for kind in types),
        num_heads=heads,
        num_kv_heads=_kv_heads(config, heads),
        head_dim=_head_dim(config, hidden // heads),
        rms_norm_eps=positive_float(config, "norm_eps"),
        rope=parse_rope(config, default_theta=1e6),
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=True,
        tie_word_embeddings=flag(config, "tie_embedding", flag(config, "tie_word_embeddings", True)),
        recurrent=RecurrentSpec(positive_int(config, "conv_L_cache", 3, low=2)),
        names=LFM2_NAMES,
    )


def _lfm2_intermediate_size(config: Mapping[str, Any]) -> int:
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


def _parse_qwen(architecture: str, config: Mapping[str, Any]) -> DecoderSpec:
    for name, allowed in (
        ("hidden_act", ("silu",)), ("output_gate_type", OUTPUT_GATES), ("attn_output_gate", (None, True)),
        ("use_sliding_window", (None, False)),
    ):  # fmt: skip
        if config.get(name, allowed[0]) not in allowed:
            raise ModelLoadError(f"config.json: {name} {config[name]!r} is not supported for {architecture}")
    layers = positive_int(config, "num_hidden_layers")
    interval = positive_int(config, "full_attention_interval", 4)
    default = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)]
    types = _layer_types(config, layers, default, "linear_attention")
    experts, sparse = parse_experts(architecture, config, layers)
    heads, head_dim = positive_int(config, "num_attention_heads"), _head_dim(config, 256)
    rope, rotary_dim = _partial_rope(config, head_dim)
    bias = flag(config, "attention_bias")
    return DecoderSpec(
        hidden_size=positive_int(config, "hidden_size"),
        intermediate_size=0 if len(sparse) == layers else positive_int(config, "intermediate_size"),
        layers=tuple(
            LayerSpec(
                mixer="attention" if kind == "full_attention" else "gated_delta_net",
                feed_forward="moe" if i in sparse else "dense",
            )
            for i, kind in enumerate(types)
        ),
        num_heads=heads,
        num_kv_heads=_kv_heads(config, heads),
        head_dim=head_dim,
        rms_norm_eps=positive_float(config, "rms_norm_eps"),
        rope=rope,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=False,
        qk_norm=True,
        tie_word_embeddings=flag(config, "tie_word_embeddings"),
        experts=experts,
        rotary_dim=rotary_dim,
        gated_attention=True,
        unit_offset=True,
        recurrent=_gated_delta_net(config, interleaved=architecture == "Qwen3NextForCausalLM"),
        names=QWEN_NAMES,
    )


def _gated_delta_net(config: Mapping[str, Any], *, interleaved: bool) -> RecurrentSpec:
    k_heads = positive_int(config, "linear_num_key_heads", 16)
    v_heads = positive_int(config, "linear_num_value_heads", 32)
    if v_heads % k_heads:
        raise ModelLoadError(
            f"config.json: linear_num_value_heads {v_heads} is no multiple of linear_num_key_heads {k_heads}"
        )
    return RecurrentSpec(
        taps=positive_int(config, "linear_conv_kernel_dim", 4, low=2),
        k_heads=k_heads,
        v_heads=v_heads,
        k_dim=positive_int(config, "linear_key_head_dim", 128),
        v_dim=positive_int(config, "linear_value_head_dim", 128),
        interleaved=interleaved,
    )


def _partial_rope(config: Mapping[str, Any], head_dim: int) -> tuple[RopeSpec, int]:
    """Return the rotary embedding, and the dimensions that it rotates.

    Qwen3.5's sections are of positions in images; those of text are the same in all sections.
    """
    source = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    params = config.get(source) or {}
    if not isinstance(params, Mapping):
        raise ModelLoadError(f"config.json: {source} must be an object, not {params!r}")
    factor = params.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    factor = 0.25 if factor is None else factor
    known = ("partial_rotary_factor", "mrope_section", "mrope_interleaved")
    plain = {**config, source: {key: value for key, value in params.items() if key not in known}}
    plain.pop("partial_rotary_factor", None)
    rotary = int(head_dim * factor) if isinstance(factor, (int, float)) else 0
    if not 0 < rotary <= head_dim or rotary % 2:
        raise ModelLoadError(
            f"config.json: partial_rotary_factor {factor!r} rotates no even number of the {head_dim} dimensions of a"
            " head"
        )
    return parse_rope(plain), rotary


def _layer_types(config: Mapping[str, Any], layers: int, default: list[str] | None, recurrent: str) -> list[str]:
    types = config.get("layer_types")
    types = default if types is None else types
    if not isinstance(types, list) or len(types) != layers:
        raise ModelLoadError(f"config.json: layer_types must list {layers} layers")
    if unknown := set(map(str, types)) - {"full_attention", recurrent}:
        raise ModelLoadError(
            f"config.json: layer_types {sorted(unknown)} are not supported; full_attention and {recurrent} are"
        )
    for kind in ("full_attention", recurrent):
        if kind not in types:
            raise ModelLoadError(f"config.json: layer_types has no {kind} layer, which is not supported")
    return types


def _kv_heads(config: Mapping[str, Any], heads: int) -> int:
    kv_heads = positive_int(config, "num_key_value_heads")
    if heads % kv_heads:
        raise ModelLoadError(
            f"config.json: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
        )
    return kv_heads


def _head_dim(config: Mapping[str, Any], default: int) -> int:
    head_dim = positive_int(config, "head_dim", default)
    if head_dim % 2:
        raise ModelLoadError(f"config.json: head_dim {head_dim} is odd; rotary embeddings need an even one")
    return head_dim
