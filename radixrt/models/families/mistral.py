"""Mistral, without experts."""

from __future__ import annotations

from radixrt.models.decoder_spec import DecoderSpec
from radixrt.models.families.family import Config, Family, GGUFFiles
from radixrt.models.families.fields import dense_decoder, equal_windows, read_window


def parse(config: Config, architecture: str) -> DecoderSpec:
    """As `Family.parse`."""
    windows = equal_windows(config, architecture, read_window(config, 4096))
    return dense_decoder(config, architecture, windows=windows)


FAMILY = Family(
    ("MistralForCausalLM",),
    parse,
    classifiers={"MistralForSequenceClassification": "MistralForCausalLM"},
    nearest=("ministral", "mistral", "pixtral"),
    gguf=GGUFFiles("llama", "mistral", has_window=True, rotated_pairs=True),
)
