"""`ModelSpec`: the contents of a model folder's config.json, checked and typed. Imports neither torch nor transformers.

Every field that would change the result is either represented here or refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radixrt.errors import ModelLoadError
from radixrt.layers.rotary import RopeSpec, parse_rope

DECODER_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Architectures that `radixrt.models.decoder` runs. Any other runs through transformers' modeling code."""

BASE_ARCHITECTURES = {name.replace("ForCausalLM", "Model"): name for name in DECODER_ARCHITECTURES}
"""Decoders that may lack an output head, by name: embedding models are saved as one of these, e.g. "Qwen3Model"."""

ENCODER = re.compile(
    r"(Bert|Roberta|BERT|MPNet|Electra|Deberta|Albert).*(Model|MaskedLM|Classification)$|T5EncoderModel"
)
"""Architectures of bidirectional encoders."""

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "n_ctx", "seq_length")
HIDDEN_KEYS = ("hidden_size", "n_embd", "d_model")
DTYPES = ("float32", "bfloat16", "float16")


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


@dataclass(frozen=True)
class DecoderSpec:
    """Shape of the decoder of Llama, Mistral, Qwen2 and Qwen3.

    Attributes:
        layers: the decoder layers, in order.
        qkv_bias, o_bias, mlp_bias: whether these linear layers have a bias.
        qk_norm: whether an RMSNorm is applied to each head of q and k, before the rotary embedding.
        linear_method: how linear layers keep their weights, a key of `radixrt.layers.linear.LINEAR_METHODS`.
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
    linear_method: str = "unquantized"

    @property
    def num_linear_parameters(self) -> int:
        """Parameters of the weights of all linear layers but the output head."""
        heads = (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        return len(self.layers) * self.hidden_size * (heads + 3 * self.intermediate_size)


@dataclass(frozen=True)
class ModelSpec:
    """A model as its folder describes it.

    Attributes:
        architecture: class name in config.json, e.g. "LlamaForCausalLM"; that also for a "LlamaModel".
        vocab_size: rows of the embedding, which may exceed the tokenizer's vocabulary.
        context_length: longest sequence that the model was trained for.
        eos_token_ids: sorted, from config.json and generation_config.json.
        dtype: of the checkpoint, or None where config.json has none.
        decoder: None for an architecture that runs through transformers' modeling code.
        hidden_size: size of a hidden state; None where config.json does not name it.
        has_head: False for a decoder without an output head, which embeds and cannot generate.
    """

    architecture: str
    vocab_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    dtype: str | None
    decoder: DecoderSpec | None
    hidden_size: int | None = None
    has_head: bool = True


def load_model_spec(folder: Path) -> ModelSpec:
    """Read config.json and, if there is one, generation_config.json.

    Raises:
        ModelLoadError: a file or field is missing, malformed or not supported; the message names it.
    """
    config = read_json_object(folder / "config.json")
    generation_file = folder / "generation_config.json"
    generation = read_json_object(generation_file) if generation_file.is_file() else {}
    return parse_model_spec(config, generation)


def read_json_object(path: Path) -> dict[str, Any]:
    """Parse a file that holds one JSON object.

    Raises:
        ModelLoadError: the file is missing, unreadable, or holds something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path.parent} has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ModelLoadError(f"{path} must hold a JSON object")
    return data


