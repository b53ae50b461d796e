"""The Triton kernels of recurrent layers against token-by-token float64, over ragged rows and shared states."""

from __future__ import annotations

import pytest
import torch

from radixrt.layers.recurrence import GatedDeltaShape, RecurrenceOps
from tests.kernels.recurrent_cases import (
    BF16,
    F16,
    F32,
    LENGTHS,
    TAPS,
    check_chains,
    check_short_conv,
    check_step,
    make_case,
    make_rows,
)

pytestmark = pytest.mark.gpu

FULL_SIZE = [((16, 32), 128), ((2, 6), 128), ((4, 4), 64)]
"""Heads and dims that only a GPU computes in reasonable time."""


def make_ops() -> RecurrenceOps:
    from radixrt.layers.cuda_recurrence import CudaRecurrence

    return CudaRecurrence()


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize(("heads", "dim"), [((2, 4), 16), ((1, 3), 32), ((2, 2), 16), *FULL_SIZE])
def test_decode(triton_device: str, heads: tuple[int, int], dim: int, dtype: torch.dtype) -> None:
    """A fresh row, one in place, a fork of slot 3, and a padding row, which writes nothing; then the same again."""
    if triton_device == "cpu" and dim > 32:
        pytest.skip("too slow in the interpreter")
    rows = make_rows(triton_device, [1] * 5, [0, 2, 3, 3, 1], [4, 2, 5, 6, 1], decode=True)
    case, ops = make_case(triton_device, heads, dim, dtype, rows, 9), make_ops()
    check_step(case, ops, slice(0, 4))
    check_step(case, ops, slice(0, 4))


@pytest.mark.parametrize(("heads", "dim"), [((2, 4), 16), ((1, 3), 32), ((16, 32), 128)])
def test_decode_of_more_rows_than_run_at_once(
    triton_device: str, heads: tuple[int, int], dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs with a part of the state in registers; the dims of a GPU have several parts."""
    from radixrt.kernels.triton import gated_delta_decode

    count = 40
    if triton_device == "cpu":
        if dim > 32:
            pytest.skip("too slow in the interpreter")
        count = 3
        monkeypatch.setattr(gated_delta_decode, "FEW_PROGRAMS", 0)
        monkeypatch.setattr(gated_delta_decode, "MANY_V_BLOCK", dim // 2)
    slots = list(range(2, 2 + count))
    rows = make_rows(triton_device, [1] * count, [0, *slots[1:]], slots, decode=True)
    dtype = F32 if triton_device == "cpu" else BF16
    case, ops = make_case(triton_device, heads, dim, dtype, rows, 2 + count), make_ops()
    for _ in range(2):
        check_step(case, ops)


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("heads", "dim"), [((1, 2), 16), *FULL_SIZE])
def test_prompts(triton_device: str, heads: tuple[int, int], dim: int, lengths: str, dtype: torch.dtype) -> None:
    if triton_device == "cpu" and dim > 16:
        pytest.skip("too slow in the interpreter")
    if triton_device == "cpu" and dtype == BF16:
        pytest.skip("the interpreter multiplies no matrices of bfloat16")
    rows = make_rows(triton_device, *LENGTHS[lengths])
    check_step(make_case(triton_device, heads, dim, dtype, rows, 9), make_ops())


def test_many_prompts(triton_device: str) -> None:
    if triton_device == "cpu":
        pytest.skip("too slow in the interpreter")
    count = 40
    rows = make_rows(triton_device, [2 + i % 5 * 30 for i in range(count)], [0] * count, list(range(2, 2 + count)))
    check_step(make_case(triton_device, (4, 8), 128, BF16, rows, 2 + count), make_ops())


def test_verified(triton_device: str, caplog: pytest.LogCaptureFixture) -> None:
    dim, dtype = (16, F16) if triton_device == "cpu" else (128, BF16)
    make_ops().verify(GatedDeltaShape(2, 4, dim, dim), TAPS, dtype, torch.device(triton_device))
    assert caplog.messages == []


@pytest.mark.parametrize("decode", [True, False])
def test_short_conv(triton_device: str, decode: bool) -> None:
    check_short_conv(make_ops(), triton_device, [1, 1, 1] if decode else [1, 20, 2], decode=decode)


def test_rows_that_go_on_from_one_another(triton_device: str) -> None:
    check_chains(make_ops(), triton_device, F16 if triton_device == "cpu" else BF16)
