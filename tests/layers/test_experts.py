"""Fused experts equal a sum over single MLPs, and round as dense linear layers do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from radixrt.kernels.build import load_kernels
from radixrt.layers.experts import FusedExperts
from radixrt.layers.formats.checkpoint import whole_weight
from radixrt.layers.formats.panels import PanelWeight, plain_format
from radixrt.layers.linear import Linear
from radixrt.layers.ops import CpuOps, LayerOps, TorchOps
from radixrt.layers.swiglu import BiasedSwiGLU, ClampedSwiGLU

E, HIDDEN = 5, 64
TOP_K = 3

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture(scope="module", params=["torch", "compiled"])
def ops(request: pytest.FixtureRequest, cache_folder: Path) -> LayerOps:
    return TorchOps() if request.param == "torch" else CpuOps(load_kernels(cache_folder / "kernels"))


def random_weights(columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(columns)
    gate_up = torch.randn(E, 2 * columns, HIDDEN, generator=generator) / 8
    return gate_up.to(dtype), (torch.randn(E, HIDDEN, columns, generator=generator) / 8).to(dtype)


def loaded(
    gate_up: torch.Tensor, down: torch.Tensor, ops: LayerOps, biased: BiasedSwiGLU | None = None
) -> FusedExperts:
    columns, swiglu = down.shape[2], None if biased is None else biased.swiglu
    weights = [whole_weight("", 2 * columns, HIDDEN)] * E, [whole_weight("", HIDDEN, columns)] * E
    made = FusedExperts(E, *weights, down.dtype, plain_format(ops), swiglu)
    if biased is not None:
        made.gate_up_bias = nn.Parameter(biased.gate_up, requires_grad=False)
        made.down_bias = nn.Parameter(biased.down, requires_grad=False)
    made.gate_up_proj = nn.Parameter(gate_up.clone(), requires_grad=False)
    made.down_proj = nn.Parameter(down.clone(), requires_grad=False)
    places = [p.data_ptr() for p in made.parameters()]
    made.process_weights_after_loading()
    assert [p.data_ptr() for p in made.parameters()] == places  # no second copy in memory
    return made


def routed(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x, scores = torch.randn(rows, HIDDEN, generator=generator), torch.rand(rows, E, generator=generator)
    scores[:, 1] = -1.0  # an expert without tokens
    weights, experts = scores.topk(TOP_K)
    return x, experts, weights


@pytest.mark.parametrize("rows", [1, 2, 70])
@pytest.mark.parametrize("columns", [64, 40])
def test_a_weighted_sum_over_the_chosen_experts(columns: int, rows: int, ops: LayerOps) -> None:
    gate_up, down = random_weights(columns, torch.float32)
    x, experts, weights = routed(rows)
    expected = torch.zeros(rows, HIDDEN, dtype=torch.float64)
    for t in range(rows):
        for expert, weight in zip(experts[t], weights[t], strict=True):
            gate, up = (gate_up[expert].double() @ x[t].double()).chunk(2)
            expected[t] += weight.double() * (down[expert].double() @ (gate * torch.sigmoid(gate) * up))
    out = loaded(gate_up, down, ops)(x, experts, weights)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 300])
@pytest.mark.parametrize("columns", [64, 48])  # the compiled GEMM takes both and one of the weights
def test_biases_and_a_clamped_gate(columns: int, rows: int, dtype: torch.dtype, ops: LayerOps) -> None:
    gate_up, down = random_weights(columns, dtype)
    x, experts, weights = routed(rows)
    offsets = torch.randn(E, 2 * columns, generator=torch.Generator().manual_seed(2)), torch.randn(E, HIDDEN)
    biased = BiasedSwiGLU(ClampedSwiGLU(1.702, 0.8), *offsets)
    expected = torch.zeros(rows, HIDDEN, dtype=torch.float64)
    for t in range(rows):
        for expert, weight in zip(experts[t], weights[t], strict=True):
            both = gate_up[expert].double() @ x[t].to(dtype).double() + biased.gate_up[expert]
            gate, up = both.chunk(2)
            gate, up = gate.clamp(max=0.8), up.clamp(-0.8, 0.8)
            inner = (up + 1) * gate * torch.sigmoid(1.702 * gate)
            expected[t] += weight.double() * (down[expert].double() @ inner + biased.down[expert])
    out = loaded(gate_up, down, ops, biased)(x, experts, weights)
    assert out.dtype == torch.float32
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("columns", [64, 48, 40])  # the compiled GEMM takes both, one and neither of the weights
def test_bfloat16_rounds_as_a_dense_feed_forward(columns: int, rows: int, ops: LayerOps) -> None:
    gate_up, down = random_weights(columns, torch.bfloat16)
    x, _, _ = routed(rows)
    experts = loaded(gate_up, down, ops)
    for chosen in range(E):
        linears = []
        for weight, gated in ((gate_up[chosen], True), (down[chosen], False)):
            linear = Linear([whole_weight("", *weight.shape)], False, torch.bfloat16, plain_format(ops), gated=gated)
            linear.weight = nn.Parameter(weight.clone(), requires_grad=False)
            linear.process_weights_after_loading()
            linears.append(linear)
        dense = linears[1](linears[0].silu_and_mul(x))
        out = experts(x, torch.full((rows, 1), chosen), torch.ones(rows, 1))
        if isinstance(linears[1]._weight, PanelWeight):
            assert torch.equal(out, dense)
        else:  # oneDNN may add up in another order
            torch.testing.assert_close(out, dense, atol=5e-3, rtol=2e-2)


@pytest.mark.parametrize("columns", [64, 40])
def test_many_bfloat16_rows_are_the_sums_of_single_experts(columns: int, ops: LayerOps) -> None:
    """More tokens, and more for one expert, than the compiled kernel computes at a time."""
    gate_up, down = random_weights(columns, torch.bfloat16)
    x, experts, weights = routed(1100)
    experts[:600, 0] = 1  # now the expert without tokens has the most
    fused = loaded(gate_up, down, ops)
    alone = torch.stack([fused(x, torch.full((1100, 1), e), torch.ones(1100, 1)) for e in range(E)])
    expected = sum(weights[:, j, None] * alone[experts[:, j], torch.arange(1100)] for j in range(TOP_K))
    torch.testing.assert_close(fused(x, experts, weights), expected, atol=1e-5, rtol=1e-5)
