"""Mixtures of experts against float64, within the rounding of what each expert returns and of the sum."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from radixrt.kernels.triton.expert_gemm_config import GATED, PLAIN, TILES, Config, find_config, tile_of
from radixrt.layers.swiglu import BiasedSwiGLU, ClampedSwiGLU

pytestmark = pytest.mark.gpu

SHARED_BYTES = 227 * 1024
"""Largest shared memory of a program on sm_90, in bytes."""


def make(
    device: str, dtype: torch.dtype, tokens: int, count: int, top_k: int, hidden: int, columns: int
) -> tuple[torch.Tensor, ...]:
    """x, experts, weights, gate_up and down; expert 1 has no tokens, and an eighth of the tokens choose alike."""
    generator = torch.Generator(device).manual_seed(tokens + count)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    scores = random(tokens, count)
    scores[: tokens // 8] = scores[:1]
    if count > top_k:
        scores[:, 1] = -torch.inf
    weights, experts = scores.topk(top_k)
    gate_up = (random(count, 2 * columns, hidden) * hidden**-0.5).to(dtype)
    down = (random(count, hidden, columns) * columns**-0.5).to(dtype)
    return random(tokens, hidden).to(dtype), experts.int(), weights.softmax(-1), gate_up, down


def exactly(
    x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor,
    biased: BiasedSwiGLU | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The sums in float64, with `inner` rounded as the kernels round it, and the sums of the addends' magnitudes, to
    each of which the largest product of `inner` and a weight is added: one number of `inner` may be rounded the other
    way where float32 sums differ."""
    total = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    size = total.clone()
    for expert in experts.unique().tolist():
        rows, place = (experts == expert).nonzero(as_tuple=True)
        both = x[rows].double() @ gate_up[expert].double().T
        gate, up = both.chunk(2, dim=1)
        inner = (gate * gate.sigmoid() * up).to(x.dtype)
        if biased is not None:
            inner = biased.swiglu.apply(both + biased.gate_up[expert].double()).to(x.dtype)
        out = inner.double() @ down[expert].double().T
        out = weights[rows, place, None].double() * (out if biased is None else out + biased.down[expert].double())
        total.index_add_(0, rows, out)
        largest = inner.double().abs().amax(1, keepdim=True) * down[expert].double().abs().amax(1)
        size.index_add_(0, rows, out.abs() + weights[rows, place, None].double() * largest)
    return total, size


def check(found: torch.Tensor, made: tuple[torch.Tensor, ...], biased: BiasedSwiGLU | None = None) -> None:
    exact, size = exactly(*made, biased)
    assert found.dtype == made[0].dtype
    assert found.shape == exact.shape
    error = (found.double() - exact).abs() / (exact.abs() + size)  # each addend is rounded, then the sum
    assert error.max() < torch.finfo(found.dtype).eps


SMALL = [(1, 4, 2, 64, 48), (3, 8, 8, 72, 40), (5, 4, 2, 64, 36), (40, 5, 3, 136, 48), (130, 3, 1, 64, 40)]
"""Tokens, experts, top k, hidden size and columns, for the interpreter."""
SIZES = [(8, 2, 512, 1408), (128, 8, 2048, 768), (256, 8, 512, 512), (512, 10, 512, 256), (4, 2, 96, 36)]
TOKENS = (1, 2, 3, 4, 5, 16, 33, 64, 129, 256, 500)


def dtypes(device: str) -> list[torch.dtype]:
    """The interpreter multiplies no matrices of bfloat16."""
    return [torch.bfloat16, torch.float16] if device == "cuda" else [torch.float16]


@pytest.mark.parametrize("case", range(len(SIZES)))
def test_equals_float64(triton_device: str, case: int) -> None:
    from radixrt.layers.cuda_ops import CudaOps

    ops = CudaOps()
    for shape in [(tokens, *SIZES[case]) for tokens in TOKENS] if triton_device == "cuda" else [SMALL[case]]:
        for dtype in dtypes(triton_device):
            made = make(triton_device, dtype, *shape)
            found = ops.run_experts(*made)
            assert found is not None
            check(found, made)
            again = ops.run_experts(*made)
            assert again is not None
            assert torch.equal(found, again)


