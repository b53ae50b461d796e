"""The compiled kernels of recurrent layers against token-by-token float64, over ragged rows and shared states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from radixrt.kernels.build import load_kernels
from radixrt.layers.cpu_recurrence import CpuRecurrence
from radixrt.layers.recurrence import RecurrenceOps
from tests.kernels.recurrent_cases import (
    BF16,
    F32,
    LENGTHS,
    Case,
    check_chains,
    check_short_conv,
    check_step,
    make_case,
    make_rows,
)

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture(scope="module")
def ops(cache_folder: Path) -> RecurrenceOps:
    return CpuRecurrence(load_kernels(cache_folder / "kernels"))


@pytest.fixture
def no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference in torch must not be used."""
    for name in ("gated_delta_net", "short_conv"):
        monkeypatch.setattr(RecurrenceOps, name, None)


def with_bf16_weights(case: Case) -> Case:
    """As in a bfloat16 model on a CPU, whose activations are float32."""
    return replace(case, weights=replace(case.weights, conv=case.weights.conv.to(BF16)))


@pytest.mark.parametrize(("heads", "dim"), [((2, 4), 16), ((1, 3), 32), ((2, 2), 64), ((1, 2), 128)])
@pytest.mark.usefixtures("no_reference")
def test_decode(ops: RecurrenceOps, heads: tuple[int, int], dim: int) -> None:
    """A fresh row, one in place, a fork of slot 3, and a padding row, which writes nothing; then the same again."""
    rows = make_rows("cpu", [1] * 5, [0, 2, 3, 3, 1], [4, 2, 5, 6, 1], decode=True)
    case = with_bf16_weights(make_case("cpu", heads, dim, F32, rows, 9))
    check_step(case, ops, slice(0, 4))
    check_step(case, ops, slice(0, 4))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.usefixtures("no_reference")
def test_prompts(ops: RecurrenceOps, lengths: str) -> None:
    check_step(make_case("cpu", (1, 2), 32, F32, make_rows("cpu", *LENGTHS[lengths]), 9), ops)


def test_dims_without_a_kernel(ops: RecurrenceOps) -> None:
    check_step(make_case("cpu", (1, 2), 24, F32, make_rows("cpu", *LENGTHS["short"]), 9), ops)


@pytest.mark.parametrize("decode", [True, False])
def test_short_conv(ops: RecurrenceOps, decode: bool) -> None:
    check_short_conv(ops, "cpu", [1, 1, 1] if decode else [1, 20, 2], decode=decode)


@pytest.mark.usefixtures("no_reference")
def test_rows_that_go_on_from_one_another(ops: RecurrenceOps) -> None:
    check_chains(ops, "cpu", F32)
