"""Gather of the keys and values of a list of slots, for kernels that read them contiguously."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize_on_alignment=["slots"])
def _gather_kv_kernel(keys, values, slots, k_out, v_out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < SIZE
    source = tl.load(slots + i).to(tl.int64) * SIZE + at
    key = tl.load(keys + source, mask=inside, other=0.0)
    value = tl.load(values + source, mask=inside, other=0.0)
    tl.store(k_out + i * SIZE + at, key.to(k_out.dtype.element_ty), mask=inside)
    tl.store(v_out + i * SIZE + at, value.to(v_out.dtype.element_ty), mask=inside)


def gather_kv(
    pool: tuple[torch.Tensor, torch.Tensor], slots: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pool[0][slots] and pool[1][slots], [N, kv_heads, head_dim] each, converted to a dtype.

    Args:
        pool: keys and values [slots, kv_heads, head_dim], contiguous.
        slots: int [N].
    """
    keys, values = pool
    k, v = (torch.empty(len(slots), *x.shape[1:], dtype=dtype, device=x.device) for x in pool)
    size = keys.shape[1] * keys.shape[2]
    if len(slots):
        _gather_kv_kernel[(len(slots),)](keys, values, slots, k, v, size, triton.next_power_of_2(size), num_warps=4)
    return k, v
