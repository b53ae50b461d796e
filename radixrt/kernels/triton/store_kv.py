"""Store of new keys and values into their slots of the KV pool."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixrt.kernels.triton.fp8 import clamp_to_fp8


@triton.jit
def _store_kv_kernel(
    k, v, k_pool, v_pool, slots, k_stride, v_stride, pool_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    CLAMP: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < SIZE
    target = tl.load(slots + token).to(tl.int64) * pool_stride + at
    key = tl.load(k + token * k_stride + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(v + token * v_stride + at, mask=inside, other=0.0).to(tl.float32)
    if CLAMP:
        key, value = clamp_to_fp8(key), clamp_to_fp8(value)
    tl.store(k_pool + target, key.to(k_pool.dtype.element_ty), mask=inside)
    tl.store(v_pool + target, value.to(v_pool.dtype.element_ty), mask=inside)


def store_kv(k: torch.Tensor, v: torch.Tensor, pool: tuple[torch.Tensor, torch.Tensor], slots: torch.Tensor) -> None:
    """Set pool[0][slots] = k and pool[1][slots] = v, in the pool's dtype; float8 clamped to its range.

    Args:
        k, v: [T, kv_heads, head_dim], the heads of a token contiguous, tokens at any stride.
        pool: keys and values [slots, kv_heads, head_dim], contiguous.
        slots: int64 [T].
    """
    tokens, heads, dim = k.shape
    size = heads * dim
    if tokens:
        _store_kv_kernel[(tokens,)](
            k, v, pool[0], pool[1], slots, k.stride(0), v.stride(0), pool[0].stride(0), size,
            triton.next_power_of_2(size), pool[0].dtype == torch.float8_e4m3fn, num_warps=4,
        )  # fmt: skip
