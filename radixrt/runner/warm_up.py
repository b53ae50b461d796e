"""Compilation and loading of kernels before the first step, so that no step waits for a kernel.

Triton compiles a kernel for each combination of dtypes, constant sizes and alignments. `compile_kernels` calls each
operation with every combination that steps of the model have, without computing anything, so that all kernels are
compiled at the same time. The kernels of torch and cuBLAS are compiled already, but loaded at their first launch: the
dummy steps of `profile_run` launch them.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.attention.state_pool import RecurrentLayer
from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.forward_batch.state_rows import StateRows
from radixrt.kernels.triton.skinny_gemm_config import MAX_TOKENS
from radixrt.models.gated_delta_net import GatedDeltaNet
from radixrt.models.moe import MoEFeedForward
from radixrt.models.registry import Model
from radixrt.runner.sampling.sampler import Sampler

logger = logging.getLogger(__name__)

FEW_TOKENS = (1, 2, 3, 4)
"""`gemv` has a kernel for each of these numbers of tokens, and `skinny_gemm` one for each power of two from 16 on."""
SIZES = (*FEW_TOKENS, 16, 32, 64, 128, MAX_TOKENS, 2 * MAX_TOKENS, 8 * MAX_TOKENS)
SIZES_OF_EXPERTS = (*FEW_TOKENS, *(1 << i for i in range(4, 15)))
"""Mixtures of experts have kernels for more numbers of tokens: the more tokens an expert has, the larger its tiles. All
larger numbers use the kernels of the largest size."""


def compile_kernels(
    model: Model,
    attention: AttentionBackend,
    sampler: Sampler,
    batches: BatchBuilder,
    *,
    max_rows: int,
    max_tokens: int,
) -> None:
    """Compile and load the Triton kernels of all steps.

    Args:
        max_rows, max_tokens: maximum numbers of rows and of new tokens of a step.
    """
    if importlib.util.find_spec("triton") is None:
        return
    from radixrt.kernels.triton.compile_ahead import compiling

    started = time.perf_counter()
    no_attention = partial(_NoAttention, attention, recurrent=bool(model.states))
    with compiling() as names:
        for tokens in SIZES:
            if tokens <= max_tokens:
                batch = batches.build_dummy_extend(tokens)
                _compute_layer(model, batch, no_attention(into_pool=True))
        _compute_layer(model, batches.build_dummy_extend(1), no_attention(into_pool=False))
        for mixture in [module for module in model.modules() if isinstance(module, MoEFeedForward)][:1]:
            launch_experts(mixture, max_tokens)
        attention.launch_all(batches.req_to_token)
        sampler.launch_all(min(2, max_rows))
    logger.debug("%d kernels compiled or loaded in %.1f s", len(names), time.perf_counter() - started)


def verify_kernels(model: Model, device: torch.device) -> None:
    """Compare the compiled kernels of the first recurrent layer with the reference; other layers have the same
    shapes."""
    for layer in [module for module in model.modules() if isinstance(module, GatedDeltaNet)][:1]:
        layer.verify(device)


def launch_experts(mixture: MoEFeedForward, max_tokens: int) -> None:
    """Launch every kernel that a mixture of experts has for steps of up to max_tokens."""
    for tokens in sorted({min(size, max_tokens) for size in SIZES_OF_EXPERTS}):
        mixture.launch_all(tokens)


class _OneLayer(Exception):
    """Raised after a layer of each kind, and the norm and projection at the beginning of another layer, were
    computed."""


def _compute_layer(model: Model, batch: ForwardBatch, attention: _NoAttention) -> None:
    """Compute a layer of each kind; all other layers launch the same kernels."""
    try:
        model.forward(batch.input_ids, batch.positions, batch, attention, model.stage_input(batch.num_tokens))
    except _OneLayer:
        return


def divide_into_rows(single: StateRows, tokens: int) -> Iterator[StateRows]:
    """Yield rows for which recurrent layers have different kernels.

    Args:
        single: rows of one token each.

    Yields:
        `single`; one row of all tokens; one row of one token followed by as many longer rows as possible; and as many
        rows of one token as possible followed by a longer row.
    """
    yield single
    kinds = [[tokens]]
    if tokens > 2:
        pairs, odd = divmod(tokens - 1, 2)
        kinds += [[1, *[2] * (pairs - 1), 2 + odd], [1] * (tokens - 2) + [2]]
    for lens in kinds:
        starts = torch.tensor([0, *np.cumsum(lens)], device=single.starts.device)
        yield StateRows(single.src[: len(lens)], single.dst[: len(lens)], starts, np.array(lens, np.int32))


class _NoAttention(AttentionBackend):
    """Attention backend that computes no attention, and stops the model after a layer of each kind.

    Args:
        into_pool: the model stores keys and values into the pool, as in most steps; otherwise it passes them to
            `attend`.
        recurrent: the model has recurrent layers.
    """

    def __init__(self, backend: AttentionBackend, *, into_pool: bool, recurrent: bool) -> None:
        self._backend, self._into_pool = backend, into_pool
        self._missing = {"attention", "recurrence"} if recurrent else {"attention"}

    def prepare(self, batch: ForwardBatch) -> None:
        """Do nothing: no attention is computed."""

    def pool(self, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor] | None:
        return self._backend.pool(layer) if self._into_pool else None

    def store(self, layer: AttentionLayer, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch) -> None:
        self._backend.store(layer, k, v, batch)

    def attend(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        batch: ForwardBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self._begin("attention")
        if k is not None and v is not None:
            self.store(layer, k, v, batch)
        return torch.empty(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)

    def mix_states(self, layer: RecurrentLayer, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """Mix the tokens of the batch as rows of each kind."""
        if self._begin("recurrence"):
            assert batch.states is not None
            for rows in divide_into_rows(batch.states, x.shape[0]):
                self._backend.mix_states(layer, x, replace(batch, states=rows))
        return torch.empty(x.shape[0], layer.mixed_features, dtype=x.dtype, device=x.device)

    def _begin(self, kind: str) -> bool:
        """Return whether this is the first layer of a kind.

        Raises:
            _OneLayer: no kind was missing.
        """
        if not self._missing:
            raise _OneLayer
        is_first = kind in self._missing
        self._missing.discard(kind)
        return is_first
