"""Tile configurations of `expert_gemm`, by the number of tokens that an expert gets on average."""

from __future__ import annotations

from typing import NamedTuple

from radixrt.kernels.packed_weights import PackedWeights
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
CODES_GATED: dict[int, dict[int, Config]] = {
    8: {
        16: Config(128, 128, 3, 4, bulk=True),
        32: Config(64, 128, 2, 4, bulk=True),
        64: Config(64, 128, 2, 4, bulk=True),
        128: Config(128, 128, 3, 8, bulk=True),
    },
    4: {
        16: Config(64, 256, 2, 4, bulk=True),
        32: Config(64, 256, 2, 4, bulk=True),
        64: Config(128, 256, 3, 8, bulk=True),
        128: Config(128, 256, 2, 8, bulk=True),
    },
}
CODES_PLAIN: dict[int, dict[int, Config]] = {
    8: {
        16: Config(128, 128, 3, 4, bulk=True),
        32: Config(64, 128, 3, 4, bulk=True),
        64: Config(128, 128, 3, 8, bulk=True),
        128: Config(128, 128, 2, 4, bulk=True),
    },
    4: {
        16: Config(64, 256, 3, 4, bulk=True),
        32: Config(128, 256, 2, 4, bulk=True),
        64: Config(128, 256, 4, 8, bulk=True),
        128: Config(128, 256, 2, 8, bulk=True),
    },
}
"""By the bits of a code and the tokens of a tile: tilings of `expert_codes_gemm`, which were the fastest on an H200 for
Qwen3-30B-A3B in fp8 and gpt-oss-20b in MXFP4 (`python -m benchmarks.kernels.experts --weights fp8 --tune`).

The threads of a program wait for the tensor cores between conversions, so that several programs have to share an SM:
few stages are better than many.
"""
CODES_FEW, MAX_FEW = Config(64, 256, 4, 4, bulk=True), 2
"""Tiling for at most MAX_FEW tokens, whose programs are fewer than SMs: each has to have more bytes on their way."""
WIDEST_STEP = 128
"""Columns of a step where the scales of groups multiply sums: all are of one group."""
FLOAT32 = Config(32, 32, 2, 4)
FLOAT32_CODES = Config(32, 128, 2, 4)
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


def find_config(tile: int, *, gated: bool) -> Config:
    """Return the tiling for tiles of so many tokens."""
    return (GATED if gated else PLAIN)[tile]


def codes_tile_of(tokens: int, top_k: int, num_experts: int) -> int:
    """Return `tile_of` for weights of codes. A tile that is not full costs as much as a full one, so that tiles are
    smaller once an expert's tokens fill one anyway."""
    average = padded_tokens(tokens) * top_k // num_experts
    if 2 * average <= TILES[0]:
        return TILES[0]
    return next((tile for tile in TILES[1:-1] if average <= tile), TILES[-1])


def find_codes_config(tile: int, weight: PackedWeights, *, gated: bool, tokens: int = MAX_FEW + 1) -> Config:
    """Return the tiling of `expert_codes_gemm` for tiles of so many tokens, and so many tokens in all."""
    cut = CODES_FEW if tokens <= MAX_FEW else (CODES_GATED if gated else CODES_PLAIN)[32 // weight.in_word][tile]
    if weight.group < WIDEST_STEP or cut.step <= WIDEST_STEP:
        return cut
    return cut._replace(step=WIDEST_STEP, stages=cut.stages * cut.step // WIDEST_STEP)