def biases(made: tuple[torch.Tensor, ...]) -> BiasedSwiGLU:
    """Biases as large as what they are added to, and a clamp that some values reach."""
    gate_up, down = made[3:]
    offsets = [torch.linspace(-1.5, 1.5, each.shape[0] * each.shape[1], device=each.device) for each in (gate_up, down)]
    return BiasedSwiGLU(
        ClampedSwiGLU(1.702, 1.25), offsets[0].view(gate_up.shape[:2]).contiguous(), offsets[1].view(down.shape[:2])
    )


@pytest.mark.parametrize("tokens", [3, 40])
def test_experts_with_biases_and_a_clamped_gate(triton_device: str, tokens: int) -> None:
    from radixrt.layers.cuda_ops import CudaOps

    for dtype in dtypes(triton_device):
        made = make(triton_device, dtype, tokens, 5, 3, 72, 40)
        rule = biases(made)
        found = CudaOps().run_experts(*made, rule)
        assert found is not None
        check(found, made, rule)


CUTS = {
    "by threads": Config(32, 64, 3, 4),
    "by descriptors": Config(32, 64, 3, 4, bulk=True),
    "tokens first": Config(64, 64, 3, 4, tokens_first=True),
    "tokens first, by descriptors": Config(64, 64, 3, 8, tokens_first=True, bulk=True),
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
@pytest.mark.parametrize("tile", TILES)
def test_each_tiling(triton_device: str, tile: int, cut: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    from radixrt.kernels.triton import expert_gemm
    from radixrt.kernels.triton.activation import ExpertRule

    monkeypatch.setattr(expert_gemm, "tile_of", lambda *sizes: tile)
    monkeypatch.setattr(expert_gemm, "find_config", lambda tile, **kind: cut)
    made = make(triton_device, torch.float16, 40, 3, 2, 72, 40)
    check(expert_gemm.run_experts(*made), made)
    rule = biases(made)
    found = expert_gemm.run_experts(
        *made, rule=ExpertRule(rule.gate_up, rule.down, rule.swiglu.alpha, rule.swiglu.limit)
    )
    check(found, made, rule)


@pytest.mark.parametrize("module", ["expert_gemm", "expert_gemv"])
@pytest.mark.parametrize("hidden", [64, 72])
def test_one_expert_with_all_tokens(triton_device: str, hidden: int, module: str) -> None:
    kernels: Any = importlib.import_module(f"radixrt.kernels.triton.{module}")
    tokens = 20 if module == "expert_gemm" else 4
    x, _, _, gate_up, down = make(triton_device, torch.float16, tokens, 4, 1, hidden, 40)
    experts = torch.full((tokens, 1), 3, dtype=torch.int32, device=triton_device)
    made = (x, experts, torch.ones(tokens, 1, device=triton_device), gate_up, down)
    check(kernels.run_experts(*made), made)


@pytest.mark.parametrize("tokens", [3, 40])
def test_large_gates_do_not_overflow(triton_device: str, tokens: int) -> None:
    from radixrt.layers.cuda_ops import CudaOps

    gate_up = torch.zeros(1, 16, 8)
    gate_up[0, :4, 0], gate_up[0, 8:, 1] = torch.tensor([-3e4, -100.0, 100.0, 3e4]), 1.0
    down = torch.eye(8)[None]
    x, one = torch.ones(tokens, 8), torch.ones(tokens, 1)
    made = [x.half(), one.int() - 1, one, gate_up.half(), down.half()]
    out = CudaOps().run_experts(*(each.to(triton_device) for each in made))
    assert out is not None
    expected = torch.tensor([0.0, 0.0, 100.0, 3e4, 0.0, 0.0, 0.0, 0.0])
    torch.testing.assert_close(out.cpu().float(), expected.expand(tokens, 8), rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tile", TILES)
def test_tilings_fit(tile: int, gated: bool) -> None:
    cut = find_config(tile, gated=gated)
    assert cut is (GATED if gated else PLAIN)[tile]
    assert (cut.rows * (1 + gated) + tile) * cut.step * 2 * cut.stages <= SHARED_BYTES


def test_tiles_grow_with_the_tokens_of_an_expert() -> None:
    assert [tile_of(n, 8, 128) for n in (5, 64, 128, 256, 512, 1024, 2048, 16_384)] == [
        16, 16, 16, 32, 64, 64, 128, 128,
    ]  # fmt: skip
    assert tile_of(5, 2, 8) == 16
    assert tile_of(33, 2, 8) == tile_of(64, 2, 8) == 32
