"""A step's floor is its bytes or its operations, and each kernel counts as what it is."""

from __future__ import annotations

import pytest

from benchmarks.common.device_rates import Device
from benchmarks.common.model_shapes import Shape
from benchmarks.kernels.step_profile import floor_us, kind_of, make_step
from radixrt.messages.wire import unpack_i32
from tests.step_sections import shared_in, states_in

SHAPE = Shape(layer_params=1000, head_params=100, kv_bytes=10, attention_flops=4)


def test_floors() -> None:
    slow_memory, slow_units = Device(bytes_per_s=1e6, flops_per_s=1e12), Device(bytes_per_s=1e12, flops_per_s=1e6)
    weights = SHAPE.weight_bytes(3)
    assert floor_us("decode:3x50", SHAPE, slow_memory) == pytest.approx(weights + 10 * 150)
    assert floor_us("shared:3x50x40", SHAPE, slow_memory) == pytest.approx(weights + 10 * (40 + 30))
    assert floor_us("decode:3x50", SHAPE, slow_units) == pytest.approx(2 * 1100 * 3 + 4 * 150)
    assert floor_us("shared:3x50x40", SHAPE, slow_units) == pytest.approx(2 * 1100 * 3 + 4 * 150)
    assert floor_us("prefill:2x8", SHAPE, slow_memory) == pytest.approx(weights)
    assert floor_us("prefill:2x8", SHAPE, slow_units) == pytest.approx(2 * (1000 * 16 + 100 * 2) + 4 * 2 * 36)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "GEMMs"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>", "GEMMs"),
        ("void flashinfer::PrefillWithKVCacheKernel<flashinfer::SparseCollectiveMainloop<cutlass::bf16>>", "attention"),
        ("_decode_attention_kernel", "attention"),
        ("_expert_gemm_kernel", "experts"),
        ("_down_kernel", "experts"),
        ("_choose_kernel", "routing"),
        ("_shared_attention_kernel", "attention, shared prefix"),
        ("void flashinfer::PersistentVariableLengthMergeStatesKernel<8u>", "merging partial results"),
        ("_merge_kernel", "merging partial results"),
        ("_add_rms_norm_kernel", "norm"),
        ("_quantize_rows_kernel", "quantization of activations"),
        ("_prepare_heads_kernel", "heads (norm, rotary, store)"),
        ("_silu_and_mul_kernel", "activation"),
        ("_chunk_kernel", "sampling"),
        ("_kv_indices_kernel", "lists of slots"),
        ("_decode_list_kernel", "lists of slots"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("void at::native::vectorized_gather_kernel<16, long>", "other"),
    ],
)
def test_kinds(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_a_step_of_a_hybrid_model() -> None:
    step = make_step("decode:3x50", states=True)
    assert unpack_i32(states_in(step).src).tolist() == unpack_i32(states_in(step).dst).tolist() == [2, 3, 4]
    assert not make_step("decode:3x50").sections


def test_a_step_of_rows_that_share() -> None:
    step = make_step("shared:3x50x40")
    assert unpack_i32(shared_in(step).segments).tolist() == [0, 40, 0, 3]
    slots = [unpack_i32(write.slots).tolist() for write in step.row_writes]
    assert {tuple(row[:40]) for row in slots} == {tuple(slots[0][:40])}
    assert len({s for row in slots for s in row}) == 40 + 3 * 9
