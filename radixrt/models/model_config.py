"""`ModelSpec`: the contents of a model folder's config.json, checked and typed. Imports neither torch nor transformers.

Every field that would change the result is either represented here or refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from radixrt.errors import ModelLoadError
from radixrt.layers.formats.registry import read_quantization
from radixrt.layers.rotary import DEFAULT_THETA, parse_rope
from radixrt.models.classifier_spec import ClassifierSpec, parse_classifier
from radixrt.models.config_fields import flag, optional_int, positive_float, positive_int
from radixrt.models.decoder_spec import DecoderSpec, LayerSpec
from radixrt.models.experts_spec import parse_experts
from radixrt.models.gpt_oss_config import GPT_OSS, parse_gpt_oss
from radixrt.models.hybrid_config import HYBRID_ARCHITECTURES, parse_hybrid, text_fields

DECODER_ARCHITECTURES = (
    GPT_OSS,
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    *HYBRID_ARCHITECTURES,
)
"""Architectures that `radixrt.models.decoder` runs. Any other runs through transformers' modeling code."""

_CAUSAL = [name for name in DECODER_ARCHITECTURES if name.endswith("ForCausalLM")]
BASE_ARCHITECTURES = {name.replace("ForCausalLM", "Model"): name for name in _CAUSAL}
"""Decoders that may lack an output head, by name: embedding models are saved as one of these, e.g. "Qwen3Model"."""

CLASSIFIER_ARCHITECTURES = {
    f"{family}ForSequenceClassification": f"{family}ForCausalLM"
    for family in ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Qwen3Moe", "Qwen3Next")
} | {
    "Qwen3_5TextForSequenceClassification": "Qwen3_5ForCausalLM",
    "Qwen3_5ForSequenceClassification": "Qwen3_5ForConditionalGeneration",
}
"""Decoders with a classification head instead of an output head, by name."""

ENCODER = re.compile(
    r"([Bb]ert|Roberta|BERT|MPNet|Electra|Deberta|Albert|Bidirectional).*(Model|MaskedLM|Classification|CausalLM)$"
    r"|^(T5EncoderModel|NewModel|NewForSequenceClassification|NVEmbedModel|BidirectionalMistral\w*)$"
)
"""Architectures of bidirectional encoders."""

HEADED = re.compile(r"For(Sequence|Token)Classification$|ForQuestionAnswering$|RewardModel$")
"""Architectures whose head is not one over the vocabulary."""

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "n_ctx", "seq_length")
HIDDEN_KEYS = ("hidden_size", "n_embd", "d_model")
DTYPES = ("float32", "bfloat16", "float16")


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
        has_head: False for a decoder without an output head, which embeds or classifies and cannot generate.
        classifier: head of a sequence classification model; None for every other model.
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
    classifier: ClassifierSpec | None = None


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
    known = {**BASE_ARCHITECTURES, **CLASSIFIER_ARCHITECTURES}
    architecture = known.get(architectures[0], architectures[0])
    quantization = read_quantization(
        config, decodes=architecture in DECODER_ARCHITECTURES, stacked_experts=architecture == GPT_OSS
    )
    classifier = parse_classifier(config) if architectures[0] in CLASSIFIER_ARCHITECTURES else None
    if architecture in HYBRID_ARCHITECTURES:
        config = text_fields(architecture, config)
    _check_causal(architectures[0], config)
    return ModelSpec(
        architecture=architecture,
        vocab_size=positive_int(config, "vocab_size"),
        context_length=_context_length(config),
        eos_token_ids=tuple(sorted({*_token_ids(config), *_token_ids(generation)})),
        bos_token_id=optional_int(config, "bos_token_id"),
        dtype=_dtype(config),
        decoder=replace(_parse_decoder(architecture, config), quantization=quantization)
        if architecture in DECODER_ARCHITECTURES
        else None,
        hidden_size=next((size for name in HIDDEN_KEYS if (size := optional_int(config, name))), None),
        has_head=architecture == architectures[0] or (classifier is None and flag(config, "tie_word_embeddings")),
        classifier=classifier,
    )


