"""Tilings of `skinny_gemm` for weights of 8 and 4 bits, and the numbers of tokens for which it is used."""

from __future__ import annotations

from radixrt.kernels.triton.skinny_gemm_config import MAX_PARTS, MAX_TILES, Config, padded_tokens

MAX_TOKENS = 512
"""Most tokens of a product that reads the weight as codes; with more, dequantizing the weight first is faster."""

MAX_TOKENS_OF_FLOAT8 = 64
"""The same where a product with activations in float8 is the alternative."""

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


def _find_config_of_many(width: int, rows: int, columns: int, *, gated: bool, bits: int, group: int) -> Config:
    """Return the tiling for a padded number of tokens that is more than a tile has; rows are those of one half."""
    tiles = -(-rows // ROWS) * (width // TOKENS)
    splits = 2 if tiles <= SMS and columns >= 1024 and not gated else 1
    # Two programs fit on an SM with three stages, and three programs with two.
    two_stages = bits == 8 if gated else 2 * SMS < tiles <= 3 * SMS
    return Config(ROWS, 128, splits, 2 if two_stages else 3, 4, bulk=True, tokens=TOKENS, rounds=group > 0)
