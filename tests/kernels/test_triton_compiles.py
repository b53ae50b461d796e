"""The kernels that ranks of several GPUs run compile for an H200, which needs none: their other tests here are under
Triton's interpreter, which takes what its compiler does not."""

from __future__ import annotations

import importlib.util
import os

import pytest

from tests.kernels.compiling import Wanted, compile_all

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="nothing is compiled"),
]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_sums_gathers_and_draws(ranks: int) -> None:
    place = {"RANK": 1, "RANKS": ranks}
    row = {"SIZE": 4096, "BLOCK": 4096, "PART_BYTES": 1 << 20, **place}
    sums: list[Wanted] = [
        ("rank_sum", "_sum_add_rms_norm_kernel", {"SENT": sent, "EARLY": True, **row}, {}) for sent in (False, True)
    ]
    for ptx in compile_all(*sums):
        assert "ld.volatile.global.v4" in ptx  # a part is looked at anew each time, sixteen bytes at once
    compile_all(
        ("rank_sum_long", "_long_sum_kernel", row, {}),
        ("rank_gather", "_gather_kernel", {"FLAGS_AT": 1 << 20, **place}, {"out": "*fp32"}),
        ("rank_sampling", "_chunk_kernel", place, {"part": "*fp32"}),
        ("rank_sampling", "_row_kernel", {"CHUNKS": 5, "PADDED": 64, **place}, {}),
    )


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_products_that_send(ranks: int) -> None:
    nobody = {"addresses": None, "turns": None} if ranks == 1 else {}
    place = {"RANK": 0, "RANKS": ranks, "PART_BYTES": 1 << 20, "EARLY": True, **nobody}
    cut = {"TOKENS": 64, "ROWS": 32, "STEP": 128, "SPLITS": 2, "GATED": False, "AHEAD": 0, "PIECE": 0}
    tile = {"x_map": None, "weight_map": None, "HAS_BIAS": True, "TOKENS_FIRST": True, "EVEN": True, **cut, **place}
    few = {"SIZE": 2048, "TOKENS": 2, "PAIRS": True, "UNROLL": 2, "CHUNK": 256, "WARPS": 4}
    of_tiles, *_ = compile_all(
        ("skinny_gemm", "_skinny_gemm_kernel", tile, {"parts": "*fp32"}),
        ("gemv", "_gemv_kernel", {"GATED": False, "HAS_BIAS": True, **few, **place}, {}),
        ("embedding", "_embed_part_kernel", {"SIZE": 4096, "BLOCK": 4096, "EARLY": True}, {"rows": "*bf16"}),
    )
    assert "st.global.v4" in of_tiles
