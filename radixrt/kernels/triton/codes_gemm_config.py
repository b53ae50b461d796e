"""Tilings of `skinny_gemm` for weights of 8 and 4 bits, and the numbers of tokens for which it is used."""

from __future__ import annotations

from radixrt.kernels.triton.skinny_gemm_config import MAX_PARTS, MAX_TILES, Config, padded_tokens

MAX_TOKENS = 128
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
    step = 256 if bits == 8 and width == 16 and not group and not gated and columns >= 1024 else 128
    if gated and width > 64 and bits == 8:
        return Config(2 * ROWS, 128, 1, 3, 8, bulk=True)
    tiles = -(-rows // halves // ROWS)
    least = 2 * MIN_PROGRAMS if gated and width > 64 else MIN_PROGRAMS
    splits = 1
    while (
        splits < MAX_SPLITS
        and tiles * splits < least
        and columns // (2 * splits) >= 2 * step
        and tiles <= MAX_TILES
        and 2 * splits * tiles * ROWS * width * halves <= MAX_PARTS
    ):
        splits *= 2
    # All programs run at once, as long as three or four of them fit on an SM: a second round would take as long again.
    resident = min(4 if width == 16 else 3, max(2, -(-tiles * splits // SMS)))
    of_stage = step * (ROWS * halves * bits // 8 + 2 * width)
    stages = max(3, min(MAX_STAGES, SHARED_BYTES // resident // of_stage))
    return Config(ROWS, step, splits, stages, 4, bulk=not (gated and bits == 8))
