"""GEMMs of the experts of a mixture whose weights are codes of 8 or 4 bits, over the tiles of `expert_tiles`.

A program multiplies the tokens of a tile with 64 or 128 rows of their expert's weight. The copy engine fetches the
codes; threads convert them to the dtype of the activations in registers, from which the tensor cores take the weight.
Scales of whole rows multiply the sums at the end, those of 128 columns or more the sums of each step, and those of
fewer columns the numbers themselves, which are then rounded once.

Up to `MAX_PAIRED` tokens, each pair of token and expert is a tile of its own, so that nothing is sorted.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from radixrt.kernels.packed_weights import PackedWeights
from radixrt.kernels.triton.activation import SILU, ExpertRule
from radixrt.kernels.triton.activation import gated as gated_product
from radixrt.kernels.triton.expert_gemm_config import Config
from radixrt.kernels.triton.expert_tiles import Tiles
from radixrt.kernels.triton.mxfp4 import scaled_numbers
from radixrt.kernels.triton.skinny_gemm import has_copy_engine
from radixrt.kernels.triton.weight_formats import to_numbers

MAX_PAIRED = 4
"""Most tokens whose pairs are tiles of their own: more would read the weights of experts that they share again."""

WIDE_GROUP = 128
"""Columns of a group from which on its scale multiplies sums."""

COPY_BYTES = 16
"""Bytes of which the copy engine's rows are multiples."""


@triton.jit
def _load_factors(values, row, first_group, last, scale_stride, ROWS: tl.constexpr, GROUPS: tl.constexpr):
    """Load [ROWS, GROUPS] of the scales of each row, or of their shifts; groups past the last one are the last one."""
    group = tl.minimum(first_group + tl.arange(0, GROUPS), last)
    return tl.load(values + row.to(tl.int64)[:, None] * scale_stride + group[None, :])


