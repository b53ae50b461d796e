"""The other way is the other way, and rates are of the operations that there are."""

from __future__ import annotations

import pytest

from benchmarks.choices import PRODUCTS, PROMPT, as_it_is, attention_flops, early_launches, other_decode_kernel, rate


def test_rates() -> None:
    assert attention_flops(3, 2) == 2 * 2 * 2 * 128 * (1 + 2 + 3)
    assert rate(attention_flops(8192, 32), 927) == "927, 593"
    columns, inner = PRODUCTS[0]
    assert rate(2 * PROMPT * columns * inner, 515) == "515, 801"


@pytest.mark.parametrize(("shape", "group"), [("qwen3-0.6b", 2), ("llama-3.1-8b", 4)])
def test_the_other_decode_kernel(shape: str, group: int) -> None:
    pytest.importorskip("triton")
    from radixrt.attention import flashinfer_plans

    def through_tensor_cores() -> bool:
        return group >= flashinfer_plans.TENSOR_CORE_GROUP

    usual = through_tensor_cores()
    with as_it_is(shape):
        assert through_tensor_cores() is usual
    with other_decode_kernel(shape):
        assert through_tensor_cores() is not usual
    assert through_tensor_cores() is usual


def test_early_launches() -> None:
    pytest.importorskip("triton")
    from radixrt.executor import model_runner

    with early_launches("qwen3-0.6b"):
        assert model_runner.CudaOps()._early
    assert not model_runner.CudaOps()._early
