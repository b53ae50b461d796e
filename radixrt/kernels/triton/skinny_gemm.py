"""Products of a weight matrix with some tokens to a hundred: the linear layers of a decode step of a batch.

Such a product is still a read of the weight, so each program keeps enough bytes of it in flight, and each byte of it is
read by one program, which multiplies it with all tokens. Where the weight has too few rows to keep all SMs busy, its
columns are split over programs too: each leaves its float32 sums in a workspace, and the last one of a tile to arrive
adds them up, always in the same order. Sums are rounded once, and only sizes decide their order.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from radixrt.kernels.triton.rank_memory import RankMemory, half_of, load_turn, part_places, send_part
from radixrt.kernels.triton.rank_sum import sending
from radixrt.kernels.triton.room import empty_with_room, with_room
from radixrt.kernels.triton.skinny_gemm_config import MAX_PARTS, MAX_TILES, MAX_TOKENS, Config, padded

ALIGNMENT = 8
"""Columns come in multiples of this, so that rows of 2-byte elements start at multiples of 16 bytes."""

WARP = 32
MIN_PIECE = 128
"""Columns of one prefetch, at least; more where that is enough for each thread to ask for one piece."""


class Workspace:
    """Where the parts of split products meet. For one stream at a time: launches that may overlap need their own.

    Attributes:
        parts: float32 [MAX_PARTS], sums that programs leave to the last of their tile.
        arrived: int32 [MAX_TILES], how many have; all 0 between launches.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.parts = torch.empty(MAX_PARTS, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(MAX_TILES, dtype=torch.int32, device=device)


@triton.jit
def _prefetch(
    weight, first_row, num_rows, columns, start, ROWS: tl.constexpr, AHEAD: tl.constexpr, PIECE: tl.constexpr
):  # fmt: skip
    """Ask for [ROWS, AHEAD] of the weight to be fetched into the L2 cache, PIECE columns, of all its, at a time."""
    row = tl.minimum(first_row + tl.arange(0, ROWS), num_rows - 1).to(tl.int64)
    at = tl.minimum(start + tl.arange(0, AHEAD // PIECE) * PIECE, columns - PIECE)
    address = (weight + row[:, None] * columns + at[None, :]).to(tl.int64)
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; // $0",
        "=r,l,r",
        [address, PIECE * weight.dtype.element_ty.primitive_bitwidth // 8],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _tile(map_, pointers, first_row, start, columns, inside, STEP: tl.constexpr, EVEN: tl.constexpr):
    """[rows, STEP] at a column: by descriptor if there is one, else by the rows' pointers. Zeros past the end.

    Args:
        inside: which rows are loaded at all [rows, 1], or None for all.
        EVEN: steps end where columns do.
    """
    if map_ is not None:
        tile = map_.load([first_row, start])
    else:
        at = start + tl.arange(0, STEP)[None, :]
        if inside is not None:
            tile = tl.load(pointers + at, mask=(at < columns) & inside, other=0.0)
        elif EVEN:
            tile = tl.load(pointers + at)
        else:
            tile = tl.load(pointers + at, mask=at < columns, other=0.0)
    return tile


@triton.jit
def _multiply(w, x, sums, TOKENS_FIRST: tl.constexpr):
    if TOKENS_FIRST:
        sums = tl.dot(x, tl.trans(w), sums)
    else:
        sums = tl.dot(w, tl.trans(x), sums)
    return sums


@triton.jit(do_not_specialize=["tokens", "each"])
def _skinny_gemm_kernel(
    x, x_map, weight, weight_map, bias, out, parts, arrived, addresses, turns, tokens, num_rows, columns, each,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, SPLITS: tl.constexpr, GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr, TOKENS_FIRST: tl.constexpr, EVEN: tl.constexpr, AHEAD: tl.constexpr,
    PIECE: tl.constexpr, EARLY: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, PART_BYTES: tl.constexpr,
    TRIPS: tl.constexpr,
):  # fmt: skip
    """out [tokens, num_rows]; `each` is the steps of a split, of which the last may have fewer. With RANKS, out is a
    part of a sum, and sent to the others."""
    columns = tl.multiple_of(columns, 8)
    tile = tl.program_id(0) // SPLITS
    split = tl.program_id(0) % SPLITS
    first_row = tile * ROWS
    begin = split * each
    end = tl.minimum(begin + each, tl.cdiv(columns, STEP))
    up_weight = weight + columns.to(tl.int64) * num_rows
    if EARLY:
        # The weight depends on no kernel and is on its way while the one before ends.
        if AHEAD > 0:
            _prefetch(weight, first_row, num_rows, columns, begin * STEP, ROWS, AHEAD, PIECE)
            if GATED:
                _prefetch(up_weight, first_row, num_rows, columns, begin * STEP, ROWS, AHEAD, PIECE)
        gdc_launch_dependents()  # the next kernel's programs find room beside these, and do the same
        gdc_wait()
    if RANKS > 1:
        sent = tl.arange(0, TOKENS)[:, None]
        half = half_of(load_turn(turns), RANKS)
        places, elsewhere = part_places(
            addresses, half, sent, num_rows, RANK, RANKS, PART_BYTES, TRIPS, out.dtype.element_ty
        )

    row = first_row + tl.arange(0, ROWS)
    token = tl.arange(0, TOKENS)
    # Rows past the end compute the last one again, so that loads of the weight need no mask for them.
    in_weight = tl.minimum(row, num_rows - 1).to(tl.int64)[:, None] * columns
    x_rows = x + token[:, None] * columns
    inside = (token < tokens)[:, None]
    shape: tl.constexpr = (TOKENS, ROWS) if TOKENS_FIRST else (ROWS, TOKENS)
    sums = tl.zeros(shape, tl.float32)
    up_sums = tl.zeros(shape, tl.float32)
    for step in tl.range(begin, end):
        at = step * STEP
        w = _tile(weight_map, weight + in_weight, first_row, at, columns, None, STEP, EVEN)
        x_tile = _tile(x_map, x_rows, 0, at, columns, inside, STEP, EVEN)
        sums = _multiply(w, x_tile, sums, TOKENS_FIRST)
        if GATED:
            up = _tile(weight_map, up_weight + in_weight, num_rows + first_row, at, columns, None, STEP, EVEN)
            up_sums = _multiply(up, x_tile, up_sums, TOKENS_FIRST)

    last = True
    if SPLITS > 1:
        HALVES: tl.constexpr = 2 if GATED else 1
        own = tl.arange(0, shape[0])[:, None] * shape[1] + tl.arange(0, shape[1])[None, :]
        of_tile = parts + tile * (SPLITS * HALVES * ROWS * TOKENS) + own
        of_split = of_tile + split * (HALVES * ROWS * TOKENS)
        tl.store(of_split, sums)
        if GATED:
            tl.store(of_split + ROWS * TOKENS, up_sums)
        tl.debug_barrier()  # all threads' sums are written before one thread says so
        last = tl.atomic_add(arrived + tile, 1, sem="acq_rel") == SPLITS - 1
        if last:
            sums = tl.zeros(shape, tl.float32)
            up_sums = tl.zeros(shape, tl.float32)
            for other in tl.static_range(SPLITS):
                of_other = of_tile + other * (HALVES * ROWS * TOKENS)
                sums += tl.load(of_other, cache_modifier=".cg")
                if GATED:
                    up_sums += tl.load(of_other + ROWS * TOKENS, cache_modifier=".cg")
            tl.store(arrived + tile, 0)
    if last:
        value = sums if TOKENS_FIRST else tl.trans(sums)
        up_value = up_sums if TOKENS_FIRST else tl.trans(up_sums)
        in_rows = row < num_rows
        if HAS_BIAS:
            value += tl.load(bias + row, mask=in_rows, other=0.0).to(tl.float32)[None, :]
            if GATED:
                up_value += tl.load(bias + num_rows + row, mask=in_rows, other=0.0).to(tl.float32)[None, :]
        if GATED:
            value = value / (1.0 + tl.exp(-value)) * up_value
        value = value.to(out.dtype.element_ty)
        to = token[:, None] * num_rows + row[None, :]
        if RANKS > 1:
            value = send_part(places, elsewhere, row[None, :], value, inside & in_rows[None, :])
        tl.store(out + to, value, mask=inside & in_rows[None, :])


def supports(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the kernel takes these: contiguous matrices of one 2-byte dtype that begin at multiples of 16 bytes.

    On a GPU it needs sm_90 or later, for the copy engine.
    """
    return (
        x.ndim == 2
        and x.shape[0] <= MAX_TOKENS
        and x.shape[1] % ALIGNMENT == 0
        and x.dtype == weight.dtype
        and x.dtype in (torch.bfloat16, torch.float16)
        and x.is_contiguous()
        and weight.is_contiguous()
        and x.data_ptr() % 16 == 0
        and weight.data_ptr() % 16 == 0
        and _has_copy_engine(x.device)
    )


@functools.cache
def _has_copy_engine(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (9, 0)


def multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    workspace: Workspace,
    cut: Config,
    *,
    gated: bool = False,
    early: bool = False,
    send: RankMemory | None = None,
) -> torch.Tensor:
    """x [T, K] times weight [M, K] transposed, plus bias [M] -> [T, M] of x's dtype, for T of 1 to MAX_TOKENS.

    Args:
        cut: how; `skinny_gemm_config.find` knows.
        gated: silu(gate) * up -> [T, M / 2] instead, where the product would give gate, then up; neither is rounded.
        early: see `CudaOps`.
        send: `rank_sum`'s memory, which has room: the product is a part of the sum that comes next, and sent to the
            other ranks.

    Raises:
        ValueError: the workspace has not enough room for the splits' sums.
    """
    tokens, columns = x.shape
    rows = weight.shape[0] // 2 if gated else weight.shape[0]
    out = empty_with_room(tokens, rows, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    width = padded(tokens)
    steps = triton.cdiv(columns, cut.step)
    each = triton.cdiv(steps, cut.splits)
    splits = triton.cdiv(steps, each)
    tiles = triton.cdiv(rows, cut.rows)
    if splits > 1 and (tiles > MAX_TILES or tiles * splits * cut.rows * width * (1 + gated) > MAX_PARTS):
        raise ValueError(f"{rows} rows and {tokens} tokens in {splits} splits need more than the workspace; split less")
    ahead = min(cut.ahead, each * cut.step, columns)
    ahead = 1 << (ahead.bit_length() - 1) if ahead >= MIN_PIECE else 0  # a power of 2, as ranges are
    piece = min(ahead, max(MIN_PIECE, ahead * cut.rows // (cut.warps * WARP)))
    weight_map = TensorDescriptor.from_tensor(weight, [cut.rows, cut.step]) if cut.bulk else None
    x_map = TensorDescriptor.from_tensor(with_room(x, width), [width, cut.step]) if cut.bulk else None
    pointers, place = sending(send, x, rows)
    _skinny_gemm_kernel[(tiles * splits,)](
        x, x_map, weight, weight_map, bias, out, workspace.parts, workspace.arrived, *pointers, tokens, rows, columns,
        each, width, cut.rows, cut.step, splits, gated, bias is not None, cut.tokens_first, columns % cut.step == 0,
        ahead, piece, early, *place,
        num_warps=cut.warps, num_stages=cut.stages, launch_pdl=early,
    )  # fmt: skip
    return out
