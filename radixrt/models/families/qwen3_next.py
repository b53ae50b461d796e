"""Qwen3-Next: gated delta nets, gated attention, and experts with a shared one."""

from __future__ import annotations

from collections.abc import Mapping, Set

from radixrt.errors import ModelLoadError
from radixrt.layers.rotary import RopeSpec, parse_rope
from radixrt.models.config_fields import flag, positive_float, positive_int
from radixrt.models.decoder_spec import DecoderSpec, LayerSpec, RecurrentSpec, TensorNames
from radixrt.models.experts_spec import SHARED_KEY, parse_experts
from radixrt.models.families.family import Config, Family
from radixrt.models.families.fields import read_head_dim, read_hybrid_types, read_kv_heads
from radixrt.models.families.qwen3_moe import EXPERTS_KEYS

NAMES = TensorNames(skipped=("mtp.",))
"""The skipped layers draft tokens."""
OUTPUT_GATES = (None, "swish", "silu")
"""Values of output_gate_type, the activation of the gate of gated delta nets."""


def parse(config: Config, architecture: str) -> DecoderSpec:
    """As `Family.parse`."""
    return parse_gated_delta(config, architecture, {*EXPERTS_KEYS, SHARED_KEY}, interleaved=True, names=NAMES)


def parse_gated_delta(
    config: Config, architecture: str, expert_keys: Set[str], *, interleaved: bool, names: TensorNames
) -> DecoderSpec:
    """Return a decoder with gated delta nets and gated attention.

    Args:
        expert_keys: see `parse_experts`; empty for a class without experts.
        interleaved: see `RecurrentSpec`.
    """
    for name, allowed in (
        ("hidden_act", ("silu",)),
        ("output_gate_type", OUTPUT_GATES),
        ("attn_output_gate", (None, True)),
        ("use_sliding_window", (None, False)),
    ):
        if config.get(name, allowed[0]) not in allowed:
            raise ModelLoadError(f"config.json: {name} {config[name]!r} is not supported for {architecture}")
    layers = positive_int(config, "num_hidden_layers")
    interval = positive_int(config, "full_attention_interval", 4)
    default = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)]
    types = read_hybrid_types(config, default, "linear_attention")
    experts, sparse = parse_experts(config, architecture, expert_keys) if expert_keys else (None, frozenset[int]())
    heads, head_dim = positive_int(config, "num_attention_heads"), read_head_dim(config, 256)
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
        num_kv_heads=read_kv_heads(config, heads),
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
        recurrent=_gated_delta_net(config, interleaved=interleaved),
        names=names,
    )


def _gated_delta_net(config: Config, *, interleaved: bool) -> RecurrentSpec:
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


def _partial_rope(config: Config, head_dim: int) -> tuple[RopeSpec, int]:
    """Return the rotary embedding, and the number of dimensions of a head to rotate."""
    source = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    params = config.get(source) or {}
    if not isinstance(params, Mapping):
        raise ModelLoadError(f"config.json: {source} must be an object, not {params!r}")
    factor = params.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    factor = 0.25 if factor is None else factor
    plain = {**config, source: {key: value for key, value in params.items() if key != "partial_rotary_factor"}}
    plain.pop("partial_rotary_factor", None)
    rotary = int(head_dim * factor) if isinstance(factor, (int, float)) else 0
    if not 0 < rotary <= head_dim or rotary % 2:
        raise ModelLoadError(
            f"config.json: partial_rotary_factor {factor!r} rotates no even number of the {head_dim} dimensions of a"
            " head"
        )
    return parse_rope(plain), rotary


FAMILY = Family(
    ("Qwen3NextForCausalLM",),
    parse,
    classifiers={"Qwen3NextForSequenceClassification": "Qwen3NextForCausalLM"},
)
