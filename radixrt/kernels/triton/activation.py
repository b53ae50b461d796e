"""SiLU-gated multiplication of a feed-forward layer."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.float8_rows import Float8Rows
from radixrt.kernels.triton.padding import empty_padded
from radixrt.kernels.triton.quantize import empty_rows, store_float8

SMALL_BLOCK = 1024
"""Columns per program: 16 bytes of bfloat16 for each of 128 threads, so that one row alone is many programs."""

LARGE_BLOCK = 2048
LARGE_FROM = 1 << 20
"""Elements of the result from which on the larger block is used: there are enough programs, and fewer cost less."""

NUM_WARPS = 4

MAX_FLOAT8_COLUMNS = 16384
"""Longest row that `silu_and_mul_float8` supports with one scale: a row is held in the registers of one program."""

FLOAT8_ELEMENTS_PER_WARP, FLOAT8_MAX_WARPS = 1024, 16
"""Of `silu_and_mul_float8`."""


class ExpertRule(NamedTuple):
    """Biases and activation of a mixture of experts.

    Attributes:
        gate_up_bias, down_bias: float32 [E, 2 * n] and [E, hidden]; None without biases.
        alpha, limit: see `gated`.
    """

    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    alpha: float = 1.0
    limit: float = 0.0


SILU = ExpertRule()
"""SiLU-gated, without biases."""


@triton.jit
def silu(x):
    """Return x * sigmoid(x)."""
    return x / (1.0 + tl.exp(-x))


@triton.jit
def gated(gate, up, ALPHA: tl.constexpr, LIMIT: tl.constexpr):
    """Return silu(gate) * up if LIMIT is 0 and ALPHA is 1, else (up + 1) * gate * sigmoid(ALPHA * gate), with gate at
    most LIMIT, and up between -LIMIT and LIMIT."""
    if LIMIT > 0:
        gate = tl.minimum(gate, LIMIT)
        up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT) + 1.0
    return gate / (1.0 + tl.exp(-ALPHA * gate)) * up


@triton.jit
def _silu_and_mul_kernel(gate_up, out, SIZE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    gate = tl.load(gate_up + row * (2 * SIZE) + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * SIZE) + SIZE + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + at, (silu(gate) * up).to(out.dtype.element_ty), mask=inside)


def silu_and_mul(gate_up: torch.Tensor, early: bool = False) -> torch.Tensor:
    """Return silu(gate) * up [T, n] for contiguous rows [T, 2 * n] of gate, then up; in float32, rounded once.

    Args:
        early: see `CudaOps`.
    """
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = empty_padded(rows, size, dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        large = rows * size >= LARGE_FROM and size % LARGE_BLOCK == 0
        block = LARGE_BLOCK if large else SMALL_BLOCK
        grid = (rows, triton.cdiv(size, block))
        _silu_and_mul_kernel[grid](gate_up, out, size, block, early, num_warps=NUM_WARPS, launch_pdl=early)
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _silu_and_mul_float8_kernel(
    gate_up, codes, scales, num_rows, SIZE: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    first = tl.program_id(1) * BLOCK
    at = first + tl.arange(0, BLOCK)
    inside = at < SIZE
    start = row.to(tl.int64) * (2 * SIZE)
    gate = tl.load(gate_up + start + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + start + SIZE + at, mask=inside, other=0.0).to(tl.float32)
    rounded = (silu(gate) * up).to(gate_up.dtype.element_ty).to(tl.float32)  # as a kernel of its own would read it
    store_float8(rounded, codes, scales, row, first, num_rows, SIZE, BLOCK, GROUP)


def quantizes(gate_up: torch.Tensor, group: int) -> bool:
    """Return True if `silu_and_mul_float8` supports these arguments."""
    return gate_up.is_contiguous() and (group > 0 or gate_up.shape[1] <= 2 * MAX_FLOAT8_COLUMNS)


def silu_and_mul_float8(gate_up: torch.Tensor, group: int, early: bool = False) -> Float8Rows:
    """Return `quantize_rows` of `silu_and_mul`, in one pass.

    Args:
        gate_up: contiguous rows [T, 2 * n]; n is a multiple of 64 and of the group, and without groups at most
            MAX_FLOAT8_COLUMNS.
        group: columns that share a scale; 0 for the whole row.
        early: see `CudaOps`.
    """
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    found = empty_rows(rows, size, group, gate_up.dtype, gate_up.device)
    if rows:
        block = LARGE_BLOCK if group else triton.next_power_of_2(size)
        warps = NUM_WARPS if group else min(FLOAT8_MAX_WARPS, max(1, block // FLOAT8_ELEMENTS_PER_WARP))
        _silu_and_mul_float8_kernel[(rows, triton.cdiv(size, block))](
            gate_up, found.codes, found.scales, found.scales.shape[1], size, block, group or block, early,
            num_warps=warps, launch_pdl=early,
        )  # fmt: skip
    return found
