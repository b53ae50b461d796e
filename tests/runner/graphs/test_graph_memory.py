"""Sizes of captured prompts, and the memory that is set aside for graphs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from radixrt.attention.hybrid import HybridAttnBackend
from radixrt.attention.state_pool import StatePool
from radixrt.layers.linear import Linear
from radixrt.layers.lm_head import LMHead
from radixrt.models.moe import MoEFeedForward
from radixrt.runner.graphs.memory import graph_bytes, longest_captured_prompt

ALONE: Any = SimpleNamespace(minimum=lambda value: value)


def module(kind: type[nn.Module], *shape: int) -> nn.Module:
    made = kind.__new__(kind)
    nn.Module.__init__(made)
    if shape:
        made.out_features, made.in_features = shape
    return made


def model(layers: int, *shape: int, experts: bool = False, recurrent: int = 0) -> Any:
    """A model with one weight in each layer, some of which are recurrent."""
    modules = [module(Linear, *shape) for _ in range(layers)] + [module(LMHead, 10**5, 10**5)]
    if experts:
        modules.append(module(MoEFeedForward))
    return SimpleNamespace(modules=lambda: modules, attention_layers=[0] * (layers - recurrent), states=[0] * recurrent)


def reserved(kind: Any = None, *, is_captured: bool = True, **changes: Any) -> int:
    """The bytes for a model's graphs, with a largest step that takes 256 MiB."""
    kind = kind or model(28, 4000, 4000)
    config: Any = SimpleNamespace(
        **{"cuda_graph": "auto", "max_step_tokens": 8192, "max_running_requests": 64, **changes}
    )
    attention: Any = SimpleNamespace(is_captured=is_captured)
    backend = HybridAttnBackend(attention, StatePool([], 0, torch.device("cpu")))
    longest = longest_captured_prompt(kind, config.max_step_tokens, ALONE)
    return graph_bytes(config, kind, backend, 2**28, longest)


def test_small_models_have_graphs_for_longer_prompts() -> None:
    """Until computing a step takes as long as launching it; the output head is not part of a step's work per token."""
    half_a_billion, seven_billion = model(28, 4000, 4000), model(32, 15000, 15000)
    assert longest_captured_prompt(half_a_billion, 4096, ALONE) == 4096
    assert 5000 < longest_captured_prompt(half_a_billion, 16384, ALONE) < 8192
    assert 5000 < longest_captured_prompt(model(28, 4000, 4000, recurrent=20), 16384, ALONE) < 8192
    assert longest_captured_prompt(seven_billion, 8192, ALONE) == 1023
    assert longest_captured_prompt(model(28, 4000, 4000, experts=True), 8192, ALONE) == 1023
    assert longest_captured_prompt(half_a_billion, 500, ALONE) == 500


def test_ranks_use_the_smallest_of_their_numbers() -> None:
    group: Any = SimpleNamespace(minimum=lambda value: min(value, 2000))
    assert longest_captured_prompt(model(28, 4000, 4000), 8192, group) == 2000


def test_graphs_of_longer_prompts_take_more_memory() -> None:
    few, many = (reserved(model(28, size, size)) for size in (15000, 4000))
    assert many > few + 2**27
    assert reserved(max_running_requests=256) > many


def test_nothing_is_set_aside_without_graphs() -> None:
    """Also not where attention fell back to a backend that is not captured, whose largest step takes much memory."""
    assert reserved(cuda_graph="off") == reserved(is_captured=False) == 0
