"""The tensor-parallel kernels compile for an H200; no GPU is needed. Their other tests run under Triton's interpreter,
which accepts code that the compiler refuses."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
from typing import Any

import pytest

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="nothing is compiled"),
]

TYPES = {
    "addresses": "*i64", "turns": "*i64", "parts": "*i64", "eps": "fp32", "temperatures": "*fp32", "uniforms": "*fp64",
    "token_ids": "*i64", "best_out": "*fp32", "bias": "*bf16", "arrived": "*i32", "input_ids": "*i64",
    **dict.fromkeys(("rows", "each", "columns", "vocab", "tokens", "num_rows", "copy_stride", "first", "count"), "i32"),
}  # fmt: skip
"""Triton types of kernel arguments; pointers that are not named here point to bfloat16."""


def compiled(kernel: Any, constants: dict[str, Any], **types: str) -> str:
    """The kernel's PTX for sm_90."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else types.get(name, TYPES.get(name, "*bf16")) for name in names
    }
    values = {(names.index(name),): value for name, value in constants.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=aligned)
    found: str = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"]
    return found


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_sums(ranks: int) -> None:
    from radixrt.kernels.triton import all_reduce

    place = {"RANK": 1, "RANKS": ranks, "PART_BYTES": 1 << 20}
    for sent, trips in itertools.product((False, True), (1, 2)):
        given = {"SIZE": 4096, "BLOCK": 4096, "SENT": sent, "TRIPS": trips, "EARLY": True, **place}
        ptx = compiled(all_reduce._sum_add_rms_norm_kernel, given)
        # A part is looked at anew each time, and everything goes sixteen bytes at once.
        assert "ld.volatile.global.v4" in ptx
        assert not re.search(r"(ld\.volatile|st)\.global\.(b16|b32|v2)", ptx)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_gathers_and_draws(ranks: int) -> None:
    from radixrt.kernels.triton import all_gather, sharded_sampling

    place = {"RANK": 1, "RANKS": ranks}
    compiled(all_gather._gather_kernel, {"FLAGS_AT": 1 << 20, **place}, out="*fp32")
    compiled(sharded_sampling._chunk_kernel, place, part="*fp32")
    compiled(sharded_sampling._row_kernel, {"CHUNKS": 5, "PADDED": 64, **place})


@pytest.mark.parametrize(("ranks", "trips"), [(1, 1), (2, 1), (4, 1), (4, 2)])
def test_products_that_send(ranks: int, trips: int) -> None:
    from radixrt.kernels.triton import embedding, gemv, skinny_gemm

    nobody = {"addresses": None, "turns": None} if ranks == 1 else {}
    place = {"RANK": 0, "RANKS": ranks, "PART_BYTES": 1 << 20, "TRIPS": trips, "EARLY": True, **nobody}
    cut = {"TOKENS": 64, "ROWS": 32, "STEP": 128, "SPLITS": 2, "GATED": False, "AHEAD": 0, "PIECE": 0}
    given = {"x_map": None, "weight_map": None, "HAS_BIAS": True, "TOKENS_FIRST": True, "EVEN": True, **cut, **place}
    assert "st.global.v4" in compiled(skinny_gemm._skinny_gemm_kernel, given, parts="*fp32")
    sizes = {"SIZE": 2048, "TOKENS": 2, "PAIRS": True, "UNROLL": 2, "CHUNK": 256, "WARPS": 4}
    compiled(gemv._gemv_kernel, {"GATED": False, "HAS_BIAS": True, **sizes, **place})
    compiled(embedding._embed_part_kernel, {"SIZE": 4096, "BLOCK": 4096, "EARLY": True}, rows="*bf16")
