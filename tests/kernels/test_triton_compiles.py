"""The kernels of tensor parallelism, of experts and of recurrent layers compile for an H200; no GPU is needed. Their
other tests run under Triton's interpreter, which accepts code that the compiler refuses."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="nothing is compiled"),
]

TYPES = {
    "addresses": "*i64", "turns": "*i64", "parts": "*i64", "eps": "fp32", "temperatures": "*fp32", "uniforms": "*fp64",
    "token_ids": "*i64", "best_out": "*fp32", "bias": "*bf16", "arrived": "*i32", "input_ids": "*i64",
    **dict.fromkeys(("src", "dst", "starts"), "*i64"), **dict.fromkeys(("which", "chunk_row", "chunk_first"), "*i32"),
    **dict.fromkeys(("a_log", "dt_bias", "decays", "states"), "*fp32"),
    **dict.fromkeys(("x_stride", "width", "scale_stride"), "i32"),
    **dict.fromkeys(("rows", "each", "columns", "vocab", "tokens", "num_rows", "copy_stride", "first", "count"), "i32"),
}  # fmt: skip
"""Triton types of kernel arguments; pointers that are not named here point to bfloat16."""


MAX_SHARED = 227 * 1024
"""Bytes of shared memory that a program may have."""


def compiled(kernel: Any, constants: dict[str, Any], *, warps: int = 4, stages: int = 3, **types: str) -> str:
    """The kernel's PTX for sm_90; sizes are multiples of 16. Its shared memory fits."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else types.get(name, TYPES.get(name, "*bf16")) for name in names
    }
    values = {(names.index(name),): value for name, value in constants.items()}
    sizes = ("num_rows", "columns", "width", "scale_stride")
    multiples = [i for i, name in enumerate(names) if signature[name].startswith("*") or name in sizes]
    aligned = {(i,): [["tt.divisibility", 16]] for i in multiples if signature[names[i]] != "constexpr"}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=aligned)
    kernel = triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps, "num_stages": stages}
    )
    assert kernel.metadata.shared <= MAX_SHARED
    found: str = kernel.asm["ptx"]
    return found


@pytest.mark.parametrize(("dim", "kind"), [(128, "bf16"), (256, "bf16"), (128, "fp32"), (256, "fp32")])
def test_attention_over_shared_prefixes(dim: int, kind: str) -> None:
    from radixrt.kernels.triton.shared_attention import STAGES, _shared_attention_kernel, block_n

    exact = kind == "fp32"
    size = {"HEADS": 16, "KV_HEADS": 4, "GROUP": 4, "DIM": dim, "PRECISION": "ieee" if exact else "tf32"}
    floats = dict.fromkeys(("q", "keys", "values", "partial"), f"*{kind}") | {"partial_lse": "*fp32"}
    integers = dict.fromkeys(("table", "lane_ptr", "items", "members"), "*i32")
    numbers = {"q_stride": "i32", "table_stride": "i32", "scale_log2": "fp32"}
    for tile in (64, 128):
        given = {"BLOCK_M": tile, "BLOCK_N": block_n(dim, 4 if exact else 2), **size}
        compiled(
            _shared_attention_kernel, given, warps=tile // 16, stages=2 if exact else STAGES, **floats, **integers,
            **numbers,
        )  # fmt: skip


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
    plain = {
        "x_scales": None,
        "scales": None,
        "shifts": None,
        "NUMBERS": None,
        "IN_ELEMENT": 1,
        "GROUP": 0,
        "SCALE_ROWS": 1,
        "ROUND": False,
    }
    given = {"x_map": None, "weight_map": None, "HAS_BIAS": True, "TOKENS_FIRST": True, "EVEN": True, **cut, **place}
    given |= plain
    assert "st.global.v4" in compiled(skinny_gemm._skinny_gemm_kernel, given, parts="*fp32", token_tiles="i32")
    sizes = {"SIZE": 2048, "TOKENS": 2, "PAIRS": True, "UNROLL": 2, "CHUNK": 256, "WARPS": 4}
    compiled(gemv._gemv_kernel, {"GATED": False, "HAS_BIAS": True, **sizes, **place})
    compiled(embedding._embed_part_kernel, {"SIZE": 4096, "BLOCK": 4096, "EARLY": True}, rows="*bf16")


