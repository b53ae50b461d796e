"""Tilings of `skinny_gemm` for weights of 8 and 4 bits, and the numbers of tokens for which it is used."""

from __future__ import annotations

from radixrt.kernels.triton.skinny_gemm_config import MAX_PARTS, MAX_TILES, Config, padded_tokens

MAX_TOKENS = 64
"""Most tokens of a product that reads the weight as codes: with more, the tensor cores are the bound, not memory."""

ROWS = 64
"""Rows of a tile: those of an instruction of the tensor cores whose operand in registers is the weight."""

MIN_PROGRAMS = 200
"""Programs that keep the SMs of an H100 or H200 busy, about: columns are divided among programs until there are so
many."""
MAX_SPLITS = 8

SHARED_BYTES = 110 * 1024
"""Shared memory of a program: two of them fit on an SM."""
MAX_STAGES = 8


def find_config(tokens: int, rows: int, columns: int, *, gated: bool, bits: int, group: int) -> Config:
    """Return the tiling for x [tokens, columns] times a weight [rows, columns] of codes.

    One rule is good for all shapes, within a few percent of the best tiling of the linear layers of Llama-3.1-8B.

    Args:
        rows: of the whole weight, both halves of a gated one.
        bits: of a code.
        group: columns that share a scale; 0 for whole rows.
    """
    width, halves = padded_tokens(tokens), 1 + gated
    step = 256 if bits == 8 and width == 16 and not group and not gated and columns >= 1024 else 128
    tiles = -(-rows // halves // ROWS)
    splits = 1
    while (
        splits < MAX_SPLITS
        and tiles * splits < MIN_PROGRAMS
        and columns // (2 * splits) >= 2 * step
        and tiles <= MAX_TILES
        and 2 * splits * tiles * ROWS * width * halves <= MAX_PARTS
    ):
        splits *= 2
    of_stage = step * (ROWS * halves * bits // 8 + 2 * width)
    return Config(ROWS, step, splits, max(2, min(MAX_STAGES, SHARED_BYTES // of_stage)), 4, bulk=True)
