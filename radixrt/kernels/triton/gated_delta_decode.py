"""Gated delta net for rows of one token, in one launch: convolution, delta rule, norm and gate.

A program computes one value head of one row. It begins to load the head's state, 64 KiB for dims of 128, before
anything else: reading and writing states is nearly all that a decode step of such a layer does. The state passes
through registers once, because both things that are read from it are read before it changes:

    S k  and  S q,  from which  out = decay * S q + added * (k . q)  with  added = beta * (v - decay * S k)

The programs of the value heads that share a key head all need the convolution of its q and k. The one that has read
these inputs last writes them back, for the row may read and write the same slot.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.triton.activation import silu

SCRATCH: tl.constexpr = tl.constexpr(1)
"""`SCRATCH_STATE`: padding rows read the zeros of slot 0 instead, and write nothing."""
NORM_EPS: tl.constexpr = tl.constexpr(1e-6)

FEW_PROGRAMS = 512
"""Up to here all programs run at once, and each has its whole state in registers. More of them take turns, and more run
at once with a part of the state in registers and the next part on its way."""
FEW_WARP_ELEMENTS = 4096
MANY_WARP_ELEMENTS = 2048
"""Elements in registers per warp: 128 and 64 registers of a thread hold them."""
MANY_V_BLOCK = 32
"""Rows of the state that are in registers where programs take turns."""
MAX_DIM = 128


@triton.jit
def log_decay(a, a_log, dt_bias):
    """Return the logarithm of a head's decay, -exp(a_log) * softplus(a + dt_bias)."""
    x = a + dt_bias
    return -tl.exp(a_log) * (tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x))))


@triton.jit
def _load_window(x, conv_source, channel, TAPS: tl.constexpr, PADDED: tl.constexpr):
    """Load the inputs of a convolution, float32 [channels, PADDED], the oldest first, padded with zeros."""
    tap = tl.arange(0, PADDED)[None, :]
    earlier = tl.load(conv_source + channel[:, None] * (TAPS - 1) + tap, mask=tap < TAPS - 1, other=0.0)
    current = tl.load(x + channel[:, None] + tap * 0, mask=tap == TAPS - 1, other=0.0)
    return tl.where(tap < TAPS - 1, earlier.to(tl.float32), current.to(tl.float32))


@triton.jit
def _convolve(window, weight, channel, TAPS: tl.constexpr, PADDED: tl.constexpr):
    tap = tl.arange(0, PADDED)[None, :]
    taps = tl.load(weight + channel[:, None] * TAPS + tap, mask=tap < TAPS, other=0.0).to(tl.float32)
    return silu(tl.sum(window * taps, axis=1))


@triton.jit
def _store_window(window, conv_target, channel, TAPS: tl.constexpr, PADDED: tl.constexpr):
    """Store all inputs but the oldest."""
    tap = tl.arange(0, PADDED)[None, :]
    target = conv_target + channel[:, None] * (TAPS - 1) + tap - 1
    tl.store(target, window.to(conv_target.dtype.element_ty), mask=(tap > 0) & (tap < TAPS))