INTEGERS = dict.fromkeys(
    ("experts", "experts_out", "counted", "counts", "pairs", "pairs_out", "tiles", "tiles_out", "count_out"), "*i32"
)
FLOATS = dict.fromkeys(("router", "logits", "weights_out"), "*fp32")
CHOICE = {"NUM_EXPERTS": 12, "TOP_K": 3, "SHARED": 1, "RENORMALIZE": True, "BINS": 16, "PLACES": 4, "EARLY": True}


BIASED = {"ALPHA": 1.702, "LIMIT": 7.0}
SILU: dict[str, Any] = {"ALPHA": 1.0, "LIMIT": 0.0, "bias": None}


def test_sinks() -> None:
    from radixrt.kernels.triton.sinks import _apply_sinks_kernel

    given = {"HEADS": 64, "DIM": 64, "BLOCK_H": 32, "BLOCK_D": 64}
    compiled(_apply_sinks_kernel, given, lse="*fp32", sinks="*fp32")


def test_routing() -> None:
    from radixrt.kernels.triton import expert_tiles, routing

    few = {"SIZE": 2048, "BLOCK": 2048, "TOKENS": 2, "PADDED": 2, **CHOICE}
    compiled(routing._route_few_kernel, {**few, "bias": None}, **INTEGERS, **FLOATS)
    compiled(routing._route_few_kernel, few, bias="*fp32", **INTEGERS, **FLOATS)
    cut = {"TOKENS": 64, "ROWS": routing.ROWS, "STEP": routing.STEP, "EVEN": True, "EARLY": True}
    compiled(routing._logits_kernel, cut, stages=routing.STAGES, parts="*fp32", **FLOATS)
    compiled(
        routing._choose_kernel,
        {"TOKENS": 4, "SPLITS": 2, "NUM_ROWS": 13, **CHOICE},
        parts="*fp32",
        bias="*fp32",
        **INTEGERS,
        **FLOATS,
    )
    listed: dict[str, Any] = {"BINS": 16, "BLOCK": 1024, "TILE": 16, "EARLY": True}
    compiled(expert_tiles._list_tiles_kernel, {**listed, "counted": None}, warps=8, num_pairs="i32", **INTEGERS)
    compiled(expert_tiles._list_tiles_kernel, listed, warps=8, num_pairs="i32", **INTEGERS)
    compiled(expert_tiles._count_kernel, {"BLOCK": 4096, "EARLY": True}, warps=8, num_pairs="i32", **INTEGERS)


def test_experts_of_few_tokens() -> None:
    from radixrt.kernels.triton import expert_gemv

    sizes = {"TOP_K": 8, "UNROLL": 4, "CHUNK": 256, "WARPS": 4, "EARLY": True}
    for name, given in (("_gate_up", {"SIZE": 2048}), ("_down", {"SIZE": 768, "GROUP": expert_gemv.GROUP})):
        kernel = getattr(expert_gemv, f"{name}_kernel")
        for rule in (SILU, BIASED):
            wanted = {key: value for key, value in rule.items() if key == "bias" or name == "_gate_up"}
            compiled(kernel, {**sizes, **given, **wanted}, weights="*fp32", bias="*fp32", **INTEGERS)


