"""Checks of a model of transformers: its configuration, and the calls of its attention in a probing forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from radixrt.attention.base import AttentionLayer
from radixrt.errors import ModelLoadError

LAYER_TYPES = {"full_attention", "sliding_attention"}
BATCH_DEPENDENT_ROPE = {"dynamic", "longrope"}
"""Kinds of rotary embedding that depend on the longest sequence of the step, and so on other requests, once a sequence
is longer than the model's original context."""

HARMLESS_KWARGS = {
    "dropout",  # 0 outside of training
    "scaling",
    "sliding_window",
    "is_causal",
    "position_ids",
    "cache_position",
    "position_embeddings",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "return_dict",
}


@dataclass(frozen=True)
class AttentionCall:
    """One call of the attention interface; shapes are [1, heads, T, head_dim]."""

    module: nn.Module
    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    mask: Any
    kwargs: dict[str, Any]


def check_config(config: Any, context_length: int) -> None:
    """Refuse models whose configuration names an unsupported feature.

    Args:
        context_length: longest sequence that may be computed.

    Raises:
        ModelLoadError: names the field.
    """
    fields = config.to_dict()
    name = type(config).__name__
    if fields.get("is_encoder_decoder"):
        raise ModelLoadError(f"{name}: encoder-decoder models are not supported")
    if fields.get("text_config") or fields.get("vision_config"):
        raise ModelLoadError(f"{name}: models of several parts (text_config, vision_config) are not supported")
    if fields.get("use_bidirectional_attention"):
        raise ModelLoadError(f"{name}: use_bidirectional_attention is not supported")
    if unknown := set(fields.get("layer_types") or []) - LAYER_TYPES:
        raise ModelLoadError(f"{name}: layer_types {', '.join(sorted(unknown))} are not supported")
    _check_rope(name, fields, context_length)


def _check_rope(name: str, fields: dict[str, Any], context_length: int) -> None:
    params = fields.get("rope_parameters") or {}
    for value in [part for part in params.values() if isinstance(part, dict)] or [params]:
        kind = value.get("rope_type", "default")
        original = value.get("original_max_position_embeddings") or fields.get("max_position_embeddings") or 0
        if kind in BATCH_DEPENDENT_ROPE and context_length > original:
            raise ModelLoadError(
                f"{name}: rope_type {kind} is not supported beyond the original {original} tokens; set the context"
                " length to at most that"
            )


def check_no_other_mixing(model: nn.Module, one: torch.Tensor, other: torch.Tensor) -> None:
    """Refuse a model whose tokens interact also without attention (convolutions, state spaces, memory).

    Args:
        one, other: hidden states [T, hidden] for inputs that differ only in the first token.
    """
    if not torch.allclose(one[1:].float(), other[1:].float(), atol=1e-3, rtol=1e-2):
        raise ModelLoadError(f"{type(model).__name__} mixes tokens outside of attention, which is not supported")
    if torch.equal(one[0], other[0]):
        raise ModelLoadError(
            f"{type(model).__name__} does not depend on its input without attention: cannot be checked"
        )


def check_calls(model: Any, calls: list[AttentionCall]) -> list[AttentionLayer]:
    """Return each layer's attention, in order, from the calls of one forward pass.

    Raises:
        ModelLoadError: names the unsupported feature.
    """
    name, config = type(model).__name__, model.config
    expected = config.num_hidden_layers
    indices = [getattr(call.module, "layer_idx", None) for call in calls]
    if indices != list(range(expected)):
        raise ModelLoadError(
            f"{name}: {len(calls)} of {expected} layers use transformers' attention interface (layers {indices});"
            " models with other kinds of layers are not supported"
        )
    layers = [layer_of(name, i, call) for i, call in enumerate(calls)]
    for layer, window in zip(layers, _declared_windows(config, expected), strict=True):
        if layer.sliding_window != window:
            raise ModelLoadError(
                f"{name}: layer {layer.layer_id} has the sliding window {layer.sliding_window} in its attention, but"
                f" {window} in the configuration"
            )
    return layers


def layer_of(name: str, index: int, call: AttentionCall) -> AttentionLayer:
    """Return the attention of one layer from its call; raises ModelLoadError naming the unsupported feature."""
    where = f"{name}, layer {index} ({type(call.module).__name__})"
    if call.mask is not None:
        raise ModelLoadError(f"{where}: attention with a mask of its own is not supported")
    unknown = [key for key, value in call.kwargs.items() if value is not None and key not in HARMLESS_KWARGS]
    if unknown:
        raise ModelLoadError(f"{where}: attention with {', '.join(sorted(unknown))} is not supported")
    causal = call.kwargs.get("is_causal")
    if causal is False or (causal is None and getattr(call.module, "is_causal", True) is False):
        raise ModelLoadError(f"{where}: attention that is not causal is not supported")
    if call.key[3] != call.query[3] or call.value[3] != call.query[3]:
        dims = f"{call.query[3]}, {call.key[3]} and {call.value[3]}"
        raise ModelLoadError(f"{where}: queries, keys and values of different sizes ({dims}) are not supported")
    if call.key[2] != call.query[2] or call.value[2] != call.query[2]:
        raise ModelLoadError(f"{where}: attention over other tokens than the step's is not supported")
    scaling = call.kwargs.get("scaling")
    return AttentionLayer(
        layer_id=index,
        num_heads=call.query[1],
        num_kv_heads=call.key[1],
        head_dim=call.query[3],
        scale=call.query[3] ** -0.5 if scaling is None else float(scaling),
        sliding_window=call.kwargs.get("sliding_window"),
    )


def _declared_windows(config: Any, layers: int) -> list[int | None]:
    """Return the windows of the configuration, which transformers would put into the mask."""
    fields = config.to_dict()
    window = fields.get("sliding_window")
    types = fields.get("layer_types")
    if types is None:
        return [window] * layers
    return [window if kind == "sliding_attention" else None for kind in types]
