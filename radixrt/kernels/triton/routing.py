"""Routing of tokens to experts: logits in float32, and each token's best experts with the weights of a softmax.

For a few tokens, one launch computes the logits, one program for each expert, and the last program to end chooses. For
more tokens, tiles of tokens and experts are multiplied with the columns split over programs, and a second launch adds
the parts up and chooses. Logits have the precision of float32: the tensor cores multiply three times, with the factors
split into parts that they represent exactly.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from radixrt.kernels.triton.skinny_gemm_config import padded_tokens

MAX_FEW = 4
"""Most tokens for which one launch computes everything."""

MAX_FEW_COLUMNS = 8192
"""Largest hidden size for which it does: a program holds a whole row of the router."""

NUM_WARPS = 4
TOKENS_OF_CHOICE = 4
"""Tokens of a program that chooses; each is a warp's."""

ROWS, STEP, STAGES = 32, 64, 3
"""Experts of a tile, columns that a program multiplies at a time, and such steps whose bytes are in flight."""
MAX_TILE = 64
MIN_PROGRAMS = 132
MAX_SPLITS = 16

LOWEST = tl.constexpr(-3e38)
"""Replaces logits that are not a number, so that the chosen experts exist, and differ, whatever the token's state."""


@triton.jit
def _choose(
    logits, gate, TOKENS: tl.constexpr, NUM_EXPERTS: tl.constexpr, TOP_K: tl.constexpr, SHARED: tl.constexpr,
    RENORMALIZE: tl.constexpr, BINS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """Choose experts for logits [TOKENS, BINS], -inf behind the last expert; of equal ones, the first.

    gate: [TOKENS], logits of the shared expert's gate.

    Returns the experts, int32, and their weights, float32, [TOKENS, PLACES], the shared ones behind the chosen.
    """
    expert = tl.arange(0, BINS)[None, :]
    place = tl.arange(0, PLACES)[None, :]
    logits = tl.where(logits == logits, logits, LOWEST)
    top = tl.max(logits, axis=1)
    total = tl.sum(tl.exp(logits - top[:, None]), axis=1)
    chosen_total = tl.zeros((TOKENS,), tl.float32)
    experts = tl.zeros((TOKENS, PLACES), tl.int32)
    weights = tl.zeros((TOKENS, PLACES), tl.float32)
    for j in tl.static_range(TOP_K):
        best, at = tl.max(logits, axis=1, return_indices=True)
        weight = tl.exp(best - top)
        chosen_total += weight
        experts = tl.where(place == j, at[:, None], experts)
        weights = tl.where(place == j, weight[:, None], weights)
        logits = tl.where(expert == at[:, None], float("-inf"), logits)
    weights = weights / (chosen_total if RENORMALIZE else total)[:, None]
    if SHARED > 0:
        experts = tl.where(place >= TOP_K, NUM_EXPERTS + place - TOP_K, experts)
        weights = tl.where(place >= TOP_K, (1.0 / (1.0 + tl.exp(-gate)))[:, None], weights)
    return experts, weights


@triton.jit
def _store_choice(
    experts, weights, experts_out, weights_out, token, tokens, TOP_K: tl.constexpr, SHARED: tl.constexpr,
    PLACES: tl.constexpr,
):  # fmt: skip
    place = tl.arange(0, PLACES)[None, :]
    to = token * (TOP_K + SHARED) + place
    inside = (token < tokens) & (place < TOP_K + SHARED)
    tl.store(experts_out + to, experts, mask=inside)
    tl.store(weights_out + to, weights, mask=inside)


@triton.jit
def _route_few_kernel(
    x, router, bias, logits, arrived, experts_out, weights_out,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr, PADDED: tl.constexpr, NUM_EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr, SHARED: tl.constexpr, RENORMALIZE: tl.constexpr, BINS: tl.constexpr, PLACES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """A program for each row of the router; the last one to end chooses for all tokens.

    bias: float32, one for each row, or None.
    """
    row = tl.program_id(0)
    rows = tl.num_programs(0)
    at = tl.arange(0, BLOCK)
    inside = at < SIZE
    weight = tl.load(router + row * SIZE + at, mask=inside, other=0.0)
    offset = 0.0
    if bias is not None:
        offset = tl.load(bias + row)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    for i in tl.static_range(TOKENS):
        part = tl.load(x + i * SIZE + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(logits + i * rows + row, tl.sum(weight * part, axis=0) + offset)
    tl.debug_barrier()  # all logits are written before one thread counts the program
    if tl.atomic_add(arrived, 1, sem="acq_rel") == rows - 1:
        token = tl.arange(0, PADDED)
        expert = tl.arange(0, BINS)[None, :]
        of_token = logits + token[:, None] * rows
        known = (token < TOKENS)[:, None] & (expert < NUM_EXPERTS)
        values = tl.load(of_token + expert, mask=known, other=float("-inf"), cache_modifier=".cg")
        gate = token.to(tl.float32)
        if SHARED > 0:
            gate = tl.load(logits + token * rows + NUM_EXPERTS, mask=token < TOKENS, other=0.0, cache_modifier=".cg")
        experts, weights = _choose(values, gate, PADDED, NUM_EXPERTS, TOP_K, SHARED, RENORMALIZE, BINS, PLACES)
        _store_choice(experts, weights, experts_out, weights_out, token[:, None], TOKENS, TOP_K, SHARED, PLACES)
        tl.store(arrived, 0)


@triton.jit(do_not_specialize=["tokens", "each"])
def _logits_kernel(
    x, router, parts, tokens, num_rows, columns, each,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, EVEN: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute parts [splits, tokens, num_rows]; `each` is the steps of a split, of which the last may have fewer."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(2)
    in_x = x + tl.minimum(token, tokens - 1).to(tl.int64)[:, None] * columns
    in_router = router + tl.minimum(row, num_rows - 1)[:, None] * columns
    sums = tl.zeros((TOKENS, ROWS), tl.float32)
    for step in tl.range(split * each, tl.minimum((split + 1) * each, tl.cdiv(columns, STEP))):
        at = step * STEP + tl.arange(0, STEP)[None, :]
        if EVEN:
            x_tile = tl.load(in_x + at)
            w = tl.load(in_router + at)
        else:
            x_tile = tl.load(in_x + at, mask=at < columns, other=0.0)
            w = tl.load(in_router + at, mask=at < columns, other=0.0)
        sums = tl.dot(x_tile.to(tl.float32), tl.trans(w), sums, input_precision="tf32x3")
    to = (split * tokens + token).to(tl.int64)[:, None] * num_rows + row[None, :]
    tl.store(parts + to, sums, mask=(token < tokens)[:, None] & (row < num_rows)[None, :])


@triton.jit(do_not_specialize=["tokens"])
def _choose_kernel(
    parts, bias, experts_out, weights_out, tokens,
    TOKENS: tl.constexpr, SPLITS: tl.constexpr, NUM_ROWS: tl.constexpr, NUM_EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr, SHARED: tl.constexpr, RENORMALIZE: tl.constexpr, BINS: tl.constexpr, PLACES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Add up the parts [SPLITS, tokens, NUM_ROWS] of logits, in order, and the bias [NUM_ROWS], if there is one, and
    choose."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    expert = tl.arange(0, BINS)[None, :]
    inside = token < tokens
    known = inside[:, None] & (expert < NUM_EXPERTS)
    values = tl.where(expert < NUM_EXPERTS, tl.zeros((TOKENS, BINS), tl.float32), float("-inf"))
    gate = tl.zeros((TOKENS,), tl.float32)
    for split in tl.static_range(SPLITS):
        of_token = parts + (split * tokens + token).to(tl.int64) * NUM_ROWS
        values += tl.load(of_token[:, None] + expert, mask=known, other=0.0)
        if SHARED > 0:
            gate += tl.load(of_token + NUM_EXPERTS, mask=inside, other=0.0)
    if bias is not None:
        values += tl.load(bias + expert, mask=expert < NUM_EXPERTS, other=0.0)
        if SHARED > 0:
            gate += tl.load(bias + NUM_EXPERTS)
    experts, weights = _choose(values, gate, TOKENS, NUM_EXPERTS, TOP_K, SHARED, RENORMALIZE, BINS, PLACES)
    _store_choice(experts, weights, experts_out, weights_out, token[:, None], tokens, TOP_K, SHARED, PLACES)


def route(
    x: torch.Tensor, router: torch.Tensor, arrived: torch.Tensor, *, top_k: int, num_shared: int, renormalize: bool,
    bias: torch.Tensor | None = None, early: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Route tokens as `radixrt.layers.routing.route` does.

    Args:
        x: [T, hidden] in any floating dtype, contiguous.
        router: float32 [num_experts, hidden], then the row of the shared expert's gate if there are shared experts.
        arrived: int32 [1], 0 between launches, for one stream at a time.
        bias: float32, added to the logits, one for each row of the router.
        early: see `CudaOps`.

    Returns:
        The experts, int32 [T, top_k + num_shared], and their weights, float32.
    """
    (tokens, size), rows, places = x.shape, router.shape[0], top_k + num_shared
    num_experts = rows - (num_shared > 0)
    experts = torch.empty(tokens, places, dtype=torch.int32, device=x.device)
    weights = torch.empty(tokens, places, dtype=torch.float32, device=x.device)
    if not tokens:
        return experts, weights
    of_choice = (num_experts, top_k, num_shared, renormalize)
    padded = (triton.next_power_of_2(num_experts), triton.next_power_of_2(places))
    if tokens <= MAX_FEW and size <= MAX_FEW_COLUMNS:
        logits = torch.empty(tokens, rows, dtype=torch.float32, device=x.device)
        _route_few_kernel[(rows,)](
            x, router, bias, logits, arrived, experts, weights,
            size, triton.next_power_of_2(size), tokens, triton.next_power_of_2(tokens), *of_choice, *padded, early,
            num_warps=NUM_WARPS, launch_pdl=early,
        )  # fmt: skip
        return experts, weights
    tile, splits = _cut(tokens, rows, size)
    each = triton.cdiv(triton.cdiv(size, STEP), splits)
    parts = torch.empty(splits, tokens, rows, dtype=torch.float32, device=x.device)
    _logits_kernel[(triton.cdiv(tokens, tile), triton.cdiv(rows, ROWS), splits)](
        x, router, parts, tokens, rows, size, each, tile, ROWS, STEP, size % STEP == 0, early,
        num_warps=NUM_WARPS, num_stages=STAGES, launch_pdl=early,
    )  # fmt: skip
    _choose_kernel[(triton.cdiv(tokens, TOKENS_OF_CHOICE),)](
        parts, bias, experts, weights, tokens, TOKENS_OF_CHOICE, splits, rows, *of_choice, *padded, early,
        num_warps=NUM_WARPS, launch_pdl=early,
    )  # fmt: skip
    return experts, weights


def _cut(tokens: int, rows: int, columns: int) -> tuple[int, int]:
    """Tokens of a tile, and the splits of the columns that make enough programs; alike for all numbers of tokens that
    are padded alike."""
    padded = padded_tokens(tokens)
    tile = min(MAX_TILE, padded)
    programs = padded // tile * triton.cdiv(rows, ROWS)
    splits = 1
    while splits < MAX_SPLITS and programs * splits < MIN_PROGRAMS and 2 * splits * STEP <= columns:
        splits *= 2
    steps = triton.cdiv(columns, STEP)
    return tile, triton.cdiv(steps, triton.cdiv(steps, splits))
