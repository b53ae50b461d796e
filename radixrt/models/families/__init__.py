"""The families of models that radixrt's decoder runs. Any other model runs through transformers' modeling code."""

from __future__ import annotations

from radixrt.models.families import (
    gpt_oss,
    idefics3,
    lfm2,
    llama,
    llava,
    mistral,
    mixtral,
    qwen2,
    qwen3,
    qwen3_5,
    qwen3_moe,
    qwen3_next,
    qwen3_vl,
    text_alone,
)
from radixrt.models.families.family import Family

FAMILIES: list[Family] = [
    gpt_oss.FAMILY,
    llama.FAMILY,
    mistral.FAMILY,
    mixtral.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    qwen3_moe.FAMILY,
    lfm2.FAMILY,
    qwen3_next.FAMILY,
    qwen3_5.FAMILY,
    qwen3_vl.FAMILY,
    idefics3.FAMILY,
    llava.FAMILY,
    text_alone.LIKE_LLAVA,
    text_alone.QWEN,
]


def find_family(architecture: str) -> Family | None:
    """Return the family of a class with an output head; None if transformers' modeling code runs it."""
    return next((family for family in FAMILIES if architecture in family.architectures), None)


def decoder_architectures() -> tuple[str, ...]:
    """Return the classes of all families that have an output head."""
    return tuple(name for family in FAMILIES for name in family.architectures)


def base_architectures() -> dict[str, str]:
    """Return the class with an output head, by the name of the one without: embedding models are saved as one of these,
    e.g. "Qwen3Model"."""
    names = [name for name in decoder_architectures() if name.endswith("ForCausalLM")]
    return {name.replace("ForCausalLM", "Model"): name for name in names}


def classifier_architectures() -> dict[str, str]:
    """Return the class with an output head, by the name of the one with a classification head in its place."""
    return {name: causal for family in FAMILIES for name, causal in family.classifiers.items()}
