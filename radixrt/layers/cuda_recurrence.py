"""`RecurrenceOps` by Triton kernels."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from radixrt.forward_batch.state_rows import StateRows
from radixrt.forward_batch.upload import Uploader
from radixrt.layers.recurrence import GatedDeltaShape, GatedDeltaWeights, RecurrenceOps
from radixrt.messages.wire import Int32Array

DIMS = (16, 32, 64, 128)
"""Dims of heads that the kernels support."""

MIN_COUNTERS = 1 << 14
MAX_ERROR = 0.1
"""Greatest error of results of verified kernels, relative to the largest number; rounding makes about 0.01."""

logger = logging.getLogger(__name__)

Chunks = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class RowLists:
    """Lists of the rows of a wave (`StateRows.waves`) and of the chunks of their tokens, on the device.

    Attributes:
        singles: int32, the rows of one token.
        longer: int32, the others, longest first.
        chunks: int32 each: the row of each chunk of `longer`, and the number of its first token in the row.
        all_chunks: the same for all rows.
    """

    singles: torch.Tensor
    longer: torch.Tensor
    chunks: Chunks
    all_chunks: Chunks


def list_rows(lens: Int32Array, rows: Int32Array, chunk: int, uploader: Uploader) -> RowLists:
    """List some rows of a step, whose numbers of tokens are `lens`, int32 [B], and their chunks of so many tokens."""
    singles, longer = rows[lens[rows] == 1], rows[lens[rows] > 1]
    longer = longer[np.argsort(-lens[longer], kind="stable")]
    every = *_chunks_of(lens, longer, chunk), *_chunks_of(lens, rows, chunk)
    found = uploader.upload([singles, longer, *every])
    return RowLists(found[0], found[1], (found[2], found[3]), (found[4], found[5]))


def _chunks_of(lens: Int32Array, rows: Int32Array, chunk: int) -> tuple[Int32Array, Int32Array]:
    counts = -(-lens[rows] // chunk)
    before = np.cumsum(counts) - counts
    number = np.arange(counts.sum()) - np.repeat(before, counts)
    return np.repeat(rows, counts), (number * chunk).astype(np.int32)


class CudaRecurrence(RecurrenceOps):
    """A layer is one launch where each row has one token. The waves of chained rows are launched one after another. A
    shape or layout that the kernels do not support goes to the reference.

    Args:
        early: see `CudaOps`.

    Raises:
        ImportError: triton is not installed.
    """

    def __init__(self, *, early: bool = False) -> None:
        from radixrt.kernels.triton import causal_conv, gated_delta_chunks, gated_delta_decode

        self._conv, self._chunks, self._decode = causal_conv, gated_delta_chunks, gated_delta_decode
        self._early = early
        self._uploader: Uploader | None = None
        self._listed: tuple[StateRows, list[RowLists]] | None = None
        self._arrived: dict[int, torch.Tensor] = {}
        self._prompts_by_reference = False

    def verify(self, shape: GatedDeltaShape, taps: int, dtype: torch.dtype, device: torch.device) -> None:
        """Compute two prompts by the kernels and by the reference. If they differ, the reference computes all prompts.

        Triton 3.6 has compiled kernels of this kind into wrong ones for some GPUs.
        """
        error = _error_of_prompts(self, shape, taps, dtype, device)
        if not error <= MAX_ERROR:
            self._prompts_by_reference = True
            logger.warning(
                "prompts of recurrent layers are computed by plain torch: the error of Triton's kernels is %.2g of the"
                " largest number (%s, heads of %d)", error, dtype, shape.k_dim,
            )  # fmt: skip

    def short_conv(self, bcx: torch.Tensor, weight: torch.Tensor, pool: torch.Tensor, rows: StateRows) -> torch.Tensor:
        if bcx.stride(1) != 1 or not weight.is_contiguous() or not pool.is_contiguous():
            return super().short_conv(bcx, weight, pool, rows)
        out = torch.empty(len(bcx), len(weight), dtype=bcx.dtype, device=bcx.device)
        for number, lists in enumerate(self._waves(rows)):
            chunks = None if lists is None else lists.all_chunks
            early = self._early and number == 0  # later waves read states that the wave before them writes
            self._conv.short_conv(bcx, weight, pool, rows.src, rows.dst, rows.starts, chunks, out, early=early)
        return out

    def gated_delta_net(
        self, projected: torch.Tensor, shape: GatedDeltaShape, weights: GatedDeltaWeights, conv_pool: torch.Tensor,
        state_pool: torch.Tensor, rows: StateRows,
    ) -> torch.Tensor:  # fmt: skip
        by_reference = self._prompts_by_reference and rows.lens is not None
        if by_reference or not _supports(projected, shape, weights, conv_pool, state_pool):
            return super().gated_delta_net(projected, shape, weights, conv_pool, state_pool, rows)
        tokens, k_heads, v_heads = len(projected), shape.k_heads, shape.v_heads
        out = torch.empty(tokens, v_heads * shape.v_dim, dtype=projected.dtype, device=projected.device)
        for number, lists in enumerate(self._waves(rows)):
            if lists is None or len(lists.singles):
                self._decode.gated_delta_decode(
                    projected, k_heads, v_heads, weights.conv, weights.a_log, weights.dt_bias, weights.norm,
                    weights.eps, conv_pool, state_pool, rows.src, rows.dst, rows.starts,
                    None if lists is None else lists.singles, self._counters(len(rows.src) * k_heads, out.device), out,
                    early=self._early and number == 0,  # as in `short_conv`
                )  # fmt: skip
            if lists is not None and len(lists.longer):
                qkv = torch.empty(tokens, shape.channels, dtype=projected.dtype, device=projected.device)
                self._conv.convolve_heads(
                    projected, k_heads, v_heads, shape.k_dim, weights.conv, conv_pool, rows.src, rows.dst, rows.starts,
                    lists.chunks, qkv,
                )  # fmt: skip
                self._chunks.gated_delta_chunks(
                    qkv, projected, k_heads, v_heads, weights.a_log, weights.dt_bias, weights.norm, weights.eps,
                    state_pool, rows.src, rows.dst, rows.starts, lists.longer, lists.chunks, out,
                )  # fmt: skip
        return out

    def _waves(self, rows: StateRows) -> Sequence[RowLists | None]:
        """Return the lists of each wave of a step, which all of its layers share; None in place of the lists of one
        wave in which each row has one token."""
        if rows.lens is None:
            return [None]
        if self._listed is None or self._listed[0] is not rows:
            uploader = self._uploader = self._uploader or Uploader(rows.src.device)
            waves = [wave.astype(np.int32) for wave in rows.waves()]
            self._listed = rows, [list_rows(rows.lens, wave, self._conv.CHUNK, uploader) for wave in waves]
        return self._listed[1]

    def _counters(self, count: int, device: torch.device) -> torch.Tensor:
        """Return at least `count` zeros for `gated_delta_decode`; layers follow each other on one stream.

        Captured graphs hold their address, so they are never freed.
        """
        size = max(MIN_COUNTERS, 1 << (count - 1).bit_length())
        if size not in self._arrived:
            self._arrived[size] = torch.zeros(size, dtype=torch.int32, device=device)
        return self._arrived[size]


def _supports(
    projected: torch.Tensor, shape: GatedDeltaShape, weights: GatedDeltaWeights, conv_pool: torch.Tensor,
    state_pool: torch.Tensor,
) -> bool:  # fmt: skip
    return (
        shape.k_dim == shape.v_dim
        and shape.k_dim in DIMS
        and projected.stride(1) == 1
        and weights.conv.is_contiguous()
        and conv_pool.is_contiguous()
        and state_pool.is_contiguous()
    )


def _error_of_prompts(
    ops: RecurrenceOps, shape: GatedDeltaShape, taps: int, dtype: torch.dtype, device: torch.device
) -> float:
    """Return the greatest error of two prompts that go on from one state, relative to the largest number."""
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    lens = np.array([70, 33], np.int32)
    src, dst, starts = (torch.tensor(each, device=device) for each in ([2, 2], [3, 4], [0, *np.cumsum(lens)]))
    rows = StateRows(src, dst, starts, lens)
    weights = GatedDeltaWeights(
        normal(shape.channels, taps).to(device, dtype), torch.linspace(-4, 0, shape.v_heads, device=device),
        torch.zeros(shape.v_heads, device=device), torch.ones(shape.v_dim, device=device), eps=0.1,
    )  # fmt: skip
    projected = normal(int(lens.sum()), shape.in_features).to(device, dtype)
    conv, states = normal(5, shape.channels, taps - 1), normal(5, shape.v_heads, shape.v_dim, shape.k_dim)
    results = []
    for each in (ops, RecurrenceOps()):
        pools = conv.to(device, dtype, copy=True), states.to(device, copy=True)
        results.append((each.gated_delta_net(projected, shape, weights, *pools, rows), pools[1]))
    errors = [
        (found.float() - wanted.float()).abs().max() / wanted.float().abs().max()
        for found, wanted in zip(*results, strict=True)
    ]
    return float(torch.stack(errors).max())
