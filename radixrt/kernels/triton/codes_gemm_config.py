"""Tilings of `skinny_gemm` for weights of 8 and 4 bits, and the numbers of tokens for which it is used: where codes are
converted to the dtype of activations, and where activations are quantized to float8."""

from __future__ import annotations

from radixrt.kernels.triton.skinny_gemm_config import MAX_PARTS, MAX_TILES, Config, padded_tokens

MAX_TOKENS = 512
"""Most tokens of a product that reads the weight as codes; with more, dequantizing the weight first is faster."""

ROWS = 64
"""Rows of a tile: those of an instruction of the tensor cores whose operand in registers is the weight."""

SMS = 132
"""SMs of an H100 or H200."""

MIN_PROGRAMS = 200
"""Programs that keep the SMs busy, about: columns are divided among programs until there are so many."""
MAX_SPLITS = 8

SHARED_BYTES = 225 * 1024
"""Shared memory of an SM for all of its programs."""
MAX_STAGES = 8

TOKENS = 128
"""Tokens of a tile where there are many."""


def find_config(tokens: int, rows: int, columns: int, *, gated: bool, bits: int, group: int) -> Config:
    """Return the tiling for x [tokens, columns] times a weight [rows, columns] of codes.

    One rule for all shapes, since there is no other good way to multiply by codes. For the linear layers of
    Llama-3.1-8B its tilings are within a few percent of the best of dozens.

    Args:
        rows: of the whole weight, both halves of a gated one.
        bits: of a code.
        group: columns that share a scale; 0 for whole rows.
    """
    width, halves = padded_tokens(tokens), 1 + gated
    if width > TOKENS or (width == TOKENS and gated and bits == 4 and group):
        return _find_config_of_many(width, rows // halves, columns, gated=gated, bits=bits, group=group)
    if gated and width > 64 and bits == 8:
        return Config(2 * ROWS, 128, 1, 3, 8, bulk=True)
    wide = bits == 4 and width == 16 and not gated
    tile = 2 * ROWS if wide else ROWS
    step = 256 if bits == 8 and width == 16 and not group and not gated and columns >= 1024 else 128
    tiles = -(-rows // halves // tile)
    splits = 1
    while (
        splits < MAX_SPLITS
        and tiles * splits < MIN_PROGRAMS
        and (not (wide or width == TOKENS) or splits * tiles <= SMS)
        and columns // (2 * splits) >= 2 * step
        and tiles <= MAX_TILES
        and 2 * splits * tiles * tile * width * halves <= MAX_PARTS
    ):
        splits *= 2
    if wide:
        return Config(tile, step, splits, 4, 8, ahead=512)
    # All programs run at once, as long as three or four of them fit on an SM: a second round would take as long again.
    resident = min(4 if width == 16 else 3, max(2, -(-tiles * splits // SMS)))
    of_stage = step * (tile * halves * bits // 8 + 2 * width)
    stages = max(3, min(MAX_STAGES, SHARED_BYTES // resident // of_stage))
    return Config(tile, step, splits, stages, 4, bulk=not (gated and bits == 8 and width == 16))


def max_tokens_of_e4m3(rows: int, *, group: int) -> int:
    """Return `MAX_TOKENS` where a product with activations in float8 is the alternative.

    In blocks, that product has to scale its sums for every 128 columns, so that it pays for large weights alone.
    """
    return 64 if group and rows < 2 * ROWS * SMS else 32


def find_float8_config(tokens: int, rows: int, columns: int, *, gated: bool, group: int) -> Config | None:
    """Return the tiling for x in float8 [tokens, columns] times a weight [rows, columns] of e4m3 codes; None where
    cuBLAS is the better choice.

    cuBLAS divides no columns among programs, so that a weight of few rows keeps few SMs busy. On an H200, microseconds
    of `skinny_gemm` and of cuBLAS, which silu follows where gated, for scales of rows:

    ===============================  ===========  ===========  ===========
    rows x columns                   64 tokens    128 tokens   256 tokens
    ===============================  ===========  ===========  ===========
    6144 x 4096                       9.7  13.8   10.4  13.8   14.1  14.2
    4096 x 4096                       8.7  13.3    9.8  13.6    9.7  13.8
    4096 x 14336                     20.0  37.3   21.9  36.8   25.9  37.1
    28672 x 4096, silu and product   31.9  39.5   35.1  36.8   51.4  53.9
    ===============================  ===========  ===========  ===========

    Args:
        rows: of the whole weight, both halves of a gated one.
        group: columns that share a scale; 0 for whole rows.
    """
    width = padded_tokens(tokens)
    if gated:  # two programs fit on an SM
        if width <= 64:
            return Config(ROWS, 128, 1, 4, 4, bulk=True) if group else Config(ROWS, 256, 1, 2, 4, bulk=True, ahead=512)
        return None if group or width > TOKENS else Config(ROWS, 128, 1, 3, 8, bulk=True, ahead=512)
    tile = min(width, TOKENS)
    tiles = -(-rows // ROWS) * -(-tokens // tile)
    if group or (tiles > SMS and width > 64):
        return None
    # One program for each SM, with as many steps in flight as fit.
    splits = 1
    while splits < MAX_SPLITS and 2 * splits * tiles <= SMS and columns // (2 * splits) >= 4 * 128:
        splits *= 2
    return Config(ROWS, 128, splits, MAX_STAGES, 4, bulk=True, ahead=512, tokens=tile)


def _find_config_of_many(width: int, rows: int, columns: int, *, gated: bool, bits: int, group: int) -> Config:
    """Return the tiling for a padded number of tokens that is more than a tile has; rows are those of one half."""
    tiles = -(-rows // ROWS) * (width // TOKENS)
    splits = 2 if tiles <= SMS and columns >= 1024 and not gated else 1
    # Two programs fit on an SM with three stages, and three programs with two.
    two_stages = bits == 8 if gated else 2 * SMS < tiles <= 3 * SMS
    return Config(ROWS, 128, splits, 2 if two_stages else 3, 4, bulk=True, tokens=TOKENS, rounds=group > 0)
