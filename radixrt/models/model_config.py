"""`ModelSpec`: the contents of a model folder's config.json, checked and typed. Imports neither torch nor transformers.

Every field that would change the result is either represented here or refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from radixrt.errors import ConfigError, ModelLoadError
from radixrt.layers.formats.choice import ONLINE, choose_quantization
from radixrt.layers.formats.registry import read_quantization
from radixrt.models.classifier_spec import ClassifierSpec, parse_classifier
from radixrt.models.config_fields import flag, optional_int, positive_int, read_json_object
from radixrt.models.decoder_spec import DecoderSpec
from radixrt.models.families import base_architectures, classifier_architectures, find_family
from radixrt.models.vision_spec import VisionSpec, refuse_vision

ENCODER = re.compile(
    r"([Bb]ert|Roberta|BERT|MPNet|Electra|Deberta|Albert|Bidirectional).*(Model|MaskedLM|Classification|CausalLM)$"
    r"|^(T5EncoderModel|NewModel|NewForSequenceClassification|NVEmbedModel|BidirectionalMistral\w*)$"
)
"""Architectures of bidirectional encoders."""

HEADED = re.compile(r"For(Sequence|Token)Classification$|ForQuestionAnswering$|RewardModel$")
"""Architectures whose head is not one over the vocabulary."""

TEXT_ONLY = "; --text-only serves the text alone"
"""End of the error of a vision part that is not supported, where the text is."""

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
        vision: tower of a model of text and vision; None for every other model, and for a head in place of that over
            the vocabulary.
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
    vision: VisionSpec | None = None


def load_model_spec(folder: Path, quantization: str = "auto", *, reads_images: bool = True) -> ModelSpec:
    """Read config.json and, if there is one, generation_config.json.

    Args:
        quantization: the option of this name.
        reads_images: False leaves out a vision part that is not supported, instead of refusing the model.

    Raises:
        ModelLoadError: a file or field is missing, malformed or not supported; the message names it.
        ConfigError: the weights cannot be quantized as the option asks.
    """
    config = read_json_object(folder / "config.json")
    generation_file = folder / "generation_config.json"
    generation = read_json_object(generation_file) if generation_file.is_file() else {}
    quantization_file = folder / "hf_quant_config.json"  # where ModelOpt leaves config.json as it was
    if not config.get("quantization_config") and quantization_file.is_file():
        config["quantization_config"] = {"quant_method": "modelopt", **read_json_object(quantization_file)}
    return parse_model_spec(config, generation, quantization, reads_images=reads_images)


def parse_model_spec(
    config: Mapping[str, Any], generation: Mapping[str, Any], quantization: str = "auto", *, reads_images: bool = True
) -> ModelSpec:
    """Build the spec from the two parsed files. Arguments and errors as of `load_model_spec`."""
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1 or not isinstance(architectures[0], str):
        raise ModelLoadError(f"config.json: architectures must name one model class, not {architectures!r}")
    name, classifiers = architectures[0], classifier_architectures()
    architecture = {**base_architectures(), **classifiers}.get(name, name)
    family = find_family(architecture)
    stored = read_quantization(
        config, decodes=family is not None, stacked_experts=family is not None and family.stacked_experts
    )
    classifier = parse_classifier(config) if name in classifiers else None
    whole, decoder, vision = config, None, None
    if family is None:
        refuse_vision(name, config)
    elif family.text_alone and reads_images:
        refuse_vision(name, config, TEXT_ONLY)
    if family is not None and family.text_fields is not None:
        config = family.text_fields(config, architecture)
    _check_causal(name, config)
    if family is not None:
        chosen = choose_quantization(quantization, stored, name)
        decoder = replace(family.parse(config, architecture), quantization=chosen)
        if family.parse_vision is not None and classifier is None:
            try:
                vision = family.parse_vision(whole, architecture, decoder)
            except ModelLoadError as error:
                if reads_images:
                    raise ModelLoadError(str(error) + TEXT_ONLY) from None
    elif quantization in ONLINE:
        raise ConfigError(
            f"quantization={quantization}: {name} runs through transformers' modeling code, whose weights stay as they"
            " are; use quantization=auto"
        )
    return ModelSpec(
        architecture=architecture,
        vocab_size=positive_int(config, "vocab_size"),
        context_length=_context_length(config),
        eos_token_ids=tuple(sorted({*_token_ids(config), *_token_ids(generation)})),
        bos_token_id=optional_int(config, "bos_token_id"),
        dtype=_dtype(config),
        decoder=decoder,
        hidden_size=next((size for name in HIDDEN_KEYS if (size := optional_int(config, name))), None),
        has_head=architecture == name or (classifier is None and flag(config, "tie_word_embeddings")),
        classifier=classifier,
        vision=vision,
    )


def _check_causal(architecture: str, config: Mapping[str, Any]) -> None:
    instead = "; decoders embed too, e.g. Qwen3ForCausalLM (Qwen3-Embedding)"
    if ENCODER.search(architecture):
        raise ModelLoadError(f"config.json: {architecture} is a bidirectional encoder, which is not supported{instead}")
    classifiers = classifier_architectures()
    if HEADED.search(architecture) and architecture not in classifiers:
        raise ModelLoadError(
            f"config.json: {architecture} is not supported; of models with such a head, {', '.join(classifiers)} are"
        )
    for name, causal in (("is_causal", True), ("use_bidirectional_attention", False)):
        if config.get(name, causal) not in (causal, None):
            raise ModelLoadError(
                f"config.json: {name} {config[name]!r} asks for attention that is not causal, which is not supported"
                f"{instead}"
            )


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
