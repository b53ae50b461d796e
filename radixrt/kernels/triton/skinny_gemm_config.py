"""Tile configurations of `skinny_gemm`, and the GEMMs for which it beats cuBLAS, measured on an H200."""

from __future__ import annotations

from typing import NamedTuple

MIN_BLOCK = 16
"""Tokens to which a smaller batch is padded: the smallest tile of the tensor cores."""

MAX_TOKENS = 256
"""Most tokens that the kernel supports; `find_config` decides when it is used."""

MAX_PADDED, TOKEN_TILE = 512, 128
"""Most tokens behind which there is room up to a whole tile, and tokens of a tile where there are more than
MAX_TOKENS: codes are multiplied by so many."""

MAX_TILES = 1024
MAX_PARTS = 1 << 23
"""Counters and float32 partial sums of a workspace."""


class Config(NamedTuple):
    """Tiling of a GEMM.

    Attributes:
        rows: rows of the weight in a tile; rows of each half, where gate and up are multiplied.
        step: columns that a program multiplies at a time.
        splits: programs among which a tile's columns are divided (split-K).
        stages: steps whose bytes are in flight or in use.
        warps: of a program.
        tokens_first: whether the tensor cores' tiles have tokens as rows; else they have the weight's rows.
        bulk: whether the copy engine fetches tiles, by descriptors; else the threads do.
        ahead: columns that a program prefetches into the L2 cache before it waits for the kernel before.
        tokens: of a tile; 0 for all of them.
        rounds: whether codes with scales of groups are scaled before they are multiplied, and rounded: many tokens need
            too many registers for the sums of a group.
    """

    rows: int
    step: int
    splits: int
    stages: int
    warps: int
    tokens_first: bool = False
    bulk: bool = False
    ahead: int = 0
    tokens: int = 0
    rounds: bool = False


class GemmShape(NamedTuple):
    """A weight [rows, columns]; gated: its halves are gate and up, and silu(gate) * up is fused."""

    rows: int
    columns: int
    gated: bool