def parse_model_spec(config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelSpec:
    """Build the spec from the two parsed files. Raises ModelLoadError as `load_model_spec` does."""
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1 or not isinstance(architectures[0], str):
        raise ModelLoadError(f"config.json: architectures must name one model class, not {architectures!r}")
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise ModelLoadError(f"config.json: quantization_config ({method}) is not supported; use unquantized weights")
    _check_causal(architectures[0], config)
    architecture = BASE_ARCHITECTURES.get(architectures[0], architectures[0])
    return ModelSpec(
        architecture=architecture,
        vocab_size=_positive_int(config, "vocab_size"),
        context_length=_context_length(config),
        eos_token_ids=tuple(sorted({*_token_ids(config), *_token_ids(generation)})),
        bos_token_id=_optional_int(config, "bos_token_id"),
        dtype=_dtype(config),
        decoder=_parse_decoder(architecture, config) if architecture in DECODER_ARCHITECTURES else None,
        hidden_size=next((size for name in HIDDEN_KEYS if (size := _optional_int(config, name))), None),
        has_head=architecture == architectures[0] or _flag(config, "tie_word_embeddings"),
    )


def _check_causal(architecture: str, config: Mapping[str, Any]) -> None:
    instead = "; decoders embed too, e.g. Qwen3ForCausalLM (Qwen3-Embedding)"
    if ENCODER.search(architecture):
        raise ModelLoadError(f"config.json: {architecture} is a bidirectional encoder, which is not supported{instead}")
    for name, causal in (("is_causal", True), ("use_bidirectional_attention", False)):
        if config.get(name, causal) not in (causal, None):
            raise ModelLoadError(
                f"config.json: {name} {config[name]!r} asks for attention that is not causal, which is not supported"
                f"{instead}"
            )


def _parse_decoder(architecture: str, config: Mapping[str, Any]) -> DecoderSpec:
    hidden, heads = _positive_int(config, "hidden_size"), _positive_int(config, "num_attention_heads")
    kv_heads = _positive_int(config, "num_key_value_heads", heads if architecture == "LlamaForCausalLM" else None)
    head_dim = _positive_int(config, "head_dim", 128 if architecture == "Qwen3ForCausalLM" else hidden // heads)
    layers = _positive_int(config, "num_hidden_layers")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelLoadError(f"config.json: hidden_act {activation!r} is not supported for {architecture}; silu is")
    if heads % kv_heads:
        raise ModelLoadError(
            f"config.json: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
        )
    if head_dim % 2:
        raise ModelLoadError(f"config.json: head_dim {head_dim} is odd; rotary embeddings need an even one")
    bias_allowed = architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM")
    attention_bias = bias_allowed and _flag(config, "attention_bias")
    return DecoderSpec(
        hidden_size=hidden,
        intermediate_size=_positive_int(config, "intermediate_size"),
        layers=tuple(LayerSpec(sliding_window=window) for window in _sliding_windows(architecture, config, layers)),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=_positive_float(config, "rms_norm_eps"),
        rope=parse_rope(config),
        qkv_bias=architecture == "Qwen2ForCausalLM" or attention_bias,
        o_bias=attention_bias,
        mlp_bias=architecture == "LlamaForCausalLM" and _flag(config, "mlp_bias"),
        qk_norm=architecture == "Qwen3ForCausalLM",
        tie_word_embeddings=_flag(config, "tie_word_embeddings"),
    )


def _sliding_windows(architecture: str, config: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """Return each layer's window, by the rules of the architecture's configuration class in transformers."""
    if architecture == "LlamaForCausalLM":
        return (None,) * layers
    window: int | None = 4096  # the default of these classes where the key is absent; null means none
    if "sliding_window" in config:
        window = _optional_int(config, "sliding_window")
    if architecture == "MistralForCausalLM":
        if "layer_types" in config:
            raise ModelLoadError("config.json: layer_types is not supported for MistralForCausalLM")
        return (window,) * layers
    if not _flag(config, "use_sliding_window"):
        window = None
    types = config.get("layer_types")
    if types is None:
        full = _positive_int(config, "max_window_layers", 28, low=0)
        types = ["full_attention" if i < full else "sliding_attention" for i in range(layers)]
        types = types if window is not None else ["full_attention"] * layers
    if not isinstance(types, list) or len(types) != layers:
        raise ModelLoadError(f"config.json: layer_types must list {layers} layers")
    if unknown := set(types) - {"full_attention", "sliding_attention"}:
        raise ModelLoadError(
            f"config.json: layer_types {sorted(map(str, unknown))} are not supported for {architecture}"
        )
    if "sliding_attention" in types and window is None:
        raise ModelLoadError("config.json: layer_types has sliding_attention, but there is no sliding window")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _context_length(config: Mapping[str, Any]) -> int:
    for key in CONTEXT_KEYS:
        if config.get(key) is not None:
            return _positive_int(config, key)
    raise ModelLoadError("config.json: max_position_embeddings is missing")


def _dtype(config: Mapping[str, Any]) -> str | None:
    """Read `dtype` (since transformers 5) or `torch_dtype` (before)."""
    name = config.get("dtype", config.get("torch_dtype"))
    if name is None:
        return None
    if name not in DTYPES:
        raise ModelLoadError(f"config.json: dtype {name!r} is not supported; {', '.join(DTYPES)} are")
    return str(name)


def _token_ids(config: Mapping[str, Any]) -> list[int]:
    value = config.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise ModelLoadError(f"eos_token_id must be an integer or a list of integers, not {value!r}")
    return ids


def _positive_int(config: Mapping[str, Any], name: str, default: int | None = None, *, low: int = 1) -> int:
    value = config.get(name)
    if value is None:
        if default is None:
            raise ModelLoadError(f"config.json: {name} is missing")
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ModelLoadError(f"config.json: {name} must be an integer of at least {low}, not {value!r}")
    return value


def _optional_int(config: Mapping[str, Any], name: str) -> int | None:
    return None if config.get(name) is None else _positive_int(config, name, low=0)


def _positive_float(config: Mapping[str, Any], name: str) -> float:
    value = config.get(name)
    if value is None:
        raise ModelLoadError(f"config.json: {name} is missing")
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
        raise ModelLoadError(f"config.json: {name} must be a positive number, not {value!r}")
    return float(value)


def _flag(config: Mapping[str, Any], name: str) -> bool:
    value = config.get(name, False)
    if not isinstance(value, bool):
        raise ModelLoadError(f"config.json: {name} must be true or false, not {value!r}")
    return value
