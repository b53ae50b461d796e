"""GEMMs of the experts of a mixture, over tiles of tokens that are routed to the same one.

Few tokens for each expert are bound by reading the weights, which each program multiplies with all tokens of its tile;
many are bound by the tensor cores. Two launches compute gate and up, with their activation, and down; a third
one adds up each token's experts, in the order of their weights and in float32, so that a sum depends on its token
alone. `expert_codes_gemm` has the first two for weights of 8 and 4 bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from radixrt.kernels.packed_weights import PackedWeights
from radixrt.kernels.triton import expert_codes_gemm
from radixrt.kernels.triton.activation import SILU, ExpertRule
from radixrt.kernels.triton.activation import gated as gated_product
from radixrt.kernels.triton.expert_gemm_config import (
    FLOAT32,
    FLOAT32_CODES,
    FLOAT32_TILE,
    TILES,
    Config,
    codes_tile_of,
    find_codes_config,
    find_config,
    tile_of,
)
from radixrt.kernels.triton.expert_tiles import Tiles, list_tiles
from radixrt.kernels.triton.skinny_gemm import ALIGNMENT, has_copy_engine

Weights = torch.Tensor | PackedWeights

SUM_BLOCK = 1024
SUM_WARPS = 4


@triton.jit
def _weight_tile(
    map_, pointers, first_row, step, columns, STEP: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """Load [ROWS, STEP] of a weight, the columns of a step: by descriptor if there is one, else by the rows'
    pointers."""
    if map_ is not None:
        tile = map_.load([first_row, step * STEP])
    else:
        at = step * STEP + tl.arange(0, STEP)[None, :]
        if EVEN:
            tile = tl.load(pointers + at)
        else:
            tile = tl.load(pointers + at, mask=at < columns, other=0.0)
    return tile


@triton.jit
def _multiply(w, x, sums, TOKENS_FIRST: tl.constexpr):
    if TOKENS_FIRST:
        sums = tl.dot(x, tl.trans(w), sums, input_precision="ieee")
    else:
        sums = tl.dot(w, tl.trans(x), sums, input_precision="ieee")
    return sums


@triton.jit
def _along_rows(values, TOKENS_FIRST: tl.constexpr):
    """Return values [ROWS] as they are added to sums."""
    if TOKENS_FIRST:
        values = values[None, :]
    else:
        values = values[:, None]
    return values


@triton.jit
def _expert_gemm_kernel(
    x, weight, weight_map, bias, pairs, tiles, count, out, num_rows, columns,
    TOP_K: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, GATED: tl.constexpr,
    TOKENS_FIRST: tl.constexpr, EVEN: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply one tile with ROWS of its expert's weight. GATED: x has a row for each token, out one for each position
    in `pairs`. Else x has one for each position, and out one for each pair.

    bias: float32, one for each row of the weights, or None.
    ALPHA, LIMIT: see `activation.gated`.
    """
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    parts = tl.cdiv(num_rows, ROWS)
    tile = tl.program_id(0) // parts
    # All at once, for each program waits for them: behind the last tile these are any numbers.
    made = tl.load(count)
    expert = tl.load(tiles + 3 * tile)
    first = tl.load(tiles + 3 * tile + 1)
    tokens = tl.load(tiles + 3 * tile + 2)
    if tile >= made:
        return
    first_row = tl.program_id(0) % parts * ROWS
    token = tl.arange(0, TOKENS)
    inside = token < tokens
    position = first + token
    pair = tl.load(pairs + position, mask=inside, other=0)
    row = first_row + tl.arange(0, ROWS)
    if GATED:
        x_row = pair // TOP_K
        out_row = position
        in_map = expert * 2 * num_rows + first_row
        weight_row = expert.to(tl.int64) * 2 * num_rows
    else:
        x_row = position
        out_row = pair
        in_map = expert * num_rows + first_row
        weight_row = expert.to(tl.int64) * num_rows
    # Rows past the end compute the last one again, so that loads of the weight need no mask for them.
    own_row = tl.minimum(row, num_rows - 1).to(tl.int64)[:, None]
    in_weight = weight + weight_row * columns + own_row * columns
    in_up = in_weight + num_rows.to(tl.int64) * columns
    in_x = x + x_row.to(tl.int64)[:, None] * columns
    shape: tl.constexpr = (TOKENS, ROWS) if TOKENS_FIRST else (ROWS, TOKENS)
    sums = tl.zeros(shape, tl.float32)
    up_sums = tl.zeros(shape, tl.float32)
    for step in tl.range(0, tl.cdiv(columns, STEP)):
        at = step * STEP + tl.arange(0, STEP)[None, :]
        if EVEN:
            x_tile = tl.load(in_x + at, mask=inside[:, None], other=0.0)
        else:
            x_tile = tl.load(in_x + at, mask=inside[:, None] & (at < columns), other=0.0)
        w = _weight_tile(weight_map, in_weight, in_map, step, columns, STEP, EVEN)
        sums = _multiply(w, x_tile, sums, TOKENS_FIRST)
        if GATED:
            up = _weight_tile(weight_map, in_up, in_map + num_rows, step, columns, STEP, EVEN)
            up_sums = _multiply(up, x_tile, up_sums, TOKENS_FIRST)
    if bias is not None:
        of_row = bias + expert.to(tl.int64) * (2 * num_rows if GATED else num_rows) + tl.minimum(row, num_rows - 1)
        sums += _along_rows(tl.load(of_row), TOKENS_FIRST)
        if GATED:
            up_sums += _along_rows(tl.load(of_row + num_rows), TOKENS_FIRST)
    if GATED:
        sums = gated_product(sums, up_sums, ALPHA, LIMIT)
    value = sums.to(out.dtype.element_ty)
    if not TOKENS_FIRST:
        value = tl.trans(value)
    to = out_row.to(tl.int64)[:, None] * num_rows + row[None, :]
    tl.store(out + to, value, mask=inside[:, None] & (row < num_rows)[None, :])


