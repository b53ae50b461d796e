"""Device memory of CUDA graphs, which is set aside before the KV pool is sized."""

from __future__ import annotations

from radixrt.forward_batch.extend_parts import MIN_FRESH_TOKENS
from radixrt.forward_batch.padding import graph_buckets, max_graph_rows, token_buckets
from radixrt.runner.runner_config import RunnerConfig

LAYER_BYTES = 192 * 2**10
"""Memory of the graphs of one bucket, for each layer: 72 buckets of a model of 28 layers took 380 MiB."""
STREAM_BYTES = 32 * 2**20
"""Workspace that cuBLAS allocates for each of the two streams on which graphs are captured."""


def graph_bytes(config: RunnerConfig, layers: int) -> int:
    """Return the bytes that graphs take once all buckets of decode steps and short prompts are captured.

    Not counted are graphs with shared prefixes, few of which are ever captured, and the buffer of logits, which takes
    the place of the logits of an uncaptured step.
    """
    if config.cuda_graph == "off" or config.attention_backend == "torch_native" or config.dtype == "float32":
        return 0
    decode = graph_buckets(max_graph_rows(config.max_running_requests))
    prompts = prompt_buckets(config.max_step_tokens)
    return (len(decode) + len(prompts)) * layers * LAYER_BYTES + 2 * STREAM_BYTES


def prompt_buckets(max_step_tokens: int) -> list[int]:
    """Return the numbers of tokens for which prompts are captured.

    Longer steps have a part that reads keys and values computed in the step; the graphs store all of them.
    """
    return token_buckets(min(max_step_tokens, MIN_FRESH_TOKENS - 1))
