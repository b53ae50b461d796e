"""Matrix-vector multiplication for one token or a few: the linear layers of a small decode step.

Such a multiplication is bound by reading the weight, so the memory bandwidth must be saturated from the first
microsecond on. Each warp computes whole rows of the weight, with several 16-byte loads of each thread in flight and the
sums in registers. Sums are in float32, in an order that depends on the sizes alone, and are rounded once.
"""

# mypy: disable-error-code="assignment"
# A kernel's tuples grow while it is compiled, one element for each token.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.triton.all_reduce import send_arguments
from radixrt.kernels.triton.symmetric_memory import SymmetricMemory, first_slot, load_epoch, peer_slots, send_values

MAX_TOKENS = 4
MAX_TOKENS_OF_LARGE = 2
LARGE_ELEMENTS = 3_500_000
MAX_ELEMENTS = 120_000_000
"""Limits of `wins`."""

ALIGNMENT = 8
"""Columns come in multiples of this, so that rows of 2-byte elements start at multiples of 16 bytes."""

NUM_WARPS = 4
LANE_BYTES = 16
LANES = 32

SMS = 132
REGISTERS = 65536
"""SMs of an H100 or H200, and registers of an SM; on other GPUs programs only fit less well."""

FEW_ROWS = SMS * 16
"""Rows of the weight up to which warps are few, so that each loads as much of its row at once as it can."""

MANY_ROWS = SMS * 32
"""Rows up to which warps of one row each are all resident at once."""

SHORT = 2048
"""Columns up to which a thread has all its loads in flight."""


@triton.jit
def _load_step(base, offsets, start, SIZE: tl.constexpr, UNROLL: tl.constexpr, CHUNK: tl.constexpr, ONCE: tl.constexpr):
    """Load a step's [warps, UNROLL, CHUNK] of the rows that start at `offsets`; ONCE: without keeping it in a cache.

    In this order of dimensions a warp's lanes lie along a chunk, and a thread has 16 bytes of each chunk.
    """
    chunk = tl.arange(0, UNROLL)[None, :, None] * CHUNK
    at = start + chunk + tl.arange(0, CHUNK)[None, None, :]
    where = base + offsets[:, None, None] + at
    policy: tl.constexpr = "evict_first" if ONCE else ""
    if SIZE % (UNROLL * CHUNK) == 0:
        return tl.load(where, eviction_policy=policy)
    return tl.load(where, mask=at < SIZE, other=0.0, eviction_policy=policy)


