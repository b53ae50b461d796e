"""Routing against the reference in float64, and lists of tiles against a sort."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from radixrt.layers.routing import Routing, route

pytestmark = pytest.mark.gpu


@pytest.fixture
def arrived(triton_device: str) -> Iterator[torch.Tensor]:
    """The counter of the kernel for a few tokens, which is 0 again afterwards."""
    made = torch.zeros(1, dtype=torch.int32, device=triton_device)
    yield made
    assert not made.any()


def inputs(device: str, tokens: int, hidden: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens + rows)
    x = torch.randn(tokens, hidden, generator=generator)
    router = torch.randn(rows, hidden, generator=generator) * 2 * hidden**-0.5
    return x.to(device, torch.float16 if device == "cpu" else torch.bfloat16), router.to(device)


SMALL = [
    (1, 8, Routing(2, True)),
    (3, 128, Routing(8, False)),
    (4, 12, Routing(3, True, 1)),
    (5, 8, Routing(8, True)),
    (70, 40, Routing(3, False, 2)),
]
"""Tokens, experts and rules, for the interpreter."""
SIZES = [(8, 2), (128, 8), (256, 8), (512, 10), (40, 3)]


def cases(device: str, case: int) -> list[tuple[int, int, Routing]]:
    if device == "cpu":
        return [SMALL[case]]
    count, top_k = SIZES[case]
    return [
        (tokens, count, Routing(top_k, tokens % 2 == 0, shared))
        for tokens in (1, 2, 3, 4, 5, 33, 64, 256, 500, 3000)
        for shared in (0, 1)
    ]


@pytest.mark.parametrize("case", range(len(SIZES)))
@pytest.mark.parametrize("wide", [False, True])
def test_equals_the_reference(triton_device: str, wide: bool, case: int, arrived: torch.Tensor) -> None:
    from radixrt.kernels.triton import routing as kernels

    hidden = (2048 if triton_device == "cuda" else 64) if wide else 200
    for tokens, count, rule in cases(triton_device, case):
        x, router = inputs(triton_device, tokens, hidden, count + (rule.num_shared > 0))
        expected, scales = route(x.double(), router, rule)
        logits = x.double() @ router.double().T
        found, weights = kernels.route(
            x, router, arrived, top_k=rule.top_k, num_shared=rule.num_shared, renormalize=rule.renormalize
        )
        assert found.dtype == torch.int32
        assert weights.dtype == torch.float32
        # Logits that differ by less than the rounding of float32 may be ordered either way.
        by_expert = logits[:, :count].softmax(-1)
        chosen = found[:, : rule.top_k].long()
        assert (chosen.sort().values.diff() > 0).all()
        torch.testing.assert_close(
            by_expert.gather(1, chosen), by_expert.gather(1, expected[:, : rule.top_k]), rtol=1e-5, atol=1e-9
        )
        assert (found[:, rule.top_k :] == expected[:, rule.top_k :]).all()
        torch.testing.assert_close(weights.double(), scales.double(), rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("tokens", [3, 70])
@pytest.mark.parametrize("shared", [0, 1])
def test_a_router_with_a_bias(triton_device: str, shared: int, tokens: int, arrived: torch.Tensor) -> None:
    from radixrt.kernels.triton import routing as kernels

    x, router = inputs(triton_device, tokens, 64, 12 + shared)
    bias = torch.linspace(-2.0, 2.0, 12 + shared, device=triton_device)
    expected, scales = route(x, router, Routing(3, True, shared), bias)
    found, weights = kernels.route(x, router, arrived, top_k=3, num_shared=shared, renormalize=True, bias=bias)
    assert torch.equal(found.long(), expected.long())
    torch.testing.assert_close(weights, scales, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("tokens", [4, 6])
def test_equal_logits_and_those_that_are_no_number(triton_device: str, tokens: int, arrived: torch.Tensor) -> None:
    from radixrt.kernels.triton import routing as kernels

    x, router = inputs(triton_device, tokens, 64, 20)
    x[1], x[3, 0] = 0.0, torch.nan
    found, weights = kernels.route(x, router, arrived, top_k=6, num_shared=0, renormalize=True)
    assert found[1].tolist() == found[3].tolist() == [0, 1, 2, 3, 4, 5]
    torch.testing.assert_close(weights[1].cpu(), torch.full((6,), 1 / 6))
    assert all(len(set(row)) == 6 for row in found.tolist())


def expected_tiles(experts: torch.Tensor, tile: int) -> list[tuple[int, list[int]]]:
    chosen, tiles = experts.flatten(), []
    for expert in chosen.unique().tolist():
        pairs = (chosen == expert).nonzero().flatten().tolist()
        tiles += [(expert, pairs[at : at + tile]) for at in range(0, len(pairs), tile)]
    return tiles


@pytest.mark.parametrize(
    ("tokens", "count", "top_k", "tile"), [(1, 8, 2, 16), (40, 9, 3, 16), (600, 5, 2, 64), (9000, 6, 2, 128)]
)
def test_tiles(triton_device: str, tokens: int, count: int, top_k: int, tile: int) -> None:
    from radixrt.kernels.triton.expert_tiles import list_tiles, max_tiles

    scores = torch.rand(tokens, count, generator=torch.Generator().manual_seed(tokens))
    scores[:, 2] = -1.0  # an expert without tokens
    scores[: tokens // 2, 4] = 2.0
    experts = scores.topk(top_k).indices.int().to(triton_device)
    found = list_tiles(experts, count, tile)
    made = int(found.num_tiles)
    assert made <= max_tiles(tokens * top_k, count, tile) == found.tiles.shape[0]
    assert sorted(found.pairs.tolist()) == list(range(tokens * top_k))
    listed = [(e, found.pairs[first : first + n].tolist()) for e, first, n in found.tiles[:made].tolist()]
    assert listed == expected_tiles(experts.cpu(), tile)


def test_all_tokens_to_one_expert_and_its_limit(triton_device: str) -> None:
    from radixrt.kernels.triton.expert_tiles import list_tiles

    found = list_tiles(torch.full((50, 1), 3, dtype=torch.int32, device=triton_device), 4, 16)
    assert found.tiles[: int(found.num_tiles)].tolist() == [[3, 0, 16], [3, 16, 16], [3, 32, 16], [3, 48, 2]]