def test_experts_in_float32() -> None:
    from radixrt.kernels.triton import expert_gemm
    from radixrt.kernels.triton.expert_gemm_config import FLOAT32, FLOAT32_TILE

    sizes = {"TOP_K": 8, "TOKENS": FLOAT32_TILE, "ROWS": FLOAT32.rows, "STEP": FLOAT32.step, "GATED": True}
    given: dict[str, Any] = {**sizes, "TOKENS_FIRST": False, "EVEN": False, "EARLY": True, **SILU}
    given["weight_map"] = None
    floats = dict.fromkeys(("x", "weight", "out"), "*fp32")
    ptx = compiled(expert_gemm._expert_gemm_kernel, given, stages=FLOAT32.stages, count="*i32", **floats, **INTEGERS)
    assert "tf32" not in ptx


@pytest.mark.parametrize("tile", [16, 128])
@pytest.mark.parametrize(("gated", "biased"), [(False, False), (True, False), (False, True), (True, True)])
def test_experts_of_many_tokens(gated: bool, biased: bool, tile: int) -> None:
    from radixrt.kernels.triton import expert_gemm
    from radixrt.kernels.triton.expert_gemm_config import find_config

    cut = find_config(tile, gated=gated)
    sizes = {"TOP_K": 8, "TOKENS": tile, "ROWS": cut.rows, "STEP": cut.step, "GATED": gated, "EARLY": True}
    given: dict[str, Any] = {**sizes, "TOKENS_FIRST": cut.tokens_first, "EVEN": True}
    given |= BIASED if biased else SILU
    if not cut.bulk:
        given["weight_map"] = None
    weight_map = f"tensordesc<bf16[{cut.rows},{cut.step}]>"
    ptx = compiled(
        expert_gemm._expert_gemm_kernel, given, warps=cut.warps, stages=cut.stages, weight_map=weight_map, count="*i32",
        bias="*fp32", **INTEGERS,
    )  # fmt: skip
    # The weights come through the copy engine or in asynchronous pieces of 16 bytes; nothing is loaded by registers.
    assert ("cp.async.bulk.tensor" in ptx) == cut.bulk
    assert "cp.async.cg.shared.global" in ptx
    assert not re.search(r"ld\.global\S*\.v4", ptx)
    if gated and not biased:
        compiled(expert_gemm._weighted_sum_kernel, {"SIZE": 2048, "TOP_K": 8, "BLOCK": 1024, "EARLY": True})


@pytest.mark.parametrize(
    ("kind", "tile", "gated", "paired"),
    [
        ("e4m3 rows", 16, True, True),
        ("e4m3 blocks", 16, True, False),
        ("int4 groups", 16, False, False),
        ("int4 small groups", 16, False, True),
        ("mxfp4", 128, True, False),
    ],
)
def test_experts_of_codes(kind: str, tile: int, gated: bool, paired: bool) -> None:
    """The tensor cores take numbers from the registers in which they were converted: no number is exchanged through
    shared memory. Subnormal codes of mxfp4 stay what they are."""
    from radixrt.kernels.packed_weights import PackedWeights
    from radixrt.kernels.triton import expert_codes_gemm
    from radixrt.kernels.triton.expert_gemm_config import find_codes_config

    numbers, dtype, scale_rows, group = {
        "e4m3 rows": ("e4m3", "fp32", 1, 0), "e4m3 blocks": ("e4m3", "fp32", 128, 128),
        "int4 groups": ("int4", "fp16", 1, 128), "int4 small groups": ("int4", "fp16", 1, 32),
        "mxfp4": ("mxfp4", "bf16", 1, 32),
    }[kind]  # fmt: skip
    nothing = torch.empty(0)
    weight = PackedWeights(nothing, nothing, None, numbers, scale_rows, group, 2880)
    cut = find_codes_config(tile, weight, gated=gated)
    of_word = {"NUMBERS": numbers, "IN_WORD": weight.in_word, "GROUP": group, "SCALE_ROWS": scale_rows}
    sizes = {"TOP_K": 4, "TOKENS": tile, "ROWS": cut.rows, "STEP": cut.step, "GATED": gated, "EARLY": True}
    given: dict[str, Any] = {**sizes, **of_word, "ONE": scale_rows > 1, "EVEN": False, "shifts": None}
    given |= BIASED if gated else SILU
    given |= {"pairs": None, "tiles": None, "count": None} if paired else {"experts": None}
    narrow = 0 < group < 128
    if not narrow:
        given["scales_map"] = None
    types = {"words": "*i32", "scales": f"*{dtype}", "bias": "*fp32", "count": "*i32", **INTEGERS}
    types["words_map"] = f"tensordesc<i32[{cut.rows},{cut.step // weight.in_word}]>"
    if narrow:
        types["scales_map"] = f"tensordesc<{dtype}[{cut.rows},{cut.step // group}]>"
    ptx = compiled(
        expert_codes_gemm._expert_codes_kernel, given, warps=cut.warps, stages=cut.stages,
        **{name: each for name, each in types.items() if name not in given},
    )  # fmt: skip
    assert "ftz" not in ptx
    assert "wgmma.mma_async" in ptx
    products = ptx[ptx.index("wgmma.mma_async") : ptx.rindex("wgmma.mma_async")]
    # Scales of each row's groups are, in the order of the rows.
    assert kind == "int4 groups" or "st.shared" not in products


