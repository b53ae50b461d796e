"""GEMM of a weight matrix with a few to a few hundred tokens: the linear layers of a decode step of a batch.

Such a GEMM is bound by reading the weight, so each program keeps enough bytes of it in flight, and each byte is read by
one program, which multiplies it with all tokens. Where the weight has too few rows to keep all SMs busy, its columns
are split over programs too (split-K): each leaves its float32 partial sums in a workspace, and the last program of a
tile adds them up, always in the same order. Sums are rounded once, and their order depends on sizes alone.

A weight may be `PackedWeights` of 8 or 4 bits, which are converted in registers: the tensor cores then take the weight
from registers, and the tokens from shared memory. If the tokens are in float8, the tensor cores multiply e4m3 codes as
they are.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from radixrt.kernels.float8_rows import Float8Rows
from radixrt.kernels.packed_weights import PackedWeights
from radixrt.kernels.triton.all_reduce import send_arguments
from radixrt.kernels.triton.padding import empty_padded, padded_view
from radixrt.kernels.triton.skinny_gemm_config import MAX_PARTS, MAX_TILES, MAX_TOKENS, Config, padded_tokens
from radixrt.kernels.triton.symmetric_memory import SymmetricMemory, first_slot, load_epoch, peer_slots, send_values
from radixrt.kernels.triton.weight_formats import INTERPRETED, to_numbers

ALIGNMENT = 8
"""Columns come in multiples of this, so that rows of 2-byte elements start at multiples of 16 bytes."""

WARP = 32
MIN_PIECE = 128
"""Minimum number of columns of a prefetch; more where each thread then loads a single piece."""


Weight = torch.Tensor | PackedWeights


class Workspace:
    """Workspace of split-K GEMMs, for one stream at a time: launches that may overlap need their own.

    Attributes:
        parts: float32 [MAX_PARTS], partial sums that programs leave to the last program of their tile.
        arrived: int32 [MAX_TILES], how many programs of a tile have finished; all 0 between launches.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.parts = torch.empty(MAX_PARTS, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(MAX_TILES, dtype=torch.int32, device=device)


@triton.jit
def _prefetch(
    weight, first_row, num_rows, columns, start, ROWS: tl.constexpr, AHEAD: tl.constexpr, PIECE: tl.constexpr
):  # fmt: skip
    """Prefetch [ROWS, AHEAD] of the weight into the L2 cache, PIECE columns at a time."""
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
    """Load [rows, STEP] at a column: by descriptor if there is one, else by the rows' pointers. Zeros past the end.

    Args:
        inside: mask of the rows to load, [rows, 1]; None for all.
        EVEN: whether the number of columns is a multiple of STEP.
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


@triton.jit
def _row_factors(
    scales, shifts, row, column, columns, GROUP: tl.constexpr, SCALE_ROWS: tl.constexpr, STEP: tl.constexpr,
    ROUND: tl.constexpr,
):  # fmt: skip
    """Load the scales and shifts of rows for a step that starts at a column: [ROWS, 1], or, if ROUND, [ROWS, parts],
    equal parts of the step's columns of which none has two groups. 1 and 0 where rows have no groups, or no shifts."""
    # With a single part, the compiler would rather move the numbers through shared memory than the factors.
    PARTS: tl.constexpr = max(2, STEP // GROUP) if ROUND else 1
    factor = tl.full((row.shape[0], PARTS), 1.0, tl.float32)
    shift = tl.full((row.shape[0], PARTS), 0.0, tl.float32)
    if GROUP > 0:
        groups = tl.cdiv(columns, GROUP)
        group = tl.minimum(column + tl.arange(0, PARTS) * (STEP // PARTS), columns - 1)[None, :] // GROUP
        factor = tl.load(scales + ((row // SCALE_ROWS * groups)[:, None] + group))
        if shifts is not None:
            shift = tl.load(shifts + ((row * groups)[:, None] + group))
    return factor, shift


@triton.jit
def _scaled(w, factor, shift, shifts, DTYPE: tl.constexpr):
    """Return the numbers [ROWS, STEP] times the factors of their groups, plus their shifts, rounded."""
    PARTS: tl.constexpr = factor.shape[1]
    values = tl.reshape(w, (w.shape[0], PARTS, w.shape[1] // PARTS)).to(tl.float32)
    values *= factor.to(tl.float32)[:, :, None]
    if shifts is not None:
        values += shift[:, :, None]
    return tl.reshape(values.to(DTYPE), w.shape)


@triton.jit
def _converted(w, DTYPE: tl.constexpr, NUMBERS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr):
    """Return a tile of the weight as numbers, if it is one of codes."""
    if NUMBERS is not None:
        w = to_numbers(w, NUMBERS, DTYPE, ROWS, STEP)
    return w


@triton.jit
def _used(sums):
    """Return sums, which the compiler has to wait for; there is no instruction."""
    if not INTERPRETED:
        sums = tl.inline_asm_elementwise("// $0", "=f,0", [sums], dtype=tl.float32, is_pure=True, pack=1)
    return sums


@triton.jit
def _add_product(
    w, x, sums, factor, shift, shifts, x_sums, x_factor, x_scales, NUMBERS: tl.constexpr, GROUP: tl.constexpr,
    ROUND: tl.constexpr, TOKENS_FIRST: tl.constexpr,
):  # fmt: skip
    """Add w x^T to the sums [ROWS, TOKENS], in groups with the factors and shifts of the rows, and, if x has scales,
    with the factors [1, TOKENS] of the tokens."""
    if GROUP > 0 and not ROUND:
        factor = factor.to(tl.float32)
        if x_scales is not None:
            factor *= x_factor
        sums += _multiply(w, x, tl.zeros_like(sums), TOKENS_FIRST) * factor
        if shifts is not None:
            sums += x_sums * shift
    else:
        if ROUND:
            w = _scaled(w, factor, shift, shifts, x.dtype)
        sums = _multiply(w, x, sums, TOKENS_FIRST)
        if NUMBERS is not None:
            # Triton 3.6 overwrites an operand in registers while the tensor cores still read it, unless the sums are
            # used before the next step.
            sums = _used(sums)
    return sums


@triton.jit(do_not_specialize=["tokens", "each"])
def _skinny_gemm_kernel(
    x, x_map, x_scales, weight, weight_map, scales, shifts, bias, out, parts, arrived, addresses, turns, tokens,
    num_rows, columns, each, token_tiles,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, SPLITS: tl.constexpr, GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr, TOKENS_FIRST: tl.constexpr, EVEN: tl.constexpr, AHEAD: tl.constexpr,
    PIECE: tl.constexpr, NUMBERS: tl.constexpr, IN_ELEMENT: tl.constexpr, GROUP: tl.constexpr,
    SCALE_ROWS: tl.constexpr, ROUND: tl.constexpr, EARLY: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr,
    PART_BYTES: tl.constexpr, TRIPS: tl.constexpr,
):  # fmt: skip
    """Compute out [tokens, num_rows]; `each` is the steps of a split, of which the last may have fewer. With RANKS > 1,
    out is an addend of an all-reduce, and is also sent to the other ranks.

    NUMBERS, IN_ELEMENT: of `PackedWeights`, whose words hold so many codes each; None and 1 for a plain weight.
    GROUP: columns that share a scale; 0 where each row has one, or none.
    ROUND: whether the numbers of groups are scaled, and rounded, before they are multiplied; else their sums are
        scaled.
    x_scales: of x in float8, [groups, tokens up to a multiple of 4]; None for another x.
    """
    columns = tl.multiple_of(columns, 8)
    width = columns // IN_ELEMENT
    if IN_ELEMENT > 1:
        width = tl.multiple_of(width, 16)
    STRIDE: tl.constexpr = STEP // IN_ELEMENT
    # Programs that read the same tile of the weight are neighbours.
    first_token = tl.program_id(0) % token_tiles * TOKENS
    split = tl.program_id(0) // token_tiles % SPLITS
    first_row = tl.program_id(0) // (token_tiles * SPLITS) * ROWS
    begin = split * each
    end = tl.minimum(begin + each, tl.cdiv(columns, STEP))
    up_weight = weight + width.to(tl.int64) * num_rows
    if EARLY:
        # The weight depends on no kernel and is on its way while the one before ends.
        if AHEAD > 0:
            _prefetch(weight, first_row, num_rows, width, begin * STRIDE, ROWS, AHEAD, PIECE)
            if GATED:
                _prefetch(up_weight, first_row, num_rows, width, begin * STRIDE, ROWS, AHEAD, PIECE)
        gdc_launch_dependents()  # programs of the next kernel fit on the SMs beside these, and prefetch too
        gdc_wait()
    if RANKS > 1:
        sent = first_token + tl.arange(0, TOKENS)[:, None]
        half = first_slot(load_epoch(turns), RANKS)
        places, elsewhere = peer_slots(
            addresses, half, sent, num_rows, RANK, RANKS, PART_BYTES, TRIPS, out.dtype.element_ty
        )

    row = first_row + tl.arange(0, ROWS)
    token = first_token + tl.arange(0, TOKENS)
    # Rows past the end compute the last one again, so that loads of the weight need no mask for them.
    own_row = tl.minimum(row, num_rows - 1)
    in_weight = own_row.to(tl.int64)[:, None] * width
    x_rows = x + token[:, None] * columns
    inside = (token < tokens)[:, None]
    shape: tl.constexpr = (TOKENS, ROWS) if TOKENS_FIRST else (ROWS, TOKENS)
    sums = tl.zeros(shape, tl.float32)
    up_sums = tl.zeros(shape, tl.float32)
    dtype: tl.constexpr = x.dtype.element_ty
    # Of the first step; those of the next one are on their way while a step is multiplied.
    factor, shift = _row_factors(scales, shifts, own_row, begin * STEP, columns, GROUP, SCALE_ROWS, STEP, ROUND)
    up_factor, up_shift = _row_factors(
        scales, shifts, num_rows + own_row if GATED else own_row, begin * STEP, columns, GROUP, SCALE_ROWS, STEP, ROUND
    )
    for step in tl.range(begin, end):
        at = step * STEP
        x_factor = factor
        if x_scales is not None and GROUP > 0:
            of_group = x_scales + at // GROUP * (tl.cdiv(tokens, 4) * 4)
            x_factor = tl.load(of_group + token, mask=token < tokens, other=0.0)[None, :]
        w = _tile(weight_map, weight + in_weight, first_row, step * STRIDE, width, None, STRIDE, EVEN)
        x_tile = _tile(x_map, x_rows, first_token, at, columns, inside, STEP, EVEN)
        x_sums = sums
        if (
            shifts is not None and not ROUND
        ):  # the sums of x for each row: the tensor cores have them where the row's sums are
            x_sums = _multiply(tl.full((ROWS, STEP), 1.0, dtype), x_tile, tl.zeros_like(sums), TOKENS_FIRST)
        w = _converted(w, dtype, NUMBERS, ROWS, STEP)
        sums = _add_product(
            w, x_tile, sums, factor, shift, shifts, x_sums, x_factor, x_scales, NUMBERS, GROUP, ROUND, TOKENS_FIRST
        )
        if GATED:
            up = _tile(
                weight_map, up_weight + in_weight, num_rows + first_row, step * STRIDE, width, None, STRIDE, EVEN
            )
            up = _converted(up, dtype, NUMBERS, ROWS, STEP)
            up_sums = _add_product(
                up, x_tile, up_sums, up_factor, up_shift, shifts, x_sums, x_factor, x_scales, NUMBERS, GROUP, ROUND,
                TOKENS_FIRST,
            )  # fmt: skip
        if GROUP > 0:
            following = tl.minimum(at + STEP, columns - 1)
            factor, shift = _row_factors(scales, shifts, own_row, following, columns, GROUP, SCALE_ROWS, STEP, ROUND)
            if GATED:
                up_factor, up_shift = _row_factors(
                    scales, shifts, num_rows + own_row, following, columns, GROUP, SCALE_ROWS, STEP, ROUND
                )

    last = True
    if SPLITS > 1:
        HALVES: tl.constexpr = 2 if GATED else 1
        own = tl.arange(0, shape[0])[:, None] * shape[1] + tl.arange(0, shape[1])[None, :]
        tile = first_row // ROWS * token_tiles + first_token // TOKENS
        of_tile = parts + tile * (SPLITS * HALVES * ROWS * TOKENS) + own
        of_split = of_tile + split * (HALVES * ROWS * TOKENS)
        tl.store(of_split, sums)
        if GATED:
            tl.store(of_split + ROWS * TOKENS, up_sums)
        tl.debug_barrier()  # all threads' sums are written before one thread counts the program
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
        if scales is not None and GROUP == 0:
            value *= tl.load(scales + own_row)[None, :]
            if GATED:
                up_value *= tl.load(scales + num_rows + own_row)[None, :]
        if x_scales is not None and GROUP == 0:
            x_scale = tl.load(x_scales + token, mask=token < tokens, other=0.0)[:, None]
            value *= x_scale
            if GATED:
                up_value *= x_scale
        if HAS_BIAS:
            value += tl.load(bias + row, mask=in_rows, other=0.0).to(tl.float32)[None, :]
            if GATED:
                up_value += tl.load(bias + num_rows + row, mask=in_rows, other=0.0).to(tl.float32)[None, :]
        if GATED:
            value = value / (1.0 + tl.exp(-value)) * up_value
        value = value.to(out.dtype.element_ty)
        to = token[:, None] * num_rows + row[None, :]
        if RANKS > 1:
            value = send_values(places, elsewhere, row[None, :], value, inside & in_rows[None, :])
        tl.store(out + to, value, mask=inside & in_rows[None, :])


def supports(x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype | None = None) -> bool:
    """Return True if the kernel supports these arguments: contiguous matrices of one 2-byte dtype, aligned to 16 bytes.

    On a GPU the kernel needs sm_90 or later, for the copy engine.

    Args:
        weight: or the words of codes.
        dtype: of the numbers of the weight; None for the weight's own.
    """
    return (
        x.ndim == 2
        and (dtype is not None or x.shape[0] <= MAX_TOKENS)
        and x.shape[1] % ALIGNMENT == 0
        and x.dtype == (dtype or weight.dtype)
        and x.dtype in (torch.bfloat16, torch.float16)
        and x.is_contiguous()
        and weight.is_contiguous()
        and x.data_ptr() % 16 == 0
        and weight.data_ptr() % 16 == 0
        and has_copy_engine(x.device)
    )


@functools.cache
def has_copy_engine(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (9, 0)


def multiply(
    x: torch.Tensor | Float8Rows,
    weight: Weight,
    bias: torch.Tensor | None,
    workspace: Workspace,
    cut: Config,
    *,
    gated: bool = False,
    early: bool = False,
    send: SymmetricMemory | None = None,
) -> torch.Tensor:
    """Return x W^T + bias [T, M] in x's dtype, for x [T, K], weight [M, K], bias [M] and T of 1 to MAX_TOKENS, or
    of any number where the tiling has tiles of tokens.

    Args:
        x: in float8 for e4m3 codes with the same groups, and a tiling of the copy engine, with the weight's rows first.
        weight: in x's dtype, or codes, for a bfloat16 or float16 x.
        cut: the tiling, from `skinny_gemm_config`. Of codes: with the weight's rows first, at least 64 of them, and a
            step that is a multiple of 128, and of the group or a part of it.
        gated: return silu(gate) * up [T, M / 2] instead, for a weight with the rows of gate, then those of up; neither
            is rounded.
        early: see `CudaOps`.
        send: symmetric memory of the next `all_reduce`, if the result is an addend of it and is to be sent by this
            kernel.

    Raises:
        ValueError: the workspace is too small for the splits' partial sums.
    """
    tokens, columns = x.shape
    rows = weight.shape[0] // 2 if gated else weight.shape[0]
    values, x_scales = (x, None) if isinstance(x, torch.Tensor) else (x.codes, x.scales)
    out = empty_padded(tokens, rows, dtype=x.dtype, device=values.device)
    if out.numel() == 0:
        return out
    width = min(cut.tokens or padded_tokens(tokens), padded_tokens(tokens))
    token_tiles = triton.cdiv(tokens, width)
    steps = triton.cdiv(columns, cut.step)
    each = triton.cdiv(steps, cut.splits)
    splits = triton.cdiv(steps, each)
    tiles = triton.cdiv(rows, cut.rows)
    in_all = tiles * token_tiles
    if splits > 1 and (in_all > MAX_TILES or in_all * splits * cut.rows * width * (1 + gated) > MAX_PARTS):
        raise ValueError(
            f"{rows} rows and {tokens} tokens in {splits} splits need more than the workspace; use fewer splits"
        )
    ahead = min(cut.ahead, each * cut.step, columns)
    ahead = 1 << (ahead.bit_length() - 1) if ahead >= MIN_PIECE else 0  # a power of 2, as ranges are
    piece = min(ahead, max(MIN_PIECE, ahead * cut.rows // (cut.warps * WARP)))
    codes = None if isinstance(weight, torch.Tensor) else weight
    stored = weight if isinstance(weight, torch.Tensor) else weight.words
    factors = (None, None) if codes is None else (codes.scales, codes.shifts)
    form: tuple[str | None, int, int, int, bool] = (None, 1, 0, 1, False)
    if codes is not None:
        rounds = codes.group > 0 and (cut.rounds or codes.group < cut.step)
        form = (codes.numbers, codes.in_word, codes.group, codes.scale_rows, rounds)
    if codes is not None and x_scales is not None:  # the tensor cores take the codes as they are
        stored, form = stored.view(torch.float8_e4m3fn), (None, 1, codes.group, codes.scale_rows, False)
    in_element = form[1]
    weight_map = TensorDescriptor.from_tensor(stored, [cut.rows, cut.step // in_element]) if cut.bulk else None
    whole = padded_view(values, token_tiles * width)
    x_map = TensorDescriptor.from_tensor(whole, [width, cut.step]) if cut.bulk else None
    pointers, place = send_arguments(send, out, rows)
    _skinny_gemm_kernel[(tiles * splits * token_tiles,)](
        values, x_map, x_scales, stored, weight_map, *factors, bias, out, workspace.parts, workspace.arrived, *pointers,
        tokens, rows, columns, each, token_tiles, width, cut.rows, cut.step, splits, gated, bias is not None,
        cut.tokens_first, columns % cut.step == 0, ahead // in_element, piece // in_element, *form, early, *place,
        num_warps=cut.warps, num_stages=cut.stages, launch_pdl=early,
    )  # fmt: skip
    return out
