"""Tile configurations of `expert_gemm`, by the number of tokens that an expert gets on average."""

from __future__ import annotations

from typing import NamedTuple

from radixrt.kernels.triton.skinny_gemm_config import padded_tokens

TILES = (16, 32, 64, 128)
"""Tokens of a tile."""


class Config(NamedTuple):
    """Tiling of the GEMMs of the tiles of one size.

    Attributes:
        rows: rows of an expert's weight that a program multiplies; rows of each half, where gate and up are multiplied.
        step: columns that a program multiplies at a time.
        stages: steps whose bytes are in flight or in use.
        warps: of a program.
        tokens_first: whether the tensor cores' tiles have tokens as rows; else they have the weight's rows.
        bulk: whether the copy engine fetches the weight, by a descriptor; else the threads do.
    """

    rows: int
    step: int
    stages: int
    warps: int
    tokens_first: bool = False
    bulk: bool = False


GATED: dict[int, Config] = {
    16: Config(64, 128, 3, 4),
    32: Config(128, 128, 3, 8, bulk=True),
    64: Config(128, 64, 5, 4, tokens_first=True, bulk=True),
    128: Config(128, 64, 4, 8, tokens_first=True, bulk=True),
}
PLAIN: dict[int, Config] = {
    16: Config(64, 128, 3, 4),
    32: Config(64, 128, 3, 4),
    64: Config(128, 64, 3, 4, tokens_first=True, bulk=True),
    128: Config(256, 64, 4, 8, tokens_first=True, bulk=True),
}
"""By the tokens of a tile: tilings of gate and up, and of down, which were the fastest on an H200 for the experts of
Qwen3-30B-A3B (`python -m benchmarks.kernels.experts --tune`).

With few tokens several programs share an SM, because each has little to read and waits for its tile before it begins.
"""
PACKED_GATED: dict[int, Config] = {
    16: Config(128, 128, 3, 4),
    32: Config(64, 64, 3, 4),
    64: Config(64, 64, 3, 4, tokens_first=True),
    128: Config(64, 64, 3, 4),
}
PACKED_PLAIN: dict[int, Config] = {
    16: Config(128, 128, 3, 4),
    32: Config(64, 128, 3, 4),
    64: Config(128, 64, 3, 4, tokens_first=True),
    128: Config(128, 64, 3, 8, tokens_first=True),
}
"""By the tokens of a tile: tilings of weights of MXFP4 numbers, which threads load, since they dequantize them: the
fastest on an H200 by `python -m benchmarks.kernels.experts --shape gpt-oss-20b --tune`."""
FLOAT32 = Config(32, 32, 2, 4)
FLOAT32_TILE = 16
"""For weights of four bytes, which serve comparisons: a tiling that fits, and its tiles' tokens."""


def tile_of(tokens: int, top_k: int, num_experts: int) -> int:
    """Return the tokens of a tile, for so many tokens that are each routed to top_k experts.

    Tokens are rarely routed evenly: a tile has twice as many as an expert gets on average, so that few experts have
    more than one and each weight is read once. With many tokens, reading the weights again costs little, and tiles
    that are not full cost more.
    """
    average = padded_tokens(tokens) * top_k // num_experts
    return next((tile for tile in TILES[:-1] if 2 * average <= tile), TILES[-1] if average > 64 else TILES[-2])


def find_config(tile: int, *, gated: bool, packed: bool = False) -> Config:
    """Return the tiling for tiles of so many tokens."""
    if packed:
        return (PACKED_GATED if gated else PACKED_PLAIN)[tile]
    return (GATED if gated else PLAIN)[tile]