@pytest.mark.parametrize(
    ("numbers", "group", "tokens", "gated"),
    [
        ("e4m3", 0, 16, False),
        ("int8", 0, 64, False),
        ("e4m3", 128, 64, True),
        ("int4", 128, 16, True),
        ("e2m1", 0, 64, False),
        ("int4", 32, 64, False),
        ("e2m1", 16, 64, False),
        ("int4", 128, 256, True),
        ("int8", 0, 512, False),
    ],
)
def test_products_with_codes(numbers: str, group: int, tokens: int, gated: bool) -> None:
    from radixrt.kernels.triton import skinny_gemm
    from radixrt.kernels.triton.codes_gemm_config import find_config

    in_word = 4 if numbers in ("int8", "e4m3") else 8
    cut = find_config(tokens, 8192, 4096, gated=gated, bits=32 // in_word, group=group)
    tokens = min(tokens, cut.tokens or tokens)
    sizes = {"TOKENS": tokens, "ROWS": cut.rows, "STEP": cut.step, "SPLITS": cut.splits, "GATED": gated}
    form = {
        "NUMBERS": numbers,
        "IN_ELEMENT": in_word,
        "GROUP": group,
        "SCALE_ROWS": 1,
        "shifts": None,
        "x_scales": None,
    }
    form["ROUND"] = group > 0 and (cut.rounds or group < cut.step)
    place = {"RANK": 0, "RANKS": 1, "PART_BYTES": 0, "TRIPS": 1, "EARLY": True, "addresses": None, "turns": None}
    given = {"HAS_BIAS": False, "TOKENS_FIRST": False, "EVEN": True, "AHEAD": 0, "PIECE": 0, **sizes, **form, **place}
    maps = {
        "x_map": f"tensordesc<bf16[{tokens},{cut.step}]>",
        "weight_map": f"tensordesc<i32[{cut.rows},{cut.step // in_word}]>",
    }
    ptx = compiled(
        skinny_gemm._skinny_gemm_kernel, given, warps=cut.warps, stages=cut.stages, parts="*fp32", weight="*i32",
        scales="*fp32", token_tiles="i32", **maps,
    )  # fmt: skip
    # A thread loads sixteen bytes of codes at once, and the tensor cores take them from its registers: in the loop
    # nothing is written to shared memory, but a few factors of groups where these are multiplied with the numbers.
    loop = ptx[ptx.index("wgmma.mma_async") : ptx.rindex("wgmma.mma_async")]
    assert re.search(r"wgmma\.mma_async\S* \{[^}]*\}, *\{[^}]*\}", ptx)
    assert loop.count("st.shared") <= (16 if form["ROUND"] else 0)
    assert "stmatrix" not in loop
    assert "ld.shared.v4.b32" in ptx
    assert form["ROUND"] or not re.search(r"ld\.shared\.(u8|b8|u16|b16)", ptx)


@pytest.mark.parametrize(
    ("tokens", "group", "gated"), [(64, 0, False), (64, 0, True), (64, 128, True), (128, 0, False), (128, 0, True)]
)
def test_products_with_activations_in_float8(tokens: int, group: int, gated: bool) -> None:
    from radixrt.kernels.triton import skinny_gemm
    from radixrt.kernels.triton.codes_gemm_config import find_float8_config

    cut = find_float8_config(tokens, 4096, 4096, gated=gated, group=group)
    assert cut is not None
    sizes = {"TOKENS": tokens, "ROWS": cut.rows, "STEP": cut.step, "SPLITS": cut.splits, "GATED": gated}
    form = {"NUMBERS": None, "IN_ELEMENT": 1, "GROUP": group, "SCALE_ROWS": 128 if group else 1, "shifts": None}
    place = {"RANK": 0, "RANKS": 1, "PART_BYTES": 0, "TRIPS": 1, "EARLY": True, "addresses": None, "turns": None}
    given = {"HAS_BIAS": False, "TOKENS_FIRST": False, "EVEN": True, "AHEAD": 0, "PIECE": 0, "ROUND": False}
    maps = {
        "x_map": f"tensordesc<fp8e4nv[{tokens},{cut.step}]>",
        "weight_map": f"tensordesc<fp8e4nv[{cut.rows},{cut.step}]>",
    }
    ptx = compiled(
        skinny_gemm._skinny_gemm_kernel, {**given, **sizes, **form, **place}, warps=cut.warps, stages=cut.stages,
        parts="*fp32", x="*fp8e4nv", weight="*fp8e4nv", token_tiles="i32", x_scales="*fp32", scales="*fp32", **maps,
    )  # fmt: skip
    # The tensor cores take both operands as they arrive in shared memory.
    assert re.search(r"wgmma\.mma_async\S*\.f32\.e4m3\.e4m3", ptx)
    assert "st.shared" not in ptx[ptx.index("wgmma.mma_async") : ptx.rindex("wgmma.mma_async")]


@pytest.mark.parametrize(("numbers", "group"), [("e4m3", 0), ("e4m3", 128), ("int4", 128), ("e2m1", 0)])
@pytest.mark.parametrize(("gated", "ranks"), [(False, 1), (False, 2), (True, 1)])
def test_few_tokens_of_codes(numbers: str, group: int, gated: bool, ranks: int) -> None:
    from radixrt.kernels.triton import codes_gemv

    bits = 8 if numbers == "e4m3" else 4
    cut = codes_gemv.find_cut(4096, gated=gated, bits=bits)
    size = {"WARPS": cut.warps, "BLOCKS": cut.blocks, "UNROLL": cut.unroll, "X_AHEAD": cut.x_ahead, "EVEN": True}
    form = {"NUMBERS": numbers, "BLOCK": 512 // bits, "GROUP": group, "SCALE_ROWS": 1, "shifts": None}
    place = {"RANK": 0, "RANKS": ranks, "PART_BYTES": 1 << 20, "TRIPS": 1, "EARLY": True}
    nobody = {"addresses": None, "turns": None} if ranks == 1 else {}
    given = {"GATED": gated, "HAS_BIAS": True, "TOKENS": codes_gemv.MAX_TOKENS, **size, **form, **place, **nobody}
    ptx = compiled(
        codes_gemv._codes_gemv_kernel, given, warps=cut.warps, stages=1, x="*i32", words="*i32",
        scales="*bf16" if group else "*fp32", stride="i32",
    )  # fmt: skip
    # A thread loads sixteen bytes of codes at once into the registers from which the tensor cores take the numbers.
    assert re.search(r"ld\.global\S*\.v4\.b32", ptx)
    loop = ptx[ptx.index("mma.sync") : ptx.rindex("mma.sync")]
    assert "shared" not in loop
    assert "bar.sync" not in loop


def test_quantization_and_dequantization() -> None:
    from radixrt.kernels.triton import activation, codes, norm, quantize

    for group in (4096, 128):
        given = {"SIZE": 4096, "BLOCK": 4096, "GROUP": group, "EARLY": True}
        ptx = compiled(quantize._quantize_rows_kernel, given, codes="*fp8e4nv", scales="*fp32")
        assert "ld.global.v4" in ptx
        fused = {**given, "HAS_X": True}
        compiled(norm._add_rms_norm_kernel, fused, warps=16, out="*fp8e4nv", scales="*fp32")
        compiled(activation._silu_and_mul_float8_kernel, given, codes="*fp8e4nv", scales="*fp32")
    given = {"ROWS": 64, "COLUMNS": 128, "NUMBERS": "int4", "IN_WORD": 8, "GROUP": 128, "SCALE_ROWS": 1}
    compiled(codes._dequantize_kernel, given, words="*i32", scales="*fp32", shifts="*fp32")


def test_recurrent_layers() -> None:
    from radixrt.kernels.triton import causal_conv, gated_delta_chunks, gated_delta_decode

    heads = {"K_HEADS": 16, "V_HEADS": 32}
    conv = {"TAPS": 4, "PADDED": 4}
    decode = {"K_DIM": 128, "V_DIM": 128, "LISTED": False, "EARLY": True, **heads, **conv}
    # A thread loads its first part of the state sixteen bytes at once, before it waits for the kernel before.
    for v_block, warps in ((128, 4), (gated_delta_decode.MANY_V_BLOCK, 2)):
        given = {"V_BLOCK": v_block, **decode}
        ptx = compiled(gated_delta_decode._gated_delta_decode_kernel, given, warps=warps, norm_weight="*fp32")
        assert ptx.split("griddepcontrol.wait")[0].count("ld.global.v4") == v_block * 128 // 4 // (32 * warps)
    compiled(causal_conv._conv_heads_kernel, {"DIM": 128, "TOKENS": 16, **heads, **conv})
    chunks = {"DIM": 128, "PRECISION": "tf32", **heads}
    rows = {"V_BLOCK": gated_delta_chunks.V_BLOCK, "STAGES": gated_delta_chunks.STAGES, **chunks}
    for dtype in ("bf16", "fp16"):  # with float32 operands these take shared memory alike, but long to compile
        given = dict.fromkeys(("qkv", "projected", "w", "attention", "out"), f"*{dtype}")
        for kernel, constants in (("chunk", chunks), ("rows", rows)):
            ptx = compiled(getattr(gated_delta_chunks, f"_delta_{kernel}_kernel"), constants, **given)
            # Triton 3.6 compiles these kernels into wrong ones where they use wgmma.
            assert "mma.sync" in ptx
            assert "wgmma" not in ptx
    compiled(gated_delta_chunks._gated_norm_kernel, {"DIM": 128, **heads}, weight="*fp32")
    single = {"TOKENS": 1, "BLOCK": 512, "LISTED": False, "EARLY": True}
    compiled(causal_conv._short_conv_kernel, {"SIZE": 1024, "TAPS": 3, "PADDED": 4, **single})


@pytest.mark.parametrize("gather", [True, False])
def test_rows_of_a_pool_are_moved_by_16_bytes(gather: bool) -> None:
    from radixrt.kernels.triton.pool_rows import ALIGN_BYTES, BLOCK_BYTES, _move_rows_kernel

    types = {"table": "*i64", "slots": "*i32", "rows": "*u8", "tensors": "i32", "row_bytes": "i32"}
    constants = {"WORD": 4, "ALIGN": ALIGN_BYTES // 4, "BLOCK": BLOCK_BYTES // 4, "GATHER": gather}
    ptx = compiled(_move_rows_kernel, constants, **types)
    assert re.search(r"ld\.global\.v4\.b32", ptx)
    assert re.search(r"st\.global\.v4\.b32", ptx)
    bytewise = compiled(_move_rows_kernel, {"WORD": 1, "ALIGN": 1, "BLOCK": BLOCK_BYTES, "GATHER": gather}, **types)
    assert not re.search(r"(ld|st)\.global\.v\d", bytewise)


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "kind"), [(32, 8, 128, "bf16"), (64, 8, 64, "fp16")])
def test_decode_attention_over_float8_exchanges_no_numbers(heads: int, kv_heads: int, dim: int, kind: str) -> None:
    """Keys and values go from memory to the tensor cores: neither the slow conversion nor shared memory by bytes."""
    from radixrt.kernels.triton.decode_attention_fp8 import _decode_attention_fp8_kernel

    integers = ("slots", "meta", "lane_ptr", "first_lane", "last_lane", "arrived", "keys", "values")
    ptx = compiled(
        _decode_attention_fp8_kernel,
        {
            "HEADS": heads, "KV_HEADS": kv_heads, "GROUP": heads // kv_heads, "DIM": dim, "BLOCK_H": 8,
            "BLOCK_N": 32, "WITH_LSE": True, "EARLY": True,
            "LOG_FACTOR": 100 if kind == "bf16" else 0, "UNIT": 2.0**120 if kind == "bf16" else 2.0**8,
        },
        warps=1,
        **dict.fromkeys(integers, "*i32"), q=f"*{kind}", out=f"*{kind}", q_stride="i32", scale_log2="fp32",
        **dict.fromkeys(("partial", "partial_lse", "out_lse"), "*fp32"),
    )  # fmt: skip
    assert "cvt.rn.f16x2.e4m3x2" not in ptx
    assert not re.search(r"ld\.shared\.[bu]8", ptx)
    assert re.search(r"ld\.global\S*v4\.b32", ptx)


@pytest.mark.parametrize(
    ("numbers", "gated", "kind"), [("e4m3", True, "bf16"), ("mxfp4", True, "bf16"), ("mxfp4", False, "fp16")]
)
def test_experts_of_codes_and_few_tokens(numbers: str, gated: bool, kind: str) -> None:
    from radixrt.kernels.triton.expert_codes_gemv import _expert_codes_gemv_kernel

    ptx = compiled(
        _expert_codes_gemv_kernel,
        {
            "TOP_K": 4, "GATED": gated, "NUMBERS": numbers, "WARPS": 4, "AT_ONCE": 1 if gated else 4, "BLOCKS": 2,
            "EVEN": False, "ALPHA": 1.0, "LIMIT": 0.0, "EARLY": True,
        },
        x=f"*{kind}", out=f"*{kind}", words="*i32", experts="*i32", weights="*fp32", bias="*fp32",
        scales="*bf16" if numbers == "mxfp4" else "*fp32",
    )  # fmt: skip
    assert "mma.sync" in ptx
    assert re.search(r"ld\.global\S*v4\.b32", ptx)


def test_tiles_of_mxfp4_experts_in_float16() -> None:
    from radixrt.kernels.triton.expert_codes_gemm import _expert_codes_kernel

    compiled(
        _expert_codes_kernel,
        {
            "words_map": None, "scales_map": None, "shifts": None, "experts": None, "TOP_K": 4, "TOKENS": 16,
            "ROWS": 64, "STEP": 256, "GATED": True, "NUMBERS": "mxfp4", "IN_WORD": 8, "GROUP": 32, "SCALE_ROWS": 1,
            "ONE": False, "EVEN": False, "ALPHA": 1.0, "LIMIT": 0.0, "EARLY": True,
        },
        x="*fp16", out="*fp16", words="*i32", scales="*bf16", bias="*fp32", pairs="*i32", tiles="*i32",
        count="*i32",
    )  # fmt: skip
