"""Sizes of CUDA graphs of prompts, and device memory of all graphs, which is set aside before the KV pool is sized."""

from __future__ import annotations

from radixrt.attention.base import AttentionBackend
from radixrt.distributed.parallel import TPGroup
from radixrt.forward_batch.extend_parts import MIN_FRESH_TOKENS
from radixrt.forward_batch.padding import graph_buckets, max_graph_rows, token_buckets
from radixrt.layers.linear import Linear
from radixrt.layers.lm_head import LMHead
from radixrt.models.moe import MoEFeedForward
from radixrt.models.registry import Model
from radixrt.runner.runner_config import RunnerConfig

LAYER_BYTES = 192 * 2**10
"""Memory of the graphs of one bucket, for each layer: 72 buckets of a model of 28 layers took 380 MiB."""
STREAM_BYTES = 32 * 2**20
"""Workspace that cuBLAS allocates for each of the two streams on which graphs are captured."""
LAYER_LAUNCH_S = 0.65e-3
"""Time in which the host launches the kernels of a layer: 18 ms for 28 layers."""
FLOPS = 3e14
"""Operations of GEMMs per second of a step, attention and norms included: 6,000 tokens of a model with 0.44 billion
weights in its layers took an H200 18 ms."""
ROUNDING = 256


def graph_bytes(
    config: RunnerConfig, model: Model, backend: AttentionBackend, step_bytes: int, longest_prompt: int
) -> int:
    """Return the bytes that graphs take once all buckets of decode steps and prompts are captured; 0 without graphs.

    Not counted are graphs with shared prefixes, few of which are ever captured, and the buffer of logits, which takes
    the place of the logits of an uncaptured step.

    Args:
        step_bytes: memory that the largest step allocates temporarily.
        longest_prompt: result of `longest_captured_prompt`.
    """
    if config.cuda_graph == "off" or not backend.is_captured:
        return 0
    layers = len(model.attention_layers) + len(model.states)
    buckets = len(graph_buckets(max_graph_rows(config.max_running_requests))) + len(token_buckets(longest_prompt))
    # Activations of prompts: those of the graphs, and those of the steps that run on their stream before a capture.
    activations = 2 * step_bytes * longest_prompt // config.max_step_tokens
    return buckets * layers * LAYER_BYTES + 2 * STREAM_BYTES + activations


def longest_captured_prompt(model: Model, max_step_tokens: int, group: TPGroup) -> int:
    """Return the largest number of prompt tokens for which steps are captured, the same on all ranks. A collective call
    of all ranks, those of other pipeline stages and those that capture nothing too.

    A longer step takes the device longer to compute than the host to launch, so that a graph saves nothing. For
    mixtures of experts, whose operations depend on the text, it is the number below which steps have no part that reads
    computed keys and values.
    """
    modules = list(model.modules())
    linears = [m for m in modules if isinstance(m, Linear) and not isinstance(m, LMHead)]
    numbers = sum(m.in_features * m.out_features for m in linears)
    tokens = MIN_FRESH_TOKENS - 1
    if numbers and not any(isinstance(m, MoEFeedForward) for m in modules):
        layers = len(model.attention_layers) + len(model.states)
        tokens = max(tokens, int(layers * LAYER_LAUNCH_S * FLOPS / (2 * numbers)) // ROUNDING * ROUNDING)
    return group.minimum(min(max_step_tokens, tokens))
