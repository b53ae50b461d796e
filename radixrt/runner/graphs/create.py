"""Creation of the graphs of a ModelRunner."""

from __future__ import annotations

import logging

import torch

from radixrt.attention.base import AttentionBackend
from radixrt.attention.flashinfer import FlashInferBackend
from radixrt.attention.hybrid import HybridAttnBackend
from radixrt.attention.kv_cache import bytes_per_token
from radixrt.distributed.parallel import TPGroup
from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.forward_batch.padding import max_graph_rows
from radixrt.models.registry import Model
from radixrt.runner.graphs.cuda_graph_runner import CudaGraphRunner
from radixrt.runner.graphs.prompt_graph_runner import PromptGraphRunner
from radixrt.runner.runner_config import RunnerConfig, free_memory
from radixrt.runner.sampling.sampler import Sampler

logger = logging.getLogger(__name__)


def create_graphs(
    config: RunnerConfig,
    model: Model,
    backend: AttentionBackend,
    sampler: Sampler,
    batches: BatchBuilder,
    *,
    vocab_size: int,
    longest_prompt: int,
    dtype: torch.dtype,
    device: torch.device,
    group: TPGroup,
) -> tuple[CudaGraphRunner | None, PromptGraphRunner | None]:
    """Return the graphs of decode steps and of prompts; None for both if attention is not FlashInfer's.

    The fewest graphs are captured such that every step can use a graph; with cuda_graph=start, all graphs are captured.

    Args:
        longest_prompt: result of `longest_captured_prompt`.
    """
    attention = backend.attention if isinstance(backend, HybridAttnBackend) else backend
    if not isinstance(attention, FlashInferBackend):
        return None, None
    before = free_memory(device)
    max_requests = config.max_running_requests
    decode = CudaGraphRunner(
        model,
        backend,
        attention,
        sampler,
        batches,
        vocab_size=vocab_size,
        max_samples=max_requests,
        max_rows=max_graph_rows(max_requests),
        token_bytes=bytes_per_token(model.attention_layers, config.pool_dtype),
        device=device,
        group=group,
    )
    prompts = PromptGraphRunner(
        model, backend, attention, batches, max_tokens=longest_prompt, dtype=dtype, device=device, group=group
    )
    decode.capture_first()
    prompts.capture_first()
    while config.cuda_graph == "start" and (decode.capture_next() or prompts.capture_next()):
        pass
    logger.info("CUDA graphs take %.0f MiB", (before - free_memory(device)) / 2**20)
    return decode, prompts
