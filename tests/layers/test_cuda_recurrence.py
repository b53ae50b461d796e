"""Kernels for prompts that turn out to be wrong on a GPU are not used."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from radixrt.layers.recurrence import GatedDeltaShape
from tests.kernels.recurrent_cases import F32, LENGTHS, check_step, make_case, make_rows

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
SHAPE = GatedDeltaShape(1, 2, 16, 16)


@torch.inference_mode()
def test_wrong_kernels_give_way_to_the_reference(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from radixrt.layers.cuda_recurrence import CudaRecurrence

    ops = CudaRecurrence()

    def compute_wrong(*given: Any) -> None:
        given[-1].zero_()

    kernels = SimpleNamespace(gated_delta_chunks=compute_wrong)
    monkeypatch.setattr(ops, "_chunks", kernels)
    monkeypatch.setattr(ops, "_conv", SimpleNamespace(CHUNK=32, convolve_heads=lambda *_: None))
    ops.verify(SHAPE, 4, F32, torch.device("cpu"))
    (line,) = caplog.messages
    assert "computed by plain torch" in line
    check_step(make_case("cpu", (1, 2), 16, F32, make_rows("cpu", *LENGTHS["edges"]), 9), ops)


@torch.inference_mode()
def test_right_kernels_are_kept(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from radixrt.layers import cuda_recurrence

    ops = cuda_recurrence.CudaRecurrence()
    monkeypatch.setattr(cuda_recurrence, "_supports", lambda *_: False)  # the reference in place of the kernels
    ops.verify(SHAPE, 4, F32, torch.device("cpu"))
    assert caplog.messages == []
