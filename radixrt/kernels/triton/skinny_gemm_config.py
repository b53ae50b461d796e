"""How products of `skinny_gemm` are cut up, and which are worth while: measured on an H200."""

from __future__ import annotations

from typing import NamedTuple

MIN_BLOCK = 16
"""Tokens to which a smaller batch is padded: the least that the tensor cores' tiles take."""

MAX_TOKENS = 256
"""Of the kernel; see `find` for when it is worth while."""

MAX_TILES = 1024
MAX_PARTS = 1 << 23
"""Counters and float32 sums of a workspace."""


class Config(NamedTuple):
    """How a product is cut up.

    Attributes:
        rows: of the weight in a tile; of each half where gate and up are multiplied.
        step: columns that a program multiplies at a time.
        splits: programs among which a tile's columns are divided.
        stages: steps whose bytes are in flight or in use.
        warps: of a program.
        tokens_first: the tensor cores' tiles have tokens as rows; else the weight's rows.
        bulk: the copy engine fetches tiles, by descriptors; else each thread does its part.
        ahead: columns of its part that a program asks the L2 cache to fetch before it waits for the kernel before.
    """

    rows: int
    step: int
    splits: int
    stages: int
    warps: int
    tokens_first: bool = False
    bulk: bool = False
    ahead: int = 0


class Product(NamedTuple):
    """A weight [rows, columns]; gated: its halves are gate and up, and silu and their product follow."""

    rows: int
    columns: int
    gated: bool


# fmt: off
CONFIGS: dict[Product, dict[int, Config]] = {
    Product(4096, 1024, False): {
        16: Config(64, 128, 1, 8, 4, False, False, 512),
        32: Config(64, 256, 1, 4, 4, False, True, 512),
        64: Config(64, 128, 1, 5, 4, False, True, 512),
        128: Config(32, 128, 1, 5, 4, True, True, 0),
    },
    Product(1024, 2048, False): {
        16: Config(64, 256, 8, 2, 4, False, True, 256),
        32: Config(16, 256, 2, 5, 4, False, True, 1024),
        64: Config(16, 256, 1, 4, 4, True, True, 2048),
        128: Config(16, 256, 1, 3, 4, True, True, 2048),
    },
    Product(6144, 1024, True): {
        16: Config(32, 256, 1, 5, 4, False, True, 0),
        32: Config(32, 256, 1, 4, 4, False, True, 0),
        64: Config(32, 256, 1, 3, 4, True, True, 0),
        128: Config(32, 128, 1, 4, 4, True, True, 0),
    },
    Product(1024, 3072, False): {
        16: Config(64, 256, 8, 3, 4, False, False, 512),
        32: Config(32, 256, 4, 4, 4, False, True, 512),
        64: Config(16, 256, 1, 5, 4, True, True, 2048),
        128: Config(16, 128, 2, 6, 4, True, True, 0),
    },
    Product(4096, 4096, False): {
        16: Config(64, 256, 1, 5, 4, False, True, 0),
        32: Config(64, 128, 1, 8, 4, False, False, 0),
        64: Config(32, 256, 1, 4, 4, True, True, 0),
        128: Config(32, 128, 1, 5, 4, True, True, 0),
    },
    Product(28672, 4096, True): {
        16: Config(32, 128, 1, 5, 4, False, False, 0),
        32: Config(128, 128, 1, 3, 4, False, False, 128),
        64: Config(32, 128, 1, 3, 4, True, True, 0),
        128: Config(64, 64, 1, 3, 4, False, True, 256),
    },
    Product(4096, 14336, False): {
        16: Config(64, 256, 1, 5, 4, False, True, 0),
        32: Config(64, 128, 1, 8, 4, False, True, 0),
        64: Config(32, 256, 1, 4, 4, True, True, 0),
        128: Config(64, 128, 2, 4, 8, False, True, 512),
    },
    Product(3072, 4096, False): {
        16: Config(32, 256, 4, 4, 4, False, True, 0),
        32: Config(64, 256, 2, 4, 4, False, False, 0),
        64: Config(32, 256, 1, 4, 4, True, True, 0),
    },
    Product(4096, 2048, False): {
        16: Config(64, 256, 1, 5, 4, False, True, 0),
        32: Config(64, 128, 1, 8, 4, False, True, 0),
        64: Config(32, 256, 1, 4, 4, True, True, 0),
        128: Config(32, 128, 1, 5, 4, True, True, 0),
    },
    Product(14336, 4096, True): {
        16: Config(64, 128, 1, 4, 4, False, False, 0),
        32: Config(64, 128, 1, 4, 4, False, False, 0),
        64: Config(64, 128, 1, 4, 4, False, True, 0),
        128: Config(64, 128, 1, 3, 8, True, True, 0),
    },
    Product(4096, 7168, False): {
        16: Config(64, 256, 1, 5, 4, False, True, 0),
        32: Config(64, 128, 1, 8, 4, False, True, 0),
        64: Config(64, 128, 1, 7, 4, True, True, 0),
        128: Config(32, 128, 1, 5, 4, True, True, 0),
    },
    Product(1536, 4096, False): {
        16: Config(64, 128, 4, 8, 4, False, False, 0),
        32: Config(64, 256, 4, 4, 4, False, False, 0),
        64: Config(16, 256, 1, 5, 4, True, True, 0),
        128: Config(32, 128, 2, 5, 4, True, True, 0),
    },
    Product(7168, 4096, True): {
        16: Config(32, 256, 1, 4, 4, False, True, 0),
        32: Config(32, 256, 1, 4, 4, False, True, 0),
        64: Config(32, 256, 1, 3, 4, True, True, 0),
        128: Config(32, 128, 1, 4, 4, True, True, 0),
    },
    Product(4096, 3584, False): {
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


def find(tokens: int, rows: int, columns: int, *, gated: bool) -> Config | None:
    """How x [tokens, columns] times a weight [rows, columns] is cut up; None: cuBLAS is the better choice.

    Args:
        rows: of the whole weight, both halves of a gated one.
    """
    return CONFIGS.get(Product(rows, columns, gated), {}).get(padded(tokens)) if tokens else None


def padded(tokens: int) -> int:
    """Tokens with padding: a power of 2, of at least MIN_BLOCK."""
    return max(MIN_BLOCK, 1 << (tokens - 1).bit_length())
