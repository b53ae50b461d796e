"""Fields of config.json that several families have. Each reader raises a ModelLoadError that names the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from radixrt.errors import ModelLoadError
from radixrt.layers.rotary import DEFAULT_THETA, parse_rope
from radixrt.models.config_fields import flag, optional_int, positive_float, positive_int
from radixrt.models.decoder_spec import DecoderSpec, LayerSpec, TensorNames
from radixrt.models.experts_spec import ExpertsSpec
from radixrt.models.families.family import Config

SECTION_KEYS = ("mrope_section", "mrope_interleaved")
"""Parameters of a rotary embedding that divide its frequencies among the axes of positions in images."""


def dense_decoder(
    config: Config,
    architecture: str,
    *,
    windows: Sequence[int | None] | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    qkv_bias: bool = False,
    o_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    default_theta: float = DEFAULT_THETA,
    experts: tuple[ExpertsSpec | None, frozenset[int]] = (None, frozenset()),
    names: TensorNames | None = None,
) -> DecoderSpec:
    """Return a decoder whose layers all attend.

    Args:
        windows: of each layer; None for none.
        kv_heads, head_dim: where config.json has none; default: no default, and hidden_size / num_attention_heads.
        default_theta: of the rotary embedding.
        experts: result of `parse_experts`.
        names: in checkpoints; None for the usual ones.
    """
    check_activation(config, architecture)
    hidden, layers = positive_int(config, "hidden_size"), positive_int(config, "num_hidden_layers")
    heads = positive_int(config, "num_attention_heads")
    spec, sparse = experts
    return DecoderSpec(
        hidden_size=hidden,
        intermediate_size=positive_int(config, "intermediate_size"),
        layers=tuple(
            LayerSpec(feed_forward="moe" if i in sparse else "dense", sliding_window=windows[i] if windows else None)
            for i in range(layers)
        ),
        num_heads=heads,
        num_kv_heads=read_kv_heads(config, heads, kv_heads),
        head_dim=read_head_dim(config, head_dim or hidden // heads),
        rms_norm_eps=positive_float(config, "rms_norm_eps"),
        rope=parse_rope(config, default_theta=default_theta),
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        tie_word_embeddings=flag(config, "tie_word_embeddings"),
        experts=spec,
        names=names or TensorNames(),
    )


def check_activation(config: Config, architecture: str) -> None:
    """Refuse an activation of feed-forwards other than SiLU."""
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelLoadError(f"config.json: hidden_act {activation!r} is not supported for {architecture}; silu is")


def read_kv_heads(config: Config, heads: int, default: int | None = None) -> int:
    """Return the number of key-value heads, which divides the number of heads."""
    kv_heads = positive_int(config, "num_key_value_heads", default)
    if heads % kv_heads:
        raise ModelLoadError(
            f"config.json: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
        )
    return kv_heads


def read_head_dim(config: Config, default: int) -> int:
    """Return the size of a head, which is even."""
    head_dim = positive_int(config, "head_dim", default)
    if head_dim % 2:
        raise ModelLoadError(f"config.json: head_dim {head_dim} is odd; rotary embeddings need an even one")
    return head_dim


def read_window(config: Config, default: int | None) -> int | None:
    """Return the sliding window; the default where the key is absent, none where it is null."""
    return optional_int(config, "sliding_window") if "sliding_window" in config else default


def equal_windows(config: Config, architecture: str, window: int | None) -> tuple[int | None, ...]:
    """Return the window of each layer of an architecture whose layers are all alike."""
    if "layer_types" in config:
        raise ModelLoadError(f"config.json: layer_types is not supported for {architecture}")
    return (window,) * positive_int(config, "num_hidden_layers")


def windows_by_type(config: Config, default: Sequence[str], window: int | None) -> tuple[int | None, ...]:
    """Return the window of each layer, by layer_types.

    Args:
        default: types where config.json has none.
        window: of the layers that have one.
    """
    types = read_layer_types(config, ("full_attention", "sliding_attention"), default)
    if "sliding_attention" in types and not window:
        raise ModelLoadError("config.json: layer_types has sliding_attention, but there is no sliding window")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def read_layer_types(config: Config, known: Sequence[str], default: Sequence[str] | None) -> Sequence[str]:
    """Return layer_types, which lists the kind of each layer."""
    layers, types = positive_int(config, "num_hidden_layers"), config.get("layer_types")
    types = default if types is None else types
    if not isinstance(types, (list, tuple)) or len(types) != layers:
        raise ModelLoadError(f"config.json: layer_types must list {layers} layers")
    if unknown := sorted({str(kind) for kind in types} - set(known)):
        raise ModelLoadError(f"config.json: layer_types {unknown} are not supported; {' and '.join(known)} are")
    return types


def read_hybrid_types(config: Config, default: Sequence[str] | None, recurrent: str) -> Sequence[str]:
    """Return the type of each layer: "full_attention", or the recurrent one; a model has layers of both."""
    types = read_layer_types(config, ("full_attention", recurrent), default)
    for kind in ("full_attention", recurrent):
        if kind not in types:
            raise ModelLoadError(f"config.json: layer_types has no {kind} layer, which is not supported")
    return types


def rope_sections(config: Config, default: Sequence[int]) -> tuple[int, int, int]:
    """Return mrope_section: numbers of frequencies of the rotary embedding for time, height and width, interleaved.

    Args:
        default: the numbers where config.json has none.
    """
    params = _rope_parameters(config)
    if params.get("mrope_interleaved", True) is not True:
        raise ModelLoadError("config.json: mrope_interleaved false is not supported; interleaved sections are")
    sections = params.get("mrope_section", default)
    if not isinstance(sections, (list, tuple)) or len(sections) != 3 or any(type(i) is not int for i in sections):
        raise ModelLoadError(f"config.json: mrope_section must be three integers, not {sections!r}")
    return sections[0], sections[1], sections[2]


def without_sections(config: Config) -> Config:
    """Return the fields without those about rotary positions in images: positions of text are the same on all axes."""
    plain = {key: value for key, value in _rope_parameters(config).items() if key not in SECTION_KEYS}
    return {**config, rope_key(config): plain}


def rope_key(config: Config) -> str:
    """Return the name of the object with the parameters of the rotary embedding."""
    return "rope_scaling" if config.get("rope_scaling") else "rope_parameters"


def _rope_parameters(config: Config) -> Config:
    name = rope_key(config)
    params = config.get(name) or {}
    if not isinstance(params, Mapping):
        raise ModelLoadError(f"config.json: {name} must be an object, not {params!r}")
    return params
