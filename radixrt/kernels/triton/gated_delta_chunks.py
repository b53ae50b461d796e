"""The gated delta rule over prompts, by chunks of 32 tokens (Yang et al., arXiv 2406.06484 and 2412.06464).

Within a chunk, with G the cumulative logarithms of the decay and L the strictly lower triangle of
beta_i * (k_i . k_j) * exp(G_i - G_j), the values that the tokens add to the state S [v_dim, k_dim] before the chunk are

    added = u - w S^T      with  u = (I + L)^-1 (beta * v)  and  w = (I + L)^-1 (beta * exp(G) * k)
    out_i = exp(G_i) * S q_i + sum over j <= i of exp(G_i - G_j) * (q_i . k_j) * added_j
    S     = exp(G_end) * S + sum over i of exp(G_end - G_i) * added_i k_i^T

One kernel computes u, w and the weights of that sum for all chunks at once. Another one goes through the chunks of each
row in order, with a part of S in registers. The last kernel normalizes and gates the result.

Matrix multiplications take operands in the dtype of activations and add in float32. The inverse is computed with
float32 operands, by substitution: within blocks of 16 tokens row by row, then block by block. Products of powers of L
would need fewer steps, but their terms grow beyond float32 for prompts that repeat a token.

No matrix multiplication has 64 rows, so none uses Hopper's wgmma: with chunks of 64 tokens, Triton 3.6 compiled these
kernels into wrong ones for 16-bit dtypes, as it does flash-linear-attention's (fla-org/flash-linear-attention#984).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixrt.kernels.triton.activation import silu
from radixrt.kernels.triton.causal_conv import CHUNK as CHUNK_TOKENS
from radixrt.kernels.triton.gated_delta_decode import SCRATCH, log_decay

CHUNK: tl.constexpr = tl.constexpr(CHUNK_TOKENS)
BLOCK: tl.constexpr = tl.constexpr(16)

V_BLOCK = 32
"""Rows of the state for each program that goes through a row's chunks: four programs for each head of 128, so that one
row of a model with 32 value heads has one program for each processor."""
STAGES = 2
"""Chunks whose inputs are in flight."""
NUM_WARPS = 4


@triton.jit
def _load_chunk(starts, chunk_row, chunk_first, chunk):
    """Return the tokens of a chunk, int64 [CHUNK], and a mask of those that there are."""
    row = tl.load(chunk_row + chunk)
    t = tl.load(chunk_first + chunk) + tl.arange(0, CHUNK)
    begin = tl.load(starts + row).to(tl.int64)
    return begin + t, begin + t < tl.load(starts + row + 1)


@triton.jit
def _invert(lower):
    """Return (I + lower)^-1 for a strictly lower triangular matrix, float32 [CHUNK, CHUNK]."""
    BLOCKS: tl.constexpr = CHUNK // BLOCK
    at = tl.arange(0, CHUNK)
    r = tl.arange(0, BLOCK)
    # The blocks on the diagonal, one above the other. Reshaping to four dimensions would need hundreds of registers.
    inner = tl.gather(lower, (at // BLOCK * BLOCK)[:, None] + r[None, :], axis=1)
    inner = tl.reshape(inner, [BLOCKS, BLOCK, BLOCK])
    inverse = tl.where(r[None, :, None] == r[None, None, :], 1.0, tl.zeros([BLOCKS, BLOCK, BLOCK], tl.float32))
    for i in range(1, BLOCK):
        here = (r == i)[None, :, None]
        row = tl.sum(tl.where(here, inner, 0.0), axis=1)
        inverse = tl.where(here, inverse - tl.sum(row[:, :, None] * inverse, axis=1)[:, None, :], inverse)
    column = tl.zeros([CHUNK, 1], tl.int32) + (at % BLOCK)[None, :]
    diagonal = tl.gather(tl.reshape(inverse, [CHUNK, BLOCK]), column, axis=1)
    diagonal = tl.where((at // BLOCK)[:, None] == (at // BLOCK)[None, :], diagonal, 0.0)
    below = tl.where((at // BLOCK)[:, None] > (at // BLOCK)[None, :], lower, 0.0)
    step = tl.dot(diagonal, below, input_precision="tf32x3")
    found = diagonal
    # After n steps the first n + 1 rows of blocks are final.
    for _ in tl.static_range(BLOCKS - 1):
        found = diagonal - tl.dot(step, found, input_precision="tf32x3")
    return found


@triton.jit
def _delta_chunk_kernel(
    qkv, projected, a_log, dt_bias, starts, chunk_row, chunk_first, decays, w, attention, x_stride,
    K_HEADS: tl.constexpr, V_HEADS: tl.constexpr, DIM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    ALL: tl.constexpr = (2 * K_HEADS + V_HEADS) * DIM
    dtype: tl.constexpr = qkv.dtype.element_ty
    head = tl.program_id(0)
    key_head = head // (V_HEADS // K_HEADS)
    token, inside = _load_chunk(starts, chunk_row, chunk_first, tl.program_id(1))
    i = tl.arange(0, CHUNK)
    dims = tl.arange(0, DIM)
    gates = projected + token * x_stride + ALL + V_HEADS * DIM + head
    b = tl.load(gates, mask=inside, other=0.0).to(tl.float32)
    a = tl.load(gates + V_HEADS, mask=inside, other=0.0).to(tl.float32)
    # Tokens past the row's end change nothing: beta is 0, and so is the logarithm of their decay.
    beta = tl.where(inside, tl.sigmoid(b), 0.0)
    since = tl.cumsum(tl.where(inside, log_decay(a, tl.load(a_log + head), tl.load(dt_bias + head)), 0.0), axis=0)
    tl.store(decays + token * V_HEADS + head, since, mask=inside)

    q_at = qkv + token[:, None] * ALL + key_head * DIM + dims[None, :]
    q = tl.load(q_at, mask=inside[:, None], other=0.0)
    k = tl.load(q_at + K_HEADS * DIM, mask=inside[:, None], other=0.0)
    seen = i[:, None] >= i[None, :]
    between = tl.exp(tl.where(seen, since[:, None] - since[None, :], 0.0))
    weights = tl.where(seen, tl.dot(q, tl.trans(k), input_precision=PRECISION) * between, 0.0)
    attention_at = attention + (token * V_HEADS + head)[:, None] * CHUNK + i[None, :]
    tl.store(attention_at, weights.to(dtype), mask=inside[:, None])

    products = tl.dot(k, tl.trans(k), input_precision=PRECISION) * between * beta[:, None]
    inverse = _invert(tl.where(i[:, None] > i[None, :], products, 0.0)) * beta[None, :]
    v_at = qkv + token[:, None] * ALL + (2 * K_HEADS + head) * DIM + dims[None, :]
    v = tl.load(v_at, mask=inside[:, None], other=0.0)
    u = tl.dot(inverse.to(dtype), v, input_precision=PRECISION)
    tl.store(v_at, u.to(dtype), mask=inside[:, None])
    read = tl.dot((inverse * tl.exp(since)[None, :]).to(dtype), k, input_precision=PRECISION)
    w_at = w + (token * V_HEADS + head)[:, None] * DIM + dims[None, :]
    tl.store(w_at, read.to(dtype), mask=inside[:, None])


@triton.jit
def _delta_rows_kernel(
    qkv, decays, w, attention, states, src, dst, starts, which, out,
    K_HEADS: tl.constexpr, V_HEADS: tl.constexpr, DIM: tl.constexpr, V_BLOCK: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    ALL: tl.constexpr = (2 * K_HEADS + V_HEADS) * DIM
    PARTS: tl.constexpr = DIM // V_BLOCK
    dtype: tl.constexpr = qkv.dtype.element_ty
    head = tl.program_id(0) // PARTS
    key_head = head // (V_HEADS // K_HEADS)
    row = tl.load(which + tl.program_id(1))
    begin, end = tl.load(starts + row).to(tl.int64), tl.load(starts + row + 1).to(tl.int64)
    source, target = tl.load(src + row).to(tl.int64), tl.load(dst + row).to(tl.int64)
    dims = tl.arange(0, DIM)
    v_dims = tl.program_id(0) % PARTS * V_BLOCK + tl.arange(0, V_BLOCK)
    i = tl.arange(0, CHUNK)
    state_at = v_dims[:, None] * DIM + dims[None, :]
    state = tl.load(states + (source * V_HEADS + head) * (DIM * DIM) + state_at)
    for chunk in tl.range(0, tl.cdiv(end - begin, CHUNK).to(tl.int32), num_stages=STAGES):
        token = begin + chunk * CHUNK + i
        inside = token < end
        last_token = tl.minimum(begin + (chunk + 1) * CHUNK, end) - 1
        place = token * V_HEADS + head
        since = tl.load(decays + place, mask=inside, other=0.0)
        whole = tl.load(decays + last_token * V_HEADS + head)
        u_at = qkv + token[:, None] * ALL + (2 * K_HEADS + head) * DIM + v_dims[None, :]
        q_at = qkv + token[:, None] * ALL + key_head * DIM + dims[None, :]
        read = tl.load(w + place[:, None] * DIM + dims[None, :], mask=inside[:, None], other=0.0)
        u = tl.load(u_at, mask=inside[:, None], other=0.0).to(tl.float32)
        q = tl.load(q_at, mask=inside[:, None], other=0.0)
        k = tl.load(q_at + K_HEADS * DIM, mask=inside[:, None], other=0.0)
        weights = tl.load(attention + place[:, None] * CHUNK + i[None, :], mask=inside[:, None], other=0.0)
        before = tl.trans(state.to(dtype))
        added = u - tl.dot(read, before, input_precision=PRECISION)
        result = tl.dot(q, before, input_precision=PRECISION) * tl.exp(since)[:, None]
        result = tl.dot(weights, added.to(dtype), result, input_precision=PRECISION)
        tl.store(out + place[:, None] * DIM + v_dims[None, :], result.to(dtype), mask=inside[:, None])
        faded = (added * tl.exp(tl.where(inside, whole - since, 0.0))[:, None]).to(dtype)
        state = tl.dot(tl.trans(faded), k, state * tl.exp(whole), input_precision=PRECISION)
    if target != SCRATCH:
        tl.store(states + (target * V_HEADS + head) * (DIM * DIM) + state_at, state)


@triton.jit
def _gated_norm_kernel(
    projected, weight, starts, chunk_row, chunk_first, out, x_stride, eps,
    K_HEADS: tl.constexpr, V_HEADS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    ALL: tl.constexpr = (2 * K_HEADS + V_HEADS) * DIM
    head = tl.program_id(0)
    token, inside = _load_chunk(starts, chunk_row, chunk_first, tl.program_id(1))
    column = head * DIM + tl.arange(0, DIM)[None, :]
    mask = inside[:, None] & (column >= 0)
    x_at = out + token[:, None] * (V_HEADS * DIM) + column
    x = tl.load(x_at, mask=mask, other=0.0).to(tl.float32)
    z = tl.load(projected + token[:, None] * x_stride + ALL + column, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / DIM + eps)[:, None] * tl.load(weight + tl.arange(0, DIM))[None, :]
    tl.store(x_at, (x * scale * silu(z)).to(out.dtype.element_ty), mask=mask)


def gated_delta_chunks(
    qkv: torch.Tensor, projected: torch.Tensor, k_heads: int, v_heads: int, a_log: torch.Tensor, dt_bias: torch.Tensor,
    norm_weight: torch.Tensor, eps: float, states: torch.Tensor, src: torch.Tensor, dst: torch.Tensor,
    starts: torch.Tensor, which: torch.Tensor, chunks: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor,
) -> None:  # fmt: skip
    """Compute the delta rule, the norm and the gate of `RecurrenceOps.gated_delta_net`; nothing is read by the host.

    Args:
        qkv: [T, channels], contiguous, as `convolve_heads` left it; the heads of v are overwritten by u.
        projected, a_log, dt_bias, norm_weight, eps: as for `gated_delta_decode`.
        states: float32 [slots, v_heads, dim, dim], contiguous; dim is 16, 32, 64 or 128.
        src, dst, starts: int, of the `StateRows`.
        which: int32 [n], the rows whose tokens the chunks hold, longest first.
        chunks: as for `convolve_heads`.
        out: [T, v_heads * dim], contiguous; the chunks' tokens are written.
    """
    tokens, dim, device = len(qkv), states.shape[3], qkv.device
    decays = torch.empty(tokens, v_heads, dtype=torch.float32, device=device)
    w = torch.empty(tokens, v_heads, dim, dtype=qkv.dtype, device=device)
    attention = torch.empty(tokens, v_heads, CHUNK.value, dtype=qkv.dtype, device=device)
    precision = "tf32x3" if qkv.dtype == torch.float32 else "tf32"
    grid = (v_heads, len(chunks[0]))
    stride = projected.stride(0)
    _delta_chunk_kernel[grid](
        qkv, projected, a_log, dt_bias, starts, *chunks, decays, w, attention, stride, k_heads, v_heads, dim, precision,
        num_warps=NUM_WARPS,
    )  # fmt: skip
    block = min(dim, V_BLOCK)
    _delta_rows_kernel[(v_heads * (dim // block), len(which))](
        qkv, decays, w, attention, states, src, dst, starts, which, out, k_heads, v_heads, dim, block, STAGES,
        precision, num_warps=NUM_WARPS,
    )  # fmt: skip
    _gated_norm_kernel[grid](
        projected, norm_weight, starts, *chunks, out, stride, eps, k_heads, v_heads, dim,
        num_warps=max(1, CHUNK.value * dim // 2048),
    )  # fmt: skip