@triton.jit
def _gated_delta_decode_kernel(
    projected, conv_weight, a_log, dt_bias, norm_weight, conv_pool, states, src, dst, starts, which, arrived, out,
    x_stride, eps,
    K_HEADS: tl.constexpr, V_HEADS: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, TAPS: tl.constexpr,
    PADDED: tl.constexpr, V_BLOCK: tl.constexpr, LISTED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    SHARE: tl.constexpr = V_HEADS // K_HEADS
    CHANNELS: tl.constexpr = 2 * K_HEADS * K_DIM + V_HEADS * V_DIM
    head = tl.program_id(0)
    number = tl.program_id(1)
    row, token = number, number.to(tl.int64)
    if LISTED:
        row = tl.load(which + number)
        token = tl.load(starts + row).to(tl.int64)
    target = tl.load(dst + row).to(tl.int64)
    source = tl.where(target == SCRATCH, 0, tl.load(src + row).to(tl.int64))
    k_dims = tl.arange(0, K_DIM)
    part = tl.arange(0, V_BLOCK)
    at = part[:, None] * K_DIM + k_dims[None, :]
    state_source = states + (source * V_HEADS + head) * (V_DIM * K_DIM)
    state_target = states + (target * V_HEADS + head) * (V_DIM * K_DIM)
    # The last step wrote the state and the indices, and a step begins with launches that wait for it to end.
    state = tl.load(state_source + at)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()

    x = projected + token * x_stride
    conv_source = conv_pool + source * (CHANNELS * (TAPS - 1))
    conv_target = conv_pool + target * (CHANNELS * (TAPS - 1))
    q_channel = head // SHARE * K_DIM + k_dims
    k_channel = K_HEADS * K_DIM + q_channel
    first_v = 2 * K_HEADS * K_DIM + head * V_DIM
    q_window = _load_window(x, conv_source, q_channel, TAPS, PADDED)
    k_window = _load_window(x, conv_source, k_channel, TAPS, PADDED)
    q = _convolve(q_window, conv_weight, q_channel, TAPS, PADDED)
    k = _convolve(k_window, conv_weight, k_channel, TAPS, PADDED)
    q *= tl.rsqrt(tl.sum(q * q, axis=0) + NORM_EPS) * K_DIM**-0.5
    k *= tl.rsqrt(tl.sum(k * k, axis=0) + NORM_EPS)
    both = tl.sum(k * q, axis=0)
    gates = x + CHANNELS + V_HEADS * V_DIM + head
    beta = tl.sigmoid(tl.load(gates).to(tl.float32))
    decay = tl.exp(log_decay(tl.load(gates + V_HEADS).to(tl.float32), tl.load(a_log + head), tl.load(dt_bias + head)))

    results = ()
    square = 0.0
    for block in tl.static_range(V_DIM // V_BLOCK):
        offset = block * V_BLOCK * K_DIM
        following = state
        if block + 1 < V_DIM // V_BLOCK:
            following = tl.load(state_source + offset + V_BLOCK * K_DIM + at)
        v_channel = first_v + block * V_BLOCK + part
        v = _convolve(_load_window(x, conv_source, v_channel, TAPS, PADDED), conv_weight, v_channel, TAPS, PADDED)
        added = beta * (v - decay * tl.sum(state * k[None, :], axis=1))
        result = decay * tl.sum(state * q[None, :], axis=1) + added * both
        if target != SCRATCH:
            tl.store(state_target + offset + at, decay * state + added[:, None] * k[None, :])
        square += tl.sum(result * result, axis=0)
        results = results + (result,)  # type: ignore[assignment]  # noqa: RUF005 (no starred tuples)
        state = following

    v_channels = first_v + tl.arange(0, V_DIM)
    v_window = _load_window(x, conv_source, v_channels, TAPS, PADDED)
    tl.debug_barrier()  # all threads have read their inputs before any is overwritten
    if target != SCRATCH:
        _store_window(v_window, conv_target, v_channels, TAPS, PADDED)
        last = True
        if SHARE > 1:
            counter = arrived + number * K_HEADS + head // SHARE
            last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == SHARE - 1
            if last:
                tl.store(counter, 0)
        if last:
            _store_window(q_window, conv_target, q_channel, TAPS, PADDED)
            _store_window(k_window, conv_target, k_channel, TAPS, PADDED)

    scale = tl.rsqrt(square / V_DIM + eps)
    for block in tl.static_range(V_DIM // V_BLOCK):
        v_dims = block * V_BLOCK + part
        normed = results[block] * scale * tl.load(norm_weight + v_dims)
        z = tl.load(x + CHANNELS + head * V_DIM + v_dims).to(tl.float32)
        out_at = out + token * (V_HEADS * V_DIM) + head * V_DIM + v_dims
        tl.store(out_at, (normed * silu(z)).to(out.dtype.element_ty))


def gated_delta_decode(
    projected: torch.Tensor, k_heads: int, v_heads: int, conv_weight: torch.Tensor, a_log: torch.Tensor,
    dt_bias: torch.Tensor, norm_weight: torch.Tensor, eps: float, conv_pool: torch.Tensor, states: torch.Tensor,
    src: torch.Tensor, dst: torch.Tensor, starts: torch.Tensor, which: torch.Tensor | None, arrived: torch.Tensor,
    out: torch.Tensor, *, early: bool = False,
) -> None:  # fmt: skip
    """Compute `RecurrenceOps.gated_delta_net` for rows of one token; nothing is read by the host.

    Args:
        projected: [T, in_features], the features of a token contiguous.
        conv_weight, a_log, dt_bias, norm_weight, eps: of the `GatedDeltaWeights`, contiguous.
        conv_pool: [slots, channels, taps - 1], contiguous.
        states: float32 [slots, v_heads, v_dim, k_dim], contiguous; the dims are powers of two up to MAX_DIM.
        src, dst, starts: int, of the `StateRows`.
        which: int [n], the rows to compute; None for all of them, when row i is token i.
        arrived: int32 [at least rows * k_heads], zeros before the first call, and after each.
        out: [T, v_heads * v_dim], contiguous; the rows' tokens are written.
        early: see `CudaOps`.
    """
    v_dim, k_dim = states.shape[2:]
    taps = conv_weight.shape[1]
    rows = src if which is None else which
    if not len(rows):
        return
    few = v_heads * len(rows) <= FEW_PROGRAMS
    v_block = v_dim if few else min(v_dim, MANY_V_BLOCK)
    num_warps = max(1, v_block * k_dim // (FEW_WARP_ELEMENTS if few else MANY_WARP_ELEMENTS))
    _gated_delta_decode_kernel[(v_heads, len(rows))](
        projected, conv_weight, a_log, dt_bias, norm_weight, conv_pool, states, src, dst, starts, rows, arrived, out,
        projected.stride(0), eps, k_heads, v_heads, k_dim, v_dim, taps, triton.next_power_of_2(taps),
        v_block, which is not None, early, num_warps=num_warps, launch_pdl=early,
    )  # fmt: skip
