"""Norm of the heads, rotary embedding and store into the KV pool, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from radixrt.kernels.triton.fp8 import clamp_to_fp8

HEADS = 8
"""Most heads per program. A token of 32 + 2 * 8 heads is 6 programs: enough for one token, few enough for 8192."""

ELEMENTS_PER_WARP = 256
"""Elements of half the heads: 16 bytes of bfloat16 per thread in each half."""

MAX_HEAD_DIM = 512
POOL_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn)


@triton.jit
def _store_halves(target, low, high, HALF: tl.constexpr, inside, CLAMP: tl.constexpr):
    if CLAMP:
        low, high = clamp_to_fp8(low), clamp_to_fp8(high)
    tl.store(target, low.to(target.dtype.element_ty), mask=inside)
    tl.store(target + HALF, high.to(target.dtype.element_ty), mask=inside)


@triton.jit
def _prepare_heads_kernel(
    qkv, positions, table, q_weight, k_weight, slots, q_out, k_out, v_out, eps, token_stride, slot_stride,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr, HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr, STORE: tl.constexpr, CLAMP: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    # Programs of a token, in order: the heads of q, then of k, then (where they are stored) of v.
    Q_PARTS: tl.constexpr = (Q_HEADS + HEADS - 1) // HEADS
    KV_PARTS: tl.constexpr = (KV_HEADS + HEADS - 1) // HEADS
    DIM: tl.constexpr = 2 * HALF
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    is_q = part < Q_PARTS
    is_v = part >= Q_PARTS + KV_PARTS
    first = tl.where(is_q, 0, tl.where(is_v, Q_HEADS + KV_HEADS, Q_HEADS))
    parts_before = tl.where(is_q, 0, tl.where(is_v, Q_PARTS + KV_PARTS, Q_PARTS))
    head = (part - parts_before) * HEADS + tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (head < tl.where(is_q, Q_HEADS, KV_HEADS)) & (column < HALF)
    at = head * DIM + column
    if EARLY:
        gdc_wait()
    source = qkv + token * token_stride + first * DIM + at
    low = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    slot = token
    if STORE:
        slot = tl.load(slots + token).to(tl.int64)
    if is_v:
        _store_halves(v_out + slot * slot_stride + at, low, high, HALF, inside, CLAMP)
    else:
        # Values that all heads share are loaded once per head, from the cache: loaded as one row they would have to be
        # exchanged between threads through shared memory, which takes longer.
        shared = tl.zeros([HEADS, BLOCK], tl.int32) + column
        row = table + tl.load(positions + token).to(tl.int64) * (4 * PAIRS)
        turned = inside & (column < PAIRS)
        cos = tl.load(row + shared, mask=turned, other=1.0).to(tl.float32)
        # The second half of the table's sines, which is not negated.
        sin = tl.load(row + 3 * PAIRS + shared, mask=turned, other=0.0).to(tl.float32)
        if NORM:
            weight = k_weight
            if is_q:
                weight = q_weight
            low_weight = tl.load(weight + shared, mask=inside, other=0.0).to(tl.float32)
            high_weight = tl.load(weight + HALF + shared, mask=inside, other=0.0).to(tl.float32)
            rms = tl.rsqrt(tl.sum(low * low + high * high, axis=1) / DIM + eps)[:, None]
            low = low * rms * low_weight
            high = high * rms * high_weight
        rotated_low = low * cos - high * sin
        rotated_high = high * cos + low * sin
        if is_q:
            _store_halves(q_out + token * (Q_HEADS * DIM) + at, rotated_low, rotated_high, HALF, inside, False)
        else:
            _store_halves(k_out + slot * slot_stride + at, rotated_low, rotated_high, HALF, inside, CLAMP)


def supports(
    qkv: torch.Tensor,
    table: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    pool: tuple[torch.Tensor, torch.Tensor] | None,
) -> bool:
    """Return True if `prepare_heads` supports these arguments.

    It needs heads of an even size up to MAX_HEAD_DIM, those of a token contiguous, norms for both q and k or for
    neither, and pools of equal strides whose slots are contiguous, in one of POOL_DTYPES.
    """
    dim = qkv.shape[2]
    if dim % 2 or dim > MAX_HEAD_DIM or qkv.stride()[1:] != (dim, 1) or not table.is_contiguous():
        return False
    if (q_weight is None) != (k_weight is None):
        return False
    return pool is None or (
        pool[0].stride() == pool[1].stride()
        and pool[0].stride()[1:] == (dim, 1)
        and pool[0].dtype == pool[1].dtype
        and pool[0].dtype in POOL_DTYPES
    )


def prepare_heads(
    qkv: torch.Tensor,
    num_heads: int,
    positions: torch.Tensor,
    table: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    eps: float,
    pool: tuple[torch.Tensor, torch.Tensor] | None,
    slots: torch.Tensor,
    early: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Compute `LayerOps.prepare_heads`, in float32 from the projection to the stored values.

    Args:
        early: see `CudaOps`.

    Returns:
        q [T, num_heads, head_dim], contiguous, in qkv's dtype; and k and v, or None for both if they are in the pool.
    """
    tokens, all_heads, dim = qkv.shape
    kv_heads = (all_heads - num_heads) // 2
    q = torch.empty(tokens, num_heads, dim, dtype=qkv.dtype, device=qkv.device)
    if pool is None:
        k = torch.empty(tokens, kv_heads, dim, dtype=qkv.dtype, device=qkv.device)
        k_out, v_out, stride = k, k, kv_heads * dim
    else:
        (k_out, v_out), stride = pool, pool[0].stride(0)
    if tokens:
        block = triton.next_power_of_2(dim // 2)
        heads = min(HEADS, triton.next_power_of_2(max(num_heads, kv_heads)))
        parts = triton.cdiv(num_heads, heads) + triton.cdiv(kv_heads, heads) * (1 if pool is None else 2)
        _prepare_heads_kernel[(tokens, parts)](
            qkv, positions, table, qkv if q_weight is None else q_weight, qkv if k_weight is None else k_weight, slots,
            q, k_out, v_out, eps, qkv.stride(0), stride, num_heads, kv_heads, dim // 2, table.shape[2] // 2, heads,
            block, q_weight is not None, pool is not None, k_out.dtype == torch.float8_e4m3fn, early,
            num_warps=max(1, heads * block // ELEMENTS_PER_WARP), launch_pdl=early,
        )  # fmt: skip
    if pool is None:
        return q, k, qkv[:, num_heads + kv_heads :]
    return q, None, None
