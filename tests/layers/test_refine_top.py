"""Logits near each row's largest are recomputed in float32, by the reference and by the compiled kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from radixrt.kernels.build import load_kernels
from radixrt.layers.ops import CpuOps, LayerOps, TorchOps
from radixrt.layers.refine_top import MAX_NEAR, NEAR_TOP

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture(params=["reference", "compiled"])
def ops(request: pytest.FixtureRequest, cache_folder: Path) -> LayerOps:
    return TorchOps() if request.param == "reference" else CpuOps(load_kernels(cache_folder / "kernels"))


def test_it_breaks_the_ties_of_bfloat16(ops: LayerOps) -> None:
    weight, hidden = torch.zeros(128, 16, dtype=torch.bfloat16), torch.zeros(3, 16)
    weight[7, :4], weight[90, :4] = torch.tensor([3.0, 0.0, 1.0, 0.0]), torch.tensor([3.0, 0.0, 0.0, 1.0])
    hidden[:2, :4] = torch.tensor([[8.0, 0.0, 0.125, 0.25], [8.0, 0.0, 0.25, 0.125]])
    logits = torch.full((3, 128), 24.0)
    logits[:, :5], logits[:, 100:] = -5.0, 11.0
    ops.refine_top(logits, hidden, weight)
    assert logits.argmax(1)[:2].tolist() == [90, 7]
    assert logits[0, 90] == 24.25
    assert (logits[:, 100:] == 11.0).all()


def flat_logits(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return hidden states, a weight, their exact logits, most of which lie within 4 of each row's largest, and these
    rounded to bfloat16."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(4096, 32, generator=generator).bfloat16()
    hidden = torch.randn(rows, 32, generator=generator) / 8
    exact = hidden @ weight.float().T
    return hidden, weight, exact, exact.bfloat16().float()


def test_it_recomputes_a_bounded_number_of_flat_logits(ops: LayerOps) -> None:
    hidden, weight, exact, logits = flat_logits(5)
    logits[3, 7] = exact[3, 7] = 30.0  # one row that is not flat
    rounded = logits.clone()
    assert (rounded >= rounded.amax(1, keepdim=True) - NEAR_TOP).sum(1).tolist()[:3] > [4000] * 3
    ops.refine_top(logits, hidden, weight)
    changed = (logits != rounded).sum(1)
    assert changed[3] == 1
    assert (changed <= MAX_NEAR).all()
    best = exact[:3].topk(MAX_NEAR // 2).indices
    torch.testing.assert_close(logits[:3].gather(1, best), exact[:3].gather(1, best))
    assert (logits.argmax(1) == exact.argmax(1))[[0, 1, 2, 4]].all()


def test_it_bounds_a_row_whose_largest_logits_are_neighbours(ops: LayerOps) -> None:
    hidden, weight, exact, _ = flat_logits(2)
    logits = torch.full_like(exact, -50.0)
    logits[:, 64:320] = exact[:, 64:320].bfloat16().float()
    rounded = logits.clone()
    ops.refine_top(logits, hidden, weight)
    assert (logits != rounded).sum(1).max() <= MAX_NEAR
    assert (logits.argmax(1) == exact[:, 64:320].argmax(1) + 64).all()


def test_it_lets_what_is_not_finite_stand(ops: LayerOps) -> None:
    logits = torch.full((2, 64), float("nan"))
    logits[1, 3] = float("inf")
    ops.refine_top(logits, torch.zeros(2, 16), torch.zeros(64, 16))
    assert logits.isnan().any(1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("vocabulary", [4096, 1000, 20])
def test_the_kernel_equals_the_reference(vocabulary: int, dtype: torch.dtype, cache_folder: Path) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    weight = torch.randn(vocabulary, 48, generator=generator).to(dtype)
    hidden = torch.randn(7, 48, generator=generator)
    rounded = (hidden @ weight.float().T).bfloat16().float()
    results = []
    for ops in (TorchOps(), CpuOps(load_kernels(cache_folder / "kernels"))):
        logits = rounded.clone()
        ops.refine_top(logits, hidden, weight)
        results.append(logits)
    assert not torch.equal(results[0], rounded)
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-6)