@triton.jit
def _scaled(numbers, factors, offsets, ROWS: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr):
    """Return number * scale + shift [ROWS, STEP], rounded once, for the scales and shifts [ROWS, STEP / GROUP]."""
    values = tl.reshape(numbers, (ROWS, STEP // GROUP, GROUP)).to(tl.float32) * factors.to(tl.float32)[:, :, None]
    if offsets is not None:
        values += offsets[:, :, None]
    return tl.reshape(values.to(numbers.dtype), (ROWS, STEP))


@triton.jit
def _numbers(
    words_map, words, scales_map, scales, shifts, in_map, own_row, first_scale_row, step, width, columns, scale_stride,
    DTYPE: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, NUMBERS: tl.constexpr, IN_WORD: tl.constexpr,
    GROUP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Load [ROWS, STEP] of a weight, the columns of a step, as numbers; times their scales if groups are not WIDE."""
    STRIDE: tl.constexpr = STEP // IN_WORD
    if words_map is not None:
        tile = words_map.load([in_map, step * STRIDE])
    else:
        at = step * STRIDE + tl.arange(0, STRIDE)[None, :]
        tile = tl.load(words + own_row.to(tl.int64)[:, None] * width + at, mask=at < width, other=0)
    if GROUP == 0 or WIDE:
        values = to_numbers(tile, NUMBERS, DTYPE, ROWS, STEP)
    else:
        GROUPS: tl.constexpr = STEP // GROUP
        first_group = step * GROUPS
        last = tl.cdiv(columns, GROUP) - 1
        if scales_map is not None:
            factors = scales_map.load([in_map, first_group])
        else:
            factors = _load_factors(scales, first_scale_row + own_row, first_group, last, scale_stride, ROWS, GROUPS)
        if NUMBERS == "mxfp4":
            values = scaled_numbers(tile, factors, DTYPE, ROWS, STEP)
        else:
            offsets = None
            if shifts is not None:
                offsets = _load_factors(
                    shifts, first_scale_row + own_row, first_group, last, scale_stride, ROWS, GROUPS
                )
            values = _scaled(to_numbers(tile, NUMBERS, DTYPE, ROWS, STEP), factors, offsets, ROWS, STEP, GROUP)
    return values


@triton.jit
def _row_factors(
    scales, shifts, row, first_scale_row, step, columns, scale_stride,
    STEP: tl.constexpr, GROUP: tl.constexpr, WIDE: tl.constexpr, SCALE_ROWS: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """Load the scales and shifts [ROWS] of a step, whose columns are of one WIDE group; else return 1 and 0.

    ONE: all rows share a scale, which every thread loads for itself; there are no shifts.
    """
    factor = tl.full(row.shape, 1.0, tl.float32)
    shift = tl.full(row.shape, 0.0, tl.float32)
    if WIDE:
        group = tl.minimum(step * STEP, columns - 1) // GROUP
        if ONE:
            at = (first_scale_row + tl.min(row, axis=0) // SCALE_ROWS).to(tl.int64) * scale_stride + group
            factor *= tl.load(scales + at).to(tl.float32)
        else:
            at = (first_scale_row + row // SCALE_ROWS).to(tl.int64) * scale_stride + group
            factor = tl.load(scales + at).to(tl.float32)
            if shifts is not None:
                shift = tl.load(shifts + at)
    return factor, shift


@triton.jit
def _add(w, x, sums, factor, shift, x_sums, WIDE: tl.constexpr, SHIFTED: tl.constexpr):
    """Add w x^T to the sums [ROWS, TOKENS]; with WIDE groups times the factors of the rows, plus the shifts."""
    if WIDE:
        sums += tl.dot(w, tl.trans(x), input_precision="ieee") * factor[:, None]
        if SHIFTED:
            sums += x_sums * shift[:, None]
    else:
        # As in `skinny_gemm`: the sums are used before the next step.
        sums = tl.dot(w, tl.trans(x), sums, input_precision="ieee") + 0.0
    return sums


@triton.jit
def _expert_codes_kernel(
    x, words, words_map, scales, scales_map, shifts, bias, experts, pairs, tiles, count, out, num_rows, columns, width,
    scale_stride,
    TOP_K: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, GATED: tl.constexpr,
    NUMBERS: tl.constexpr, IN_WORD: tl.constexpr, GROUP: tl.constexpr, SCALE_ROWS: tl.constexpr, ONE: tl.constexpr,
    EVEN: tl.constexpr,
    ALPHA: tl.constexpr, LIMIT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply one tile with ROWS of its expert's weight. GATED: x has a row for each token, out one for each position
    in `pairs`. Else x has one for each position, and out one for each pair.

    words, scales, shifts, NUMBERS, IN_WORD, GROUP, SCALE_ROWS: of `PackedWeights`; `width` words are a row.
    ONE: see `_row_factors`.
    experts: without `tiles`, of each pair, which is a tile. Else None.
    bias: float32, one for each row of the weights, or None.
    ALPHA, LIMIT: see `activation.gated`.
    """
    WIDE: tl.constexpr = GROUP >= 128
    SHIFTED: tl.constexpr = shifts is not None and WIDE
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    parts = tl.cdiv(num_rows, ROWS)
    tile = tl.program_id(0) // parts
    if tiles is not None:
        # All at once, for each program waits for them: behind the last tile these are any numbers.
        made = tl.load(count)
        expert = tl.load(tiles + 3 * tile)
        first = tl.load(tiles + 3 * tile + 1)
        tokens = tl.load(tiles + 3 * tile + 2)
        if tile >= made:
            return
    else:
        expert = tl.load(experts + tile)
        first = tile
        tokens = 1
    first_row = tl.program_id(0) % parts * ROWS
    token = tl.arange(0, TOKENS)
    inside = token < tokens
    position = first + token
    if tiles is not None:
        pair = tl.load(pairs + position, mask=inside, other=0)
    else:
        pair = tl.where(inside, position, 0)
    row = first_row + tl.arange(0, ROWS)
    # Rows past the end compute the last one again, so that loads of the weight need no mask for them.
    own_row = tl.minimum(row, num_rows - 1)
    if GATED:
        x_row = pair // TOP_K
        out_row = position
        rows_of_expert = 2 * num_rows
    else:
        x_row = position
        out_row = pair
        rows_of_expert = num_rows
    in_map = expert * rows_of_expert + first_row
    in_words = words + expert.to(tl.int64) * rows_of_expert * width
    first_scale_row = expert * tl.cdiv(rows_of_expert, SCALE_ROWS)
    in_x = x + x_row.to(tl.int64)[:, None] * columns
    dtype: tl.constexpr = x.dtype.element_ty
    sums = tl.zeros((ROWS, TOKENS), tl.float32)
    up_sums = tl.zeros((ROWS, TOKENS), tl.float32)
    # Of the first step; those of the next one are on their way while a step is multiplied.
    factor, shift = _row_factors(
        scales, shifts, own_row, first_scale_row, 0, columns, scale_stride, STEP, GROUP, WIDE, SCALE_ROWS, ONE
    )
    up_row = own_row + num_rows if GATED else own_row
    up_factor, up_shift = _row_factors(
        scales, shifts, up_row, first_scale_row, 0, columns, scale_stride, STEP, GROUP, WIDE, SCALE_ROWS, ONE
    )
    for step in tl.range(0, tl.cdiv(columns, STEP)):
        at = step * STEP + tl.arange(0, STEP)[None, :]
        if EVEN:
            x_tile = tl.load(in_x + at, mask=inside[:, None], other=0.0)
        else:
            x_tile = tl.load(in_x + at, mask=inside[:, None] & (at < columns), other=0.0)
        x_sums = sums
        if SHIFTED:  # the sums of x for each row: the tensor cores have them where the row's sums are
            x_sums = tl.dot(tl.full((ROWS, STEP), 1.0, dtype), tl.trans(x_tile), input_precision="ieee")
        w = _numbers(
            words_map, in_words, scales_map, scales, shifts, in_map, own_row, first_scale_row, step, width, columns,
            scale_stride, dtype, ROWS, STEP, NUMBERS, IN_WORD, GROUP, WIDE,
        )  # fmt: skip
        sums = _add(w, x_tile, sums, factor, shift, x_sums, WIDE, SHIFTED)
        if GATED:
            up = _numbers(
                words_map, in_words, scales_map, scales, shifts, in_map + num_rows, up_row, first_scale_row, step,
                width, columns, scale_stride, dtype, ROWS, STEP, NUMBERS, IN_WORD, GROUP, WIDE,
            )  # fmt: skip
            up_sums = _add(up, x_tile, up_sums, up_factor, up_shift, x_sums, WIDE, SHIFTED)
        if WIDE:
            factor, shift = _row_factors(
                scales,
                shifts,
                own_row,
                first_scale_row,
                step + 1,
                columns,
                scale_stride,
                STEP,
                GROUP,
                WIDE,
                SCALE_ROWS,
                ONE,
            )
            if GATED:
                up_factor, up_shift = _row_factors(
                    scales, shifts, up_row, first_scale_row, step + 1, columns, scale_stride, STEP, GROUP, WIDE,
                    SCALE_ROWS, ONE,
                )  # fmt: skip
    if GROUP == 0:
        of_row = scales + expert * rows_of_expert
        sums *= tl.load(of_row + own_row)[:, None]
        if GATED:
            up_sums *= tl.load(of_row + up_row)[:, None]
    if bias is not None:
        biases = bias + expert * rows_of_expert
        sums += tl.load(biases + own_row)[:, None]
        if GATED:
            up_sums += tl.load(biases + up_row)[:, None]
    if GATED:
        sums = gated_product(sums, up_sums, ALPHA, LIMIT)
    value = tl.trans(sums.to(out.dtype.element_ty))
    to = out_row.to(tl.int64)[:, None] * num_rows + row[None, :]
    tl.store(out + to, value, mask=inside[:, None] & (row < num_rows)[None, :])


def multiply(
    x: torch.Tensor, weight: PackedWeights, tiles: Tiles | torch.Tensor, tile: int, cut: Config, *, top_k: int,
    gated: bool, early: bool = False, rule: ExpertRule = SILU,
) -> torch.Tensor:  # fmt: skip
    """Multiply each token with the weights of its experts; see `expert_gemm.multiply`.

    Args:
        tiles: of `tile` tokens each; or the experts int32 [T, k], each of which is then a tile with its token.
    """
    words, group = weight.words, weight.group
    rows, columns, width = words.shape[1] // (1 + gated), weight.columns, words.shape[2]
    num_pairs = (tiles.pairs if isinstance(tiles, Tiles) else tiles).numel()
    experts, pairs, listed, count = None, None, None, None
    if isinstance(tiles, Tiles):
        pairs, listed, count, num_tiles = *tiles, tiles.tiles.shape[0]
    else:
        experts, num_tiles = tiles, num_pairs
    out = torch.empty(num_pairs, rows, dtype=x.dtype, device=x.device)
    wide, groups = group >= WIDE_GROUP, cut.step // group if group else 1
    bulk = cut.bulk and has_copy_engine(words.device)
    # The copy engine fetches rows of other experts past the end of a matrix; they reach no row that is stored.
    words_map = _descriptor(words, cut.rows, cut.step // weight.in_word) if bulk else None
    scales_map = _descriptor(weight.scales, cut.rows, groups) if bulk and group and not wide else None
    bias = rule.gate_up_bias if gated else rule.down_bias
    _expert_codes_kernel[(num_tiles * triton.cdiv(rows, cut.rows),)](
        x, words, words_map, weight.scales, scales_map, weight.shifts, bias, experts, pairs, listed, count, out, rows,
        columns, width, weight.scales.shape[2] if group else 1,
        top_k, tile, cut.rows, cut.step, gated, weight.numbers, weight.in_word, group, weight.scale_rows,
        weight.scale_rows % cut.rows == 0 and rows % weight.scale_rows == 0, columns % cut.step == 0, rule.alpha,
        rule.limit, early,
        num_warps=cut.warps, num_stages=cut.stages, launch_pdl=early,
    )  # fmt: skip
    return out


def _descriptor(values: torch.Tensor, rows: int, columns: int) -> TensorDescriptor | None:
    """Return a descriptor of the rows of all experts; None where the copy engine cannot fetch such tiles."""
    item = values.element_size()
    if columns * item % COPY_BYTES or values.shape[2] * item % COPY_BYTES or values.data_ptr() % COPY_BYTES:
        return None
    return TensorDescriptor.from_tensor(values.flatten(0, 1), [rows, columns])