@triton.jit
def _weighted_sum_kernel(
    values, weights, out, SIZE: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    """Compute out [T, SIZE], the sums of values [T, TOP_K, SIZE] times weights [T, TOP_K]."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    total = tl.zeros((BLOCK,), tl.float32)
    for j in tl.static_range(TOP_K):
        pair = token * TOP_K + j
        value = tl.load(values + pair * SIZE + at, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(weights + pair) * value
    tl.store(out + token * SIZE + at, total.to(out.dtype.element_ty), mask=inside)


def run_experts(
    x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, gate_up: Weights, down: Weights,
    early: bool = False, rule: ExpertRule = SILU,
) -> torch.Tensor:  # fmt: skip
    """Return the weighted sum [T, hidden] of the outputs of each token's experts, in x's dtype, to which the output of
    each expert is rounded too.

    Args:
        x: [T, hidden], contiguous, T > 0; in the dtype of the weights, or, where these are packed, in the dtype to
            compute in.
        experts, weights: [T, k], int32 and float32.
        gate_up: [E, 2 * n, hidden], contiguous.
        down: [E, hidden, n], contiguous.
        early: see `CudaOps`.
        rule: biases and activation.
    """
    (tokens, top_k), num_experts, wide = experts.shape, gate_up.shape[0], x.element_size() == 4
    if isinstance(gate_up, PackedWeights) and isinstance(down, PackedWeights):
        by_pairs = tokens <= expert_codes_gemm.MAX_PAIRED
        tile = TILES[0] if by_pairs or wide else codes_tile_of(tokens, top_k, num_experts)
        routed = experts if by_pairs else list_tiles(experts, num_experts, tile, early)
        values = x
        for weight, gated in ((gate_up, True), (down, False)):
            cut = FLOAT32_CODES if wide else find_codes_config(tile, weight, gated=gated, tokens=tokens)
            values = expert_codes_gemm.multiply(
                values, weight, routed, tile, cut, top_k=top_k, gated=gated, early=early, rule=rule
            )
        return weighted_sum(values, weights, early)
    assert isinstance(gate_up, torch.Tensor)
    assert isinstance(down, torch.Tensor)
    tile = FLOAT32_TILE if wide else tile_of(tokens, top_k, num_experts)
    cut, down_cut = (FLOAT32 if wide else find_config(tile, gated=gated) for gated in (True, False))
    tiles = list_tiles(experts, num_experts, tile, early)
    inner = multiply(x, gate_up, tiles, tile, cut, top_k=top_k, gated=True, early=early, rule=rule)
    each = multiply(inner, down, tiles, tile, down_cut, top_k=top_k, gated=False, early=early, rule=rule)
    return weighted_sum(each, weights, early)


def multiply(
    x: torch.Tensor, weight: torch.Tensor, tiles: Tiles, tile: int, cut: Config, *, top_k: int, gated: bool,
    early: bool = False, rule: ExpertRule = SILU,
) -> torch.Tensor:  # fmt: skip
    """Multiply each token with the weights of its experts.

    Args:
        x: gated: [T, columns], a row for each token; else [T * k, columns], one for each position in `tiles.pairs`.
        weight: [E, rows, columns]; gated: the rows of gate, then those of up.
        tiles: of `tile` tokens each.

    Returns:
        gated: the gated product [T * k, rows / 2], one row for each position; else [T * k, rows], one for each pair.
    """
    rows, columns = weight.shape[1] // (1 + gated), x.shape[1]
    out = torch.empty(tiles.pairs.shape[0], rows, dtype=x.dtype, device=x.device)
    # The copy engine fetches rows of other experts past the end of a matrix; they reach no row that is stored.
    bulk = cut.bulk and _copies(weight)
    weight_map = TensorDescriptor.from_tensor(weight.flatten(0, 1), [cut.rows, cut.step]) if bulk else None
    bias = rule.gate_up_bias if gated else rule.down_bias
    _expert_gemm_kernel[(tiles.tiles.shape[0] * triton.cdiv(rows, cut.rows),)](
        x, weight, weight_map, bias, tiles.pairs, tiles.tiles, tiles.num_tiles, out, rows, columns,
        top_k, tile, cut.rows, cut.step, gated, cut.tokens_first, columns % cut.step == 0, rule.alpha, rule.limit,
        early,
        num_warps=cut.warps, num_stages=cut.stages, launch_pdl=early,
    )  # fmt: skip
    return out


def _copies(weight: torch.Tensor) -> bool:
    return (
        weight.element_size() == 2
        and weight.shape[2] % ALIGNMENT == 0
        and weight.data_ptr() % 16 == 0
        and has_copy_engine(weight.device)
    )


def weighted_sum(values: torch.Tensor, weights: torch.Tensor, early: bool = False) -> torch.Tensor:
    """Return the sums [T, n] in the dtype of values [T * k, n], times weights float32 [T, k]."""
    (tokens, top_k), size = weights.shape, values.shape[1]
    out = torch.empty(tokens, size, dtype=values.dtype, device=values.device)
    block = min(SUM_BLOCK, triton.next_power_of_2(size))
    _weighted_sum_kernel[(tokens, triton.cdiv(size, block))](
        values, weights, out, size, top_k, block, early, num_warps=SUM_WARPS, launch_pdl=early
    )
    return out
