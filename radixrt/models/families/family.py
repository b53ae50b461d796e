"""`Family`: what radixrt's decoder knows of a family of models. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from radixrt.models.decoder_spec import DecoderSpec
from radixrt.models.vision_spec import VisionSpec

Config = Mapping[str, Any]
"""The object in config.json."""


@dataclass(frozen=True)
class GGUFFiles:
    """GGUF files of a family, whose tensors have the usual names.

    Attributes:
        architecture: their `general.architecture`.
        model_type: of the family in transformers.
        has_window: these are the files with a sliding window; those without one are of another family.
        rotated_pairs: rows of q and k that rotate together stand side by side; in transformers half a head apart.
        has_bias_field: config.json says by `attention_bias` whether attention has biases.
    """

    architecture: str
    model_type: str
    has_window: bool = False
    rotated_pairs: bool = False
    has_bias_field: bool = False


@dataclass(frozen=True)
class Family:
    """One family of models.

    Attributes:
        architectures: names of its classes with an output head, in `architectures` of config.json.
        parse: reads config.json of a class; raises a ModelLoadError that names the field which is missing, malformed or
            not supported.
        classifiers: the class with an output head, by the name of the one with a classification head.
        text_fields: of models of several parts: returns the fields of the decoder.
        parse_vision: of models of several parts: reads the vision part from all of config.json, beside the decoder that
            `parse` returned; None for a model without one. Raises as `parse`.
        text_alone: of models of several parts: the images are not implemented, and `--text-only` runs the text.
        stacked_experts: a checkpoint has the weights of a layer's experts in stacked tensors.
        nearest: beginnings of other architectures' names, in lower case, for which the first class runs instead.
        gguf: its GGUF files; None if there are none.
    """

    architectures: tuple[str, ...]
    parse: Callable[[Config, str], DecoderSpec]
    classifiers: Mapping[str, str] = field(default_factory=dict)
    text_fields: Callable[[Config, str], Config] | None = None
    parse_vision: Callable[[Config, str, DecoderSpec], VisionSpec | None] | None = None
    text_alone: bool = False
    stacked_experts: bool = False
    nearest: tuple[str, ...] = ()
    gguf: GGUFFiles | None = None
