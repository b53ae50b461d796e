"""Experts of a few tokens: matrix-vector multiplications, each pair of token and expert by itself.

As in `gemv`, warps compute whole rows of the weights with several loads of each thread in flight. Two launches compute
everything: gate and up with their activation, and down with the weighted sum, in which a warp computes one column of
the result with all experts of its token. Tokens that are routed to the same expert read its weights again, from the L2
cache.
"""

# mypy: disable-error-code="assignment"
# A kernel's tuples grow while it is compiled, one element for each expert of a group.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.triton.activation import SILU, ExpertRule, gated
from radixrt.kernels.triton.gemv import ALIGNMENT, LANE_BYTES, LANES, NUM_WARPS, _add_step, _load_step

MAX_TOKENS = 4
GROUP = 4
"""Experts whose weights a thread of `down` has in flight."""
MAX_UNROLL = 4
"""Chunks of a row that it loads at once."""


@triton.jit
def _gate_up_kernel(
    x, weight, bias, experts, out, num_rows, copy_stride,
    SIZE: tl.constexpr, TOP_K: tl.constexpr, UNROLL: tl.constexpr, CHUNK: tl.constexpr, WARPS: tl.constexpr,
    ALPHA: tl.constexpr, LIMIT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute the gated product of one pair; a warp computes a row of gate and the same one of up.

    bias: float32 [E, 2 * num_rows], or None.
    ALPHA, LIMIT: see `activation.gated`.
    copy_stride: 0, see `gemv._gemv_kernel`.
    """
    STEP: tl.constexpr = UNROLL * CHUNK
    STEPS: tl.constexpr = (SIZE + STEP - 1) // STEP
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    pair = tl.program_id(1)
    row = tl.program_id(0) * WARPS + tl.arange(0, WARPS)
    # Warps past the end compute the last row once more.
    gate_row = tl.load(experts + pair).to(tl.int64) * 2 * num_rows + tl.minimum(row, num_rows - 1)
    gate_at = gate_row * SIZE
    up_at = gate_at + num_rows.to(tl.int64) * SIZE
    copies = tl.arange(0, WARPS) * copy_stride
    in_x = x + pair // TOP_K * SIZE
    gate = _load_step(weight, gate_at, 0, SIZE, UNROLL, CHUNK, True)
    up = _load_step(weight, up_at, 0, SIZE, UNROLL, CHUNK, True)
    zero = tl.zeros((WARPS, CHUNK), tl.float32)
    gates = (zero,)
    ups = (zero,)
    for step in range(STEPS - 1):
        start = step * STEP
        next_gate = _load_step(weight, gate_at, start + STEP, SIZE, UNROLL, CHUNK, True)
        next_up = _load_step(weight, up_at, start + STEP, SIZE, UNROLL, CHUNK, True)
        gates, ups = _add_step(gates, ups, gate, up, in_x, copies, start, SIZE, 1, True, UNROLL, CHUNK)
        gate, up = next_gate, next_up
    gates, ups = _add_step(gates, ups, gate, up, in_x, copies, (STEPS - 1) * STEP, SIZE, 1, True, UNROLL, CHUNK)
    gate_sum = tl.sum(gates[0], axis=1)
    up_sum = tl.sum(ups[0], axis=1)
    if bias is not None:
        gate_sum += tl.load(bias + gate_row)
        up_sum += tl.load(bias + gate_row + num_rows)
    value = gated(gate_sum, up_sum, ALPHA, LIMIT)
    tl.store(out + pair * num_rows + row, value.to(out.dtype.element_ty), mask=row < num_rows)


@triton.jit
def _down_kernel(
    x, weight, bias, experts, weights, out, num_rows, copy_stride,
    SIZE: tl.constexpr, TOP_K: tl.constexpr, GROUP: tl.constexpr, UNROLL: tl.constexpr, CHUNK: tl.constexpr,
    WARPS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute the weighted sum over the experts of one token; a warp computes a row of each expert's weight.

    bias: float32 [E, num_rows], or None.
    copy_stride: 0, see `gemv._gemv_kernel`.
    """
    STEP: tl.constexpr = UNROLL * CHUNK
    STEPS: tl.constexpr = (SIZE + STEP - 1) // STEP
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    token = tl.program_id(1)
    row = tl.program_id(0) * WARPS + tl.arange(0, WARPS)
    own = tl.minimum(row, num_rows - 1)
    copies = tl.arange(0, WARPS) * copy_stride
    total = tl.zeros((WARPS, CHUNK), tl.float32)
    offset = tl.zeros((WARPS,), tl.float32)
    if bias is not None:
        for j in tl.static_range(TOP_K):
            biased = tl.load(experts + token * TOP_K + j).to(tl.int64)
            offset += tl.load(weights + token * TOP_K + j) * tl.load(bias + biased * num_rows + own)
    for first in tl.static_range(0, TOP_K, GROUP):
        for step in range(STEPS):
            start = step * STEP
            loaded = ()
            for j in tl.static_range(GROUP):
                if first + j < TOP_K:
                    expert = tl.load(experts + token * TOP_K + first + j).to(tl.int64)
                    loaded += (_load_step(weight, (expert * num_rows + own) * SIZE, start, SIZE, UNROLL, CHUNK, True),)
            for j in tl.static_range(GROUP):
                if first + j < TOP_K:
                    pair = token * TOP_K + first + j
                    part = _load_step(x + pair * SIZE, copies, start, SIZE, UNROLL, CHUNK, False).to(tl.float32)
                    total += tl.load(weights + pair) * tl.sum(loaded[j].to(tl.float32) * part, axis=1)
    value = (tl.sum(total, axis=1) + offset).to(out.dtype.element_ty)
    tl.store(out + token * num_rows + row, value, mask=row < num_rows)


def supports(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> bool:
    """Return True if the kernels support these: few tokens, and rows of 16-byte pieces."""
    return 0 < x.shape[0] <= MAX_TOKENS and gate_up.shape[2] % ALIGNMENT == 0 and down.shape[2] % ALIGNMENT == 0


def run_experts(
    x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor,
    early: bool = False, rule: ExpertRule = SILU,
) -> torch.Tensor:  # fmt: skip
    """As `expert_gemm.run_experts`, for T of 1 to MAX_TOKENS; the sum is rounded once."""
    (tokens, top_k), hidden, columns = experts.shape, x.shape[1], down.shape[2]
    inner = torch.empty(tokens * top_k, columns, dtype=x.dtype, device=x.device)
    out = torch.empty_like(x)
    chunk = LANES * LANE_BYTES // x.element_size()
    _gate_up_kernel[(triton.cdiv(columns, NUM_WARPS), tokens * top_k)](
        x, gate_up, rule.gate_up_bias, experts, inner, columns, 0, hidden, top_k, _unroll(hidden, chunk), chunk,
        NUM_WARPS, rule.alpha, rule.limit, early, num_warps=NUM_WARPS, launch_pdl=early,
    )  # fmt: skip
    _down_kernel[(triton.cdiv(hidden, NUM_WARPS), tokens)](
        inner, down, rule.down_bias, experts, weights, out, hidden, 0, columns, top_k, GROUP, _unroll(columns, chunk),
        chunk, NUM_WARPS, early, num_warps=NUM_WARPS, launch_pdl=early,
    )  # fmt: skip
    return out


def _unroll(columns: int, chunk: int) -> int:
    chunks: int = triton.next_power_of_2(triton.cdiv(columns, chunk))
    return min(MAX_UNROLL, chunks)