def _check_causal(architecture: str, config: Mapping[str, Any]) -> None:
    instead = "; decoders embed too, e.g. Qwen3ForCausalLM (Qwen3-Embedding)"
    if ENCODER.search(architecture):
        raise ModelLoadError(f"config.json: {architecture} is a bidirectional encoder, which is not supported{instead}")
    if HEADED.search(architecture) and architecture not in CLASSIFIER_ARCHITECTURES:
        raise ModelLoadError(
            f"config.json: {architecture} is not supported; of models with such a head,"
            f" {', '.join(CLASSIFIER_ARCHITECTURES)} are"
        )
    for name, causal in (("is_causal", True), ("use_bidirectional_attention", False)):
        if config.get(name, causal) not in (causal, None):
            raise ModelLoadError(
                f"config.json: {name} {config[name]!r} asks for attention that is not causal, which is not supported"
                f"{instead}"
            )


def _parse_decoder(architecture: str, config: Mapping[str, Any]) -> DecoderSpec:
    if architecture in HYBRID_ARCHITECTURES:
        return parse_hybrid(architecture, config)
    if architecture == GPT_OSS:
        return parse_gpt_oss(config)
    hidden, heads = positive_int(config, "hidden_size"), positive_int(config, "num_attention_heads")
    kv_heads = positive_int(config, "num_key_value_heads", heads if architecture == "LlamaForCausalLM" else None)
    head_dim = positive_int(config, "head_dim", 128 if architecture == "Qwen3ForCausalLM" else hidden // heads)
    layers = positive_int(config, "num_hidden_layers")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelLoadError(f"config.json: hidden_act {activation!r} is not supported for {architecture}; silu is")
    if heads % kv_heads:
        raise ModelLoadError(
            f"config.json: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
        )
    if head_dim % 2:
        raise ModelLoadError(f"config.json: head_dim {head_dim} is odd; rotary embeddings need an even one")
    bias_allowed = architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
    attention_bias = bias_allowed and flag(config, "attention_bias")
    experts, sparse = parse_experts(architecture, config, layers)
    windows = _sliding_windows(architecture, config, layers)
    return DecoderSpec(
        hidden_size=hidden,
        intermediate_size=positive_int(config, "intermediate_size"),
        layers=tuple(
            LayerSpec(feed_forward="moe" if i in sparse else "dense", sliding_window=window)
            for i, window in enumerate(windows)
        ),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=positive_float(config, "rms_norm_eps"),
        rope=parse_rope(config, default_theta=1e6 if architecture == "MixtralForCausalLM" else DEFAULT_THETA),
        qkv_bias=architecture == "Qwen2ForCausalLM" or attention_bias,
        o_bias=attention_bias,
        mlp_bias=architecture == "LlamaForCausalLM" and flag(config, "mlp_bias"),
        qk_norm=architecture in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
        tie_word_embeddings=flag(config, "tie_word_embeddings"),
        experts=experts,
    )


def _sliding_windows(architecture: str, config: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """Return each layer's window, by the rules of the architecture's configuration class in transformers."""
    if architecture == "LlamaForCausalLM":
        return (None,) * layers
    # The default of these classes where the key is absent; null means none.
    window: int | None = None if architecture == "MixtralForCausalLM" else 4096
    if "sliding_window" in config:
        window = optional_int(config, "sliding_window")
    if architecture.startswith("Qwen") and not flag(config, "use_sliding_window"):
        window = None
    if architecture in ("MistralForCausalLM", "MixtralForCausalLM", "Qwen3MoeForCausalLM"):  # all layers alike
        if "layer_types" in config:
            raise ModelLoadError(f"config.json: layer_types is not supported for {architecture}")
        return (window,) * layers
    types = config.get("layer_types")
    if types is None:
        full = positive_int(config, "max_window_layers", 28, low=0)
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
            return positive_int(config, key)
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
