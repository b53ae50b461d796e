"""Causal convolutions of a few taps over ragged rows, whose last inputs stand in a pool of states.

A program computes a block of tokens of one row and a block of channels. That of a row's first block reads the row's
state, and also writes the new one, because a row may read and write the same slot.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.triton.activation import silu
from radixrt.kernels.triton.gated_delta_decode import NORM_EPS, SCRATCH

CHUNK = 32
"""Tokens of a chunk in the lists of chunks."""
TOKENS = 16
"""Tokens of a program, where rows have more than one: the inputs of more would not stay in registers."""
ELEMENTS_PER_WARP = 512
CHANNELS = 128
"""Channels of a program of the gated short convolution."""
SINGLE_CHANNELS = 512
"""The same, where each row has one token."""


@triton.jit
def _load_inputs(x, gate, at, mask, GATED: tl.constexpr):
    """Load inputs in float32, multiplied by the gate before the convolution if there is one, and rounded."""
    value = tl.load(x + at, mask=mask, other=0.0)
    if GATED:
        wide = value.to(tl.float32) * tl.load(gate + at, mask=mask, other=0.0).to(tl.float32)
        value = wide.to(x.dtype.element_ty)
    return value.to(tl.float32)


@triton.jit
def _convolve_row(
    x, gate, x_stride, weight, pool, source, target, t, begin, length, channel, inside,
    SIZE: tl.constexpr, TAPS: tl.constexpr, PADDED: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Convolve tokens t of a row; return float32 [tokens, channels], and write the row's new state if t begins at 0.

    Args:
        x, gate: addresses of the first channel's input, and of its gate before the convolution if GATED.
        begin: the row's first token, int64.
        inside: channels that there are; SIZE: channels of the pool.
    """
    EARLIER: tl.constexpr = TAPS - 1
    first = tl.min(t, axis=0)
    valid = (t < length)[:, None] & inside[None, :]
    total = tl.zeros([t.shape[0], channel.shape[0]], tl.float32)
    for tap in tl.static_range(TAPS):
        at = (t + (tap - EARLIER))[:, None]
        taps = tl.load(weight + channel * TAPS + tap, mask=inside, other=0.0).to(tl.float32)
        place = (begin + at) * x_stride + channel[None, :]
        total += taps[None, :] * _load_inputs(x, gate, place, valid & (at >= 0), GATED)
    if first == 0:
        earlier = pool + source * (SIZE * EARLIER)
        for tap in tl.static_range(EARLIER):
            at = (t + (tap - EARLIER))[:, None]
            taps = tl.load(weight + channel * TAPS + tap, mask=inside, other=0.0).to(tl.float32)
            value = tl.load(earlier + channel[None, :] * EARLIER + EARLIER + at, mask=valid & (at < 0), other=0.0)
            total += taps[None, :] * value.to(tl.float32)
        # The inputs of the row's last EARLIER tokens, of which the first ones may be earlier than the row.
        number = tl.arange(0, PADDED)[None, :]
        from_end = length - EARLIER + number
        kept = inside[:, None] & (number < EARLIER)
        old = tl.load(earlier + channel[:, None] * EARLIER + EARLIER + from_end, mask=kept & (from_end < 0), other=0.0)
        new_at = (begin + from_end) * x_stride + channel[:, None]
        new = _load_inputs(x, gate, new_at, kept & (from_end >= 0), GATED)
        tl.debug_barrier()  # all threads have read the old state
        last = tl.where(from_end < 0, old.to(tl.float32), new).to(pool.dtype.element_ty)
        later = pool + target * (SIZE * EARLIER)
        if target != SCRATCH:
            tl.store(later + channel[:, None] * EARLIER + number, last, mask=kept)
    return total


@triton.jit
def _conv_heads_kernel(
    projected, weight, pool, src, dst, starts, chunk_row, chunk_first, out, x_stride,
    K_HEADS: tl.constexpr, V_HEADS: tl.constexpr, DIM: tl.constexpr, TAPS: tl.constexpr, PADDED: tl.constexpr,
    TOKENS: tl.constexpr,
):  # fmt: skip
    ALL: tl.constexpr = (2 * K_HEADS + V_HEADS) * DIM
    head = tl.program_id(0)
    row = tl.load(chunk_row + tl.program_id(1))
    t = tl.load(chunk_first + tl.program_id(1)) + tl.program_id(2) * TOKENS + tl.arange(0, TOKENS)
    begin = tl.load(starts + row).to(tl.int64)
    length = (tl.load(starts + row + 1) - begin).to(tl.int32)
    source, target = tl.load(src + row).to(tl.int64), tl.load(dst + row).to(tl.int64)
    dims = tl.arange(0, DIM)
    channel = head * DIM + dims
    total = _convolve_row(
        projected, projected, x_stride, weight, pool, source, target, t, begin, length, channel, dims < DIM, ALL, TAPS,
        PADDED, False,
    )  # fmt: skip
    total = silu(total)
    if head < 2 * K_HEADS:
        length_inverse = tl.rsqrt(tl.sum(total * total, axis=1) + NORM_EPS)
        total *= (length_inverse * tl.where(head < K_HEADS, DIM**-0.5, 1.0))[:, None]
    target_at = out + (begin + t).to(tl.int64)[:, None] * ALL + channel[None, :]
    tl.store(target_at, total.to(out.dtype.element_ty), mask=(t < length)[:, None] & (dims < DIM)[None, :])


