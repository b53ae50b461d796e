"""Qwen2 and Qwen2.5."""

from __future__ import annotations

from radixrt.models.config_fields import flag, positive_int
from radixrt.models.decoder_spec import DecoderSpec
from radixrt.models.families.family import Config, Family, GGUFFiles
from radixrt.models.families.fields import dense_decoder, read_window, windows_by_type


def parse(config: Config, architecture: str) -> DecoderSpec:
    """As `Family.parse`."""
    return dense_decoder(config, architecture, windows=qwen_windows(config), qkv_bias=True)


def qwen_windows(config: Config) -> tuple[int | None, ...]:
    """Return the window of each layer; without layer_types, layers from `max_window_layers` on have one."""
    window, layers = qwen_window(config), positive_int(config, "num_hidden_layers")
    full = positive_int(config, "max_window_layers", 28, low=0) if window is not None else layers
    default = ["full_attention" if i < full else "sliding_attention" for i in range(layers)]
    return windows_by_type(config, default, window)


def qwen_window(config: Config) -> int | None:
    """Return the sliding window; None unless `use_sliding_window` is true."""
    window = read_window(config, 4096)
    return window if flag(config, "use_sliding_window") else None


FAMILY = Family(
    ("Qwen2ForCausalLM",),
    parse,
    classifiers={"Qwen2ForSequenceClassification": "Qwen2ForCausalLM"},
    nearest=("qwen2",),
    gguf=GGUFFiles("qwen2", "qwen2"),
)