@triton.jit
def _add_step(
    first_sums, second_sums, first, second, x, copies, start,
    SIZE: tl.constexpr, TOKENS: tl.constexpr, PAIRS: tl.constexpr, UNROLL: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Add one step to the sums of all tokens."""
    first = first.to(tl.float32)
    second = second.to(tl.float32)
    first_out = ()
    second_out = ()
    for token in tl.static_range(TOKENS):
        part = _load_step(x + token * SIZE, copies, start, SIZE, UNROLL, CHUNK, False).to(tl.float32)
        first_out += (first_sums[token] + tl.sum(first * part, axis=1),)
        if PAIRS:
            second_out += (second_sums[token] + tl.sum(second * part, axis=1),)
        else:
            second_out += (second_sums[token],)
    return first_out, second_out


@triton.jit
def _gemv_kernel(
    x, weight, bias, out, addresses, turns, num_rows, copy_stride,
    SIZE: tl.constexpr, TOKENS: tl.constexpr, PAIRS: tl.constexpr, GATED: tl.constexpr, HAS_BIAS: tl.constexpr,
    UNROLL: tl.constexpr, CHUNK: tl.constexpr, WARPS: tl.constexpr, EARLY: tl.constexpr, RANK: tl.constexpr,
    RANKS: tl.constexpr, PART_BYTES: tl.constexpr, TRIPS: tl.constexpr,
):  # fmt: skip
    """Compute out [TOKENS, num_rows]; a warp's second row is WARPS further on, or the one of `up` if GATED. With RANKS
    > 1, out is an addend of an all-reduce, and is also sent to the other ranks.

    copy_stride: 0. Each warp reads x for itself; a stride that is known only at run time keeps the compiler from
    distributing the load over the warps and exchanging x through shared memory.
    """
    STEP: tl.constexpr = UNROLL * CHUNK
    STEPS: tl.constexpr = (SIZE + STEP - 1) // STEP
    per_program: tl.constexpr = 2 * WARPS if PAIRS and not GATED else WARPS
    row = tl.program_id(0) * per_program + tl.arange(0, WARPS)
    other = row + (num_rows if GATED else WARPS)
    # Warps past the end compute the last row once more: without a mask there is nothing to wait for before the loads.
    first_row = tl.minimum(row, num_rows - 1)
    second_row = tl.minimum(other, 2 * num_rows - 1) if GATED else tl.minimum(other, num_rows - 1)
    first_at = first_row.to(tl.int64) * SIZE
    second_at = second_row.to(tl.int64) * SIZE
    copies = tl.arange(0, WARPS) * copy_stride

    # The weight first: it depends on no kernel and is on its way while the one before ends.
    first = _load_step(weight, first_at, 0, SIZE, UNROLL, CHUNK, True)
    second = _load_step(weight, second_at, 0, SIZE, UNROLL, CHUNK, True) if PAIRS else first
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()  # programs of the next kernel fit on the SMs beside these and wait for their end
    if RANKS > 1:
        half = first_slot(load_epoch(turns), RANKS)
    zero = tl.zeros((WARPS, CHUNK), tl.float32)
    first_sums = ()
    second_sums = ()
    for _ in tl.static_range(TOKENS):
        first_sums += (zero,)
        second_sums += (zero,)
    for step in range(STEPS - 1):
        start = step * STEP
        next_first = _load_step(weight, first_at, start + STEP, SIZE, UNROLL, CHUNK, True)
        next_second = _load_step(weight, second_at, start + STEP, SIZE, UNROLL, CHUNK, True) if PAIRS else next_first
        first_sums, second_sums = _add_step(
            first_sums, second_sums, first, second, x, copies, start, SIZE, TOKENS, PAIRS, UNROLL, CHUNK
        )
        first, second = next_first, next_second
    first_sums, second_sums = _add_step(
        first_sums, second_sums, first, second, x, copies, (STEPS - 1) * STEP, SIZE, TOKENS, PAIRS, UNROLL, CHUNK
    )
    for token in tl.static_range(TOKENS):
        first_value = tl.sum(first_sums[token], axis=1)
        if HAS_BIAS:
            first_value += tl.load(bias + first_row).to(tl.float32)
        to = token * num_rows
        if RANKS > 1:
            sent = tl.full((1,), token, tl.int32)
            places, elsewhere = peer_slots(
                addresses, half, sent, num_rows, RANK, RANKS, PART_BYTES, TRIPS, out.dtype.element_ty
            )
        if PAIRS:
            second_value = tl.sum(second_sums[token], axis=1)
            if HAS_BIAS:
                second_value += tl.load(bias + second_row).to(tl.float32)
            if GATED:
                first_value = first_value / (1.0 + tl.exp(-first_value)) * second_value
            else:
                second_value = second_value.to(out.dtype.element_ty)
                if RANKS > 1:
                    second_value = send_values(places, elsewhere, other, second_value, other < num_rows)
                tl.store(out + to + other, second_value, mask=other < num_rows)
        first_value = first_value.to(out.dtype.element_ty)
        if RANKS > 1:
            first_value = send_values(places, elsewhere, row, first_value, row < num_rows)
        tl.store(out + to + row, first_value, mask=row < num_rows)


def wins(tokens: int, rows: int, columns: int) -> bool:
    """Return True if x [tokens, columns] times a weight [rows, columns] is faster by these kernels than by cuBLAS.

    Measured on an H200 in a CUDA graph, bfloat16, microseconds of this kernel and of cuBLAS
    (`python -m benchmarks.kernels.small_kernels --only matrix-vector`):

    ============  ==========  ===========  ===========
    rows x cols   one token   two tokens   four tokens
    ============  ==========  ===========  ===========
    1024 x 2048    3.2  12.7    3.3  13.0    4.1   8.5
    1024 x 3072    3.7   7.4    4.0   7.6    5.6   7.6
    4096 x 1024    3.8   5.3    4.4   5.3    5.6   5.3
    6144 x 1024    5.1   6.3    6.0   6.3    7.5   6.2
    4096 x 4096    9.9  13.6   11.2  13.4   16.0  13.5
    6144 x 4096   13.9  16.1   17.3  16.6   18.2  16.0
    4096 x 14336  28.4  32.3   30.7  32.6   45.0  32.7
    28672 x 4096  56.5  57.2   59.4  57.6   74.5  57.3
    ============  ==========  ===========  ===========

    The last one, fused with silu and multiplication, takes 57.5 against 62.0. An output head is larger than any of
    these, and cuBLAS reads it as fast as memory allows.
    """
    elements = rows * columns
    limit = MAX_TOKENS if elements <= LARGE_ELEMENTS else MAX_TOKENS_OF_LARGE
    return 0 < tokens <= limit and elements <= MAX_ELEMENTS


def supports(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return True if the kernels support these: contiguous matrices of one floating dtype, columns in eights."""
    return (
        x.ndim == 2
        and x.shape[1] % ALIGNMENT == 0
        and x.dtype == weight.dtype
        and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and x.is_contiguous()
        and weight.is_contiguous()
    )


def gemv(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, early: bool = False,
    send: SymmetricMemory | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return x W^T + bias [T, M] in x's dtype, for x [T, K], weight [M, K], bias [M] and T of 1 to MAX_TOKENS.

    Args:
        early: see `CudaOps`.
        send: see `skinny_gemm.multiply`.
    """
    return _launch(x, weight, bias, weight.shape[0], gated=False, early=early, send=send)


def gate_up_silu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, early: bool = False) -> torch.Tensor:
    """Return silu(gate) * up [T, n], where `gemv` would return gate, then up, [T, 2 * n]; neither is rounded.

    Args:
        early: see `CudaOps`.
    """
    return _launch(x, weight, bias, weight.shape[0] // 2, gated=True, early=early)


def _launch(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rows: int, *, gated: bool, early: bool,
    send: SymmetricMemory | None = None,
) -> torch.Tensor:  # fmt: skip
    tokens, size = x.shape
    out = torch.empty(tokens, rows, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    pairs = gated or _pairs(tokens, rows, size)
    chunk = LANES * LANE_BYTES // x.element_size()
    programs = triton.cdiv(rows, 2 * NUM_WARPS if pairs and not gated else NUM_WARPS)
    pointers, place = send_arguments(send, x, rows)
    _gemv_kernel[(programs,)](
        x, weight, weight if bias is None else bias, out, *pointers, rows, 0,
        size, tokens, pairs, gated, bias is not None, _unroll(tokens, rows, size, pairs), chunk, NUM_WARPS, early,
        *place,
        num_warps=NUM_WARPS, maxnreg=_max_registers(tokens, programs), launch_pdl=early,
    )  # fmt: skip
    return out


def _pairs(tokens: int, rows: int, columns: int) -> bool:
    """Return True if a warp computes two rows, which share the loads of x."""
    return rows > MANY_ROWS or (rows > FEW_ROWS and (tokens > 1 or columns <= SHORT))


def _unroll(tokens: int, rows: int, columns: int, pairs: bool) -> int:
    """Chunks of a row in one step. More chunks mean more loads in flight and more registers, so fewer warps per SM."""
    if pairs:
        return 4 if tokens <= 2 and columns <= SHORT // tokens else 2
    return 8 if tokens <= 2 and rows <= FEW_ROWS and columns > 1024 else 4


def _max_registers(tokens: int, programs: int) -> int | None:
    """Registers of a thread that let all programs run at once: a second wave of a few would take as long again.

    None where the kernel would have to spill, or has registers to spare.
    """
    each = triton.cdiv(programs, SMS)
    found = REGISTERS // (each * NUM_WARPS * LANES) // 8 * 8
    least = {1: 64, 2: 96}.get(tokens)
    return found if least is not None and least <= found < 256 else None