# fmt: off
CONFIGS: dict[GemmShape, dict[int, Config]] = {
    GemmShape(4096, 1024, False): {
        16: Config(64, 128, 1, 8, 4, False, False, 512),
        32: Config(64, 256, 1, 4, 4, False, True, 512),
        64: Config(64, 128, 1, 5, 4, False, True, 512),
        128: Config(32, 128, 1, 5, 4, True, True, 0),
    },
    GemmShape(1024, 2048, False): {
        16: Config(64, 256, 8, 2, 4, False, True, 256),
        32: Config(16, 256, 2, 5, 4, False, True, 1024),
        64: Config(16, 256, 1, 4, 4, True, True, 2048),
        128: Config(16, 256, 1, 3, 4, True, True, 2048),
    },
    GemmShape(6144, 1024, True): {
        16: Config(32, 256, 1, 5, 4, False, True, 0),
        32: Config(32, 256, 1, 4, 4, False, True, 0),
        64: Config(32, 256, 1, 3, 4, True, True, 0),
        128: Config(32, 128, 1, 4, 4, True, True, 0),
    },
    GemmShape(1024, 3072, False): {
        16: Config(64, 256, 8, 3, 4, False, False, 512),
        32: Config(32, 256, 4, 4, 4, False, True, 512),
        64: Config(16, 256, 1, 5, 4, True, True, 2048),
        128: Config(16, 128, 2, 6, 4, True, True, 0),
    },
    GemmShape(4096, 4096, False): {
        16: Config(64, 256, 1, 5, 4, False, True, 0),
        32: Config(64, 128, 1, 8, 4, False, False, 0),
        64: Config(32, 256, 1, 4, 4, True, True, 0),
        128: Config(32, 128, 1, 5, 4, True, True, 0),
    },
    GemmShape(28672, 4096, True): {
        16: Config(32, 128, 1, 5, 4, False, False, 0),
        32: Config(128, 128, 1, 3, 4, False, False, 128),
        64: Config(32, 128, 1, 3, 4, True, True, 0),
        128: Config(64, 64, 1, 3, 4, False, True, 256),
    },
    GemmShape(4096, 14336, False): {
        16: Config(64, 256, 1, 5, 4, False, True, 0),
        32: Config(64, 128, 1, 8, 4, False, True, 0),
        64: Config(32, 256, 1, 4, 4, True, True, 0),
        128: Config(64, 128, 2, 4, 8, False, True, 512),
    },
    GemmShape(3072, 4096, False): {
        16: Config(32, 256, 4, 4, 4, False, True, 0),
        32: Config(64, 256, 2, 4, 4, False, False, 0),
        64: Config(32, 256, 1, 4, 4, True, True, 0),
    },
    GemmShape(4096, 2048, False): {
        16: Config(64, 256, 1, 5, 4, False, True, 0),
        32: Config(64, 128, 1, 8, 4, False, True, 0),
        64: Config(32, 256, 1, 4, 4, True, True, 0),
        128: Config(32, 128, 1, 5, 4, True, True, 0),
    },
    GemmShape(14336, 4096, True): {
        16: Config(64, 128, 1, 4, 4, False, False, 0),
        32: Config(64, 128, 1, 4, 4, False, False, 0),
        64: Config(64, 128, 1, 4, 4, False, True, 0),
        128: Config(64, 128, 1, 3, 8, True, True, 0),
    },
    GemmShape(4096, 7168, False): {
        16: Config(64, 256, 1, 5, 4, False, True, 0),
        32: Config(64, 128, 1, 8, 4, False, True, 0),
        64: Config(64, 128, 1, 7, 4, True, True, 0),
        128: Config(32, 128, 1, 5, 4, True, True, 0),
    },
    GemmShape(1536, 4096, False): {
        16: Config(64, 128, 4, 8, 4, False, False, 0),
        32: Config(64, 256, 4, 4, 4, False, False, 0),
        64: Config(16, 256, 1, 5, 4, True, True, 0),
        128: Config(32, 128, 2, 5, 4, True, True, 0),
    },
    GemmShape(7168, 4096, True): {
        16: Config(32, 256, 1, 4, 4, False, True, 0),
        32: Config(32, 256, 1, 4, 4, False, True, 0),
        64: Config(32, 256, 1, 3, 4, True, True, 0),
        128: Config(32, 128, 1, 4, 4, True, True, 0),
    },
    GemmShape(4096, 3584, False): {
        16: Config(64, 256, 1, 5, 4, False, True, 0),
        32: Config(64, 128, 1, 8, 4, False, True, 0),
        64: Config(32, 256, 1, 4, 4, True, True, 0),
        128: Config(32, 128, 1, 5, 4, True, True, 0),
    },
}
# fmt: on
"""By padded number of tokens: the best of dozens of tilings for each linear layer of Qwen3-0.6B, of Llama-3.1-8B, and
of the latter's shards on two and four ranks, where it beat cuBLAS (`python -m benchmarks.kernels.skinny_gemm_tuning`).
Elsewhere cuBLAS is the safer choice: a tiling that is good for one weight may take a third longer than cuBLAS with
another."""


def find_config(tokens: int, rows: int, columns: int, *, gated: bool) -> Config | None:
    """Return the tiling for x [tokens, columns] times a weight [rows, columns]; None where cuBLAS is the better choice.

    Args:
        rows: of the whole weight, both halves of a gated one.
    """
    return CONFIGS.get(GemmShape(rows, columns, gated), {}).get(padded_tokens(tokens)) if tokens else None


def padded_tokens(tokens: int) -> int:
    """Round a number of tokens up to a power of 2 of at least MIN_BLOCK."""
    return max(MIN_BLOCK, 1 << (tokens - 1).bit_length())


def allocated_tokens(tokens: int) -> int:
    """Return the rows to allocate for an input of GEMMs: up to MAX_PADDED, those of whole tiles."""
    if 0 < tokens <= MAX_TOKENS:
        return padded_tokens(tokens)
    return -(-tokens // TOKEN_TILE) * TOKEN_TILE if tokens <= MAX_PADDED else tokens
