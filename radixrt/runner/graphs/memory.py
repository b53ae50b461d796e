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

    Graphs with shared prefixes are not counted, because few of them are ever captured. The buffer of logits is not
    counted either, because an uncaptured step would allocate its logits instead.

    Args:
        step_bytes: memory that the largest step allocates temporarily.
        longest_prompt: result of `longest_captured_prompt`.
    """
    if config.cuda_graph == "off" or not backend.is_captured:
        return 0
    layers = len(model.attention_layers) + len(model.states)
    buckets = len(graph_buckets(max_graph_rows(config.max_running_requests))) + len(token_buckets(longest_prompt))
    # Activations of prompts: in the graphs' pool, and of the uncaptured step that runs before each capture.
    activations = 2 * step_bytes * longest_prompt // config.max_step_tokens
    return buckets * layers * LAYER_BYTES + 2 * STREAM_BYTES + activations


def longest_captured_prompt(model: Model, max_step_tokens: int, group: TPGroup) -> int:
    """Return the largest number of prompt tokens for which steps are captured, the same on all ranks. The call is
    collective over the ranks of all pipeline stages, including ranks that capture no graph.

    A longer step takes the device longer to compute than the host to launch, so a graph saves nothing. For mixtures of
    experts, whose number of operations depends on the text, the result is MIN_FRESH_TOKENS - 1: the graphs of shorter
    steps store keys and values.
    """
    modules = list(model.modules())
    linears = [m for m in modules if isinstance(m, Linear) and not isinstance(m, LMHead)]
    numbers = sum(m.in_features * m.out_features for m in linears)
    tokens = MIN_FRESH_TOKENS - 1
    if numbers and not any(isinstance(m, MoEFeedForward) for m in modules):
        layers = len(model.attention_layers) + len(model.states)
        tokens = max(tokens, int(layers * LAYER_LAUNCH_S * FLOPS / (2 * numbers)) // ROUNDING * ROUNDING)
    return group.minimum(min(max_step_tokens, tokens))