@triton.jit
def _short_conv_kernel(
    bcx, weight, pool, src, dst, starts, chunk_row, chunk_first, out, x_stride,
    SIZE: tl.constexpr, TAPS: tl.constexpr, PADDED: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
    LISTED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(1)
    t = tl.arange(0, TOKENS)
    begin = row.to(tl.int64)
    length = 1
    if LISTED:
        row = tl.load(chunk_row + tl.program_id(1))
        t += tl.load(chunk_first + tl.program_id(1)) + tl.program_id(2) * TOKENS
        begin = tl.load(starts + row).to(tl.int64)
        length = (tl.load(starts + row + 1) - begin).to(tl.int32)
    source, target = tl.load(src + row).to(tl.int64), tl.load(dst + row).to(tl.int64)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < SIZE
    total = _convolve_row(
        bcx + 2 * SIZE, bcx, x_stride, weight, pool, source, target, t, begin, length, channel, inside, SIZE, TAPS,
        PADDED, True,
    )  # fmt: skip
    token = (begin + t).to(tl.int64)[:, None]
    valid = (t < length)[:, None] & inside[None, :]
    gate = tl.load(bcx + token * x_stride + SIZE + channel[None, :], mask=valid, other=0.0).to(tl.float32)
    tl.store(out + token * SIZE + channel[None, :], (total * gate).to(out.dtype.element_ty), mask=valid)


def convolve_heads(
    projected: torch.Tensor, k_heads: int, v_heads: int, dim: int, weight: torch.Tensor, pool: torch.Tensor,
    src: torch.Tensor, dst: torch.Tensor, starts: torch.Tensor, chunks: tuple[torch.Tensor, torch.Tensor],
    out: torch.Tensor,
) -> None:  # fmt: skip
    """Convolve the inputs of a gated delta net, apply SiLU, normalize q and k, and divide q by the square root of dim.

    Args:
        projected: [T, at least channels], the heads of q, of k and of v, dim each; the features of a token contiguous.
        weight: [channels, taps], contiguous.
        pool: [slots, channels, taps - 1], contiguous, in projected's dtype.
        src, dst, starts: int, of the `StateRows`.
        chunks: int32 [n] each: the row of each chunk of CHUNK tokens, and the number of its first token in the row.
            All chunks of each row are there.
        out: [T, channels], contiguous; the tokens of the chunks are written.
    """
    taps = weight.shape[1]
    _conv_heads_kernel[(2 * k_heads + v_heads, len(chunks[0]), CHUNK // TOKENS)](
        projected, weight, pool, src, dst, starts, *chunks, out, projected.stride(0), k_heads, v_heads, dim, taps,
        triton.next_power_of_2(taps), TOKENS, num_warps=max(1, TOKENS * dim // ELEMENTS_PER_WARP),
    )  # fmt: skip


def short_conv(
    bcx: torch.Tensor, weight: torch.Tensor, pool: torch.Tensor, src: torch.Tensor, dst: torch.Tensor,
    starts: torch.Tensor, chunks: tuple[torch.Tensor, torch.Tensor] | None, out: torch.Tensor, *, early: bool = False,
) -> None:  # fmt: skip
    """Compute `RecurrenceOps.short_conv`; nothing is read by the host.

    Args:
        bcx: [T, 3 * channels], the features of a token contiguous.
        weight, pool, src, dst, starts, chunks: as for `convolve_heads`; chunks is None if each row has one token.
        out: [T, channels], contiguous; the tokens of the chunks are written.
        early: see `CudaOps`.
    """
    size, taps = weight.shape
    programs = len(src if chunks is None else chunks[0])
    if not programs:
        return
    tokens, block = (1, SINGLE_CHANNELS) if chunks is None else (TOKENS, CHANNELS)
    parts = 1 if chunks is None else CHUNK // TOKENS
    _short_conv_kernel[(triton.cdiv(size, block), programs, parts)](
        bcx, weight, pool, src, dst, starts, *(chunks or (src, src)), out, bcx.stride(0), size, taps,
        triton.next_power_of_2(taps), tokens, block, chunks is not None, early,
        num_warps=max(1, tokens * block // ELEMENTS_PER_WARP), launch_pdl=early,
    )  # fmt: skip
