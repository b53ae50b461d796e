"""Whole models with the kernels under Triton's interpreter, against the same models in torch; float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from radixrt.layers.cuda_ops import CudaOps
from radixrt.layers.ops import TorchOps
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from tests.models.dense_attention import run_in_steps

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", ["llama", "qwen3", "qwen3_moe"])
def test_same_logits(
    triton_device: str, tiny_model: Callable[[str], Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if triton_device != "cpu":
        pytest.skip("on a GPU the runner's own tests compare whole models")
    from radixrt.kernels.triton import gemv

    taken: set[str] = set()

    def watch(name: str, run: Callable[..., torch.Tensor]) -> None:
        def watched(*args: object) -> torch.Tensor:
            taken.add(name)
            return run(*args)

        monkeypatch.setattr(gemv, name, watched)

    watch("gemv", gemv.gemv)
    watch("gate_up_silu", gemv.gate_up_silu)
    folder = tiny_model(kind)
    spec = load_model_spec(folder)
    sequences = [[3, 5, 7, 9, 11, 13, 2, 4, 6], [8, 1, 2, 3, 4, 5, 6]]
    logits = []
    for ops in (TorchOps(), CudaOps()):
        model = load_model(folder, spec, dtype="float32", device="cpu", ops=ops)
        with torch.inference_mode():
            logits.append(run_in_steps(model, sequences))
    for expected, found in zip(*logits, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
    assert taken == {"gemv", "gate_up_silu"}
