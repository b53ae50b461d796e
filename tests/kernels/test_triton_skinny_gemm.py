"""GEMMs with the tokens of a batch against float64: within the rounding of the result and of float32 sums."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from radixrt.kernels.triton.skinny_gemm_config import (
    CONFIGS,
    MAX_PARTS,
    MAX_TILES,
    Config,
    GemmShape,
    find_config,
    padded_tokens,
)
from radixrt.layers.cuda_ops import CudaOps
from radixrt.layers.ops import TorchOps

pytestmark = pytest.mark.gpu

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
needs_sm90 = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="needs sm_90 or later"
)

SHARED_BYTES = 227 * 1024
"""Largest shared memory of a program on sm_90, in bytes."""

SIZES = [(1, 8), (40, 264), (64, 256), (130, 520), (33, 2056)]
"""Results and columns; few of them fill a tile, a step or a split."""

CUTS = {
    "rows first": Config(64, 64, 1, 3, 4, bulk=True),
    "tokens first": Config(32, 64, 1, 3, 4, tokens_first=True, bulk=True),
    "by threads": Config(64, 64, 1, 3, 4),
    "split": Config(32, 64, 3, 3, 4, bulk=True),
    "split by threads": Config(16, 64, 4, 4, 4, tokens_first=True),
}


def dtypes(device: str) -> list[torch.dtype]:
    """The interpreter multiplies no matrices of bfloat16."""
    return [torch.bfloat16, torch.float16] if device == "cuda" else [torch.float16]


def make(device: str, dtype: torch.dtype, tokens: int, rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rows + columns)
    shapes = ((tokens, columns), (rows, columns), (rows,))
    x, weight, bias = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
    return x, weight * columns**-0.5, bias


def exactly(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, gated: bool) -> torch.Tensor:
    y = x.double() @ weight.double().T + (0.0 if bias is None else bias.double())
    if not gated:
        return y
    gate, up = y.chunk(2, dim=1)
    return gate * gate.sigmoid() * up


def check(found: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), exact, rtol=unit, atol=unit * 2**-4)


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
@pytest.mark.parametrize("tokens", [1, 16, 33, 130])
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_each_way_to_cut(triton_device: str, rows: int, columns: int, tokens: int, cut: Config, gated: bool) -> None:
    from radixrt.kernels.triton import skinny_gemm

    workspace = skinny_gemm.Workspace(triton_device)
    for dtype in dtypes(triton_device):
        x, weight, bias = make(triton_device, dtype, tokens, rows * (1 + gated), columns)
        for each in (None, bias):
            found = skinny_gemm.multiply(x, weight, each, workspace, cut, gated=gated)
            assert found.shape == (tokens, rows)
            check(found, exactly(x, weight, each, gated), dtype)
    assert not workspace.arrived.any()


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
@pytest.mark.parametrize("tokens", [1, 33, 64])
def test_what_lies_behind_the_tokens_ends_nowhere(triton_device: str, tokens: int, cut: Config) -> None:
    from radixrt.kernels.triton import skinny_gemm
    from radixrt.kernels.triton.padding import empty_padded, padded_view

    workspace = skinny_gemm.Workspace(triton_device)
    x, weight, bias = make(triton_device, torch.float16, tokens, 40, 264)
    roomy = empty_padded(tokens, 264, dtype=x.dtype, device=x.device)
    padded_view(roomy, padded_tokens(tokens)).fill_(torch.nan)
    found = skinny_gemm.multiply(roomy.copy_(x), weight, bias, workspace, cut)
    assert torch.equal(found, skinny_gemm.multiply(x, weight, bias, workspace, cut))


@pytest.mark.parametrize("tokens", [5, 40])
def test_large_gates_do_not_overflow(triton_device: str, tokens: int) -> None:
    from radixrt.kernels.triton import skinny_gemm

    weight = torch.zeros(8, 8, dtype=torch.float16)
    weight[:4, 0], weight[4:, 1] = torch.tensor([-3e4, -100.0, 100.0, 3e4]), 1.0
    x = torch.ones(tokens, 8, device=triton_device, dtype=torch.float16)
    cut, workspace = CUTS["by threads"], skinny_gemm.Workspace(triton_device)
    out = skinny_gemm.multiply(x, weight.to(triton_device), None, workspace, cut, gated=True)
    torch.testing.assert_close(
        out.cpu().float(), torch.tensor([[0.0, 0.0, 100.0, 3e4]]).expand(tokens, 4), rtol=1e-3, atol=0.0
    )


def test_a_batch_of_none(triton_device: str) -> None:
    from radixrt.kernels.triton import skinny_gemm

    x, weight, _ = make(triton_device, torch.float16, 0, 32, 64)
    workspace = skinny_gemm.Workspace(triton_device)
    assert skinny_gemm.multiply(x, weight, None, workspace, Config(32, 64, 1, 3, 4)).shape == (0, 32)


def test_splits_that_the_workspace_has_no_room_for(triton_device: str) -> None:
    from radixrt.kernels.triton import skinny_gemm

    x, weight, _ = make(triton_device, torch.float16, 1, 16 * 1025, 128)
    with pytest.raises(ValueError, match="use fewer splits"):
        skinny_gemm.multiply(x, weight, None, skinny_gemm.Workspace("cpu"), Config(16, 64, 2, 2, 4))


@pytest.mark.parametrize(
    ("product", "width"), [(product, width) for product, cuts in CONFIGS.items() for width in cuts], ids=str
)
def test_cuts_fit(product: GemmShape, width: int) -> None:
    cut = CONFIGS[product][width]
    halves = 1 + product.gated
    tiles = -(-product.rows // halves // cut.rows)
    assert tiles <= MAX_TILES
    assert cut.splits == 1 or tiles * cut.splits * cut.rows * halves * width <= MAX_PARTS
    assert (cut.rows * halves + width) * cut.step * 2 * cut.stages <= SHARED_BYTES


def test_choice() -> None:
    assert find_config(64, 4096, 4096, gated=False) is CONFIGS[GemmShape(4096, 4096, False)][64]
    assert find_config(33, 4096, 4096, gated=False) is CONFIGS[GemmShape(4096, 4096, False)][64]
    for tokens, rows, gated in ((0, 4096, False), (129, 4096, False), (64, 4096, True), (64, 4095, False)):
        assert find_config(tokens, rows, 4096, gated=gated) is None
    assert [padded_tokens(n) for n in (1, 16, 17, 64, 65)] == [16, 16, 32, 64, 128]


class CountedProducts(CudaOps):
    """Accepts small weights too, and counts the GEMMs that the kernel executed."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def _tiling(self, x: torch.Tensor, weight: torch.Tensor, *, gated: bool) -> Config | None:
        takes = self._skinny_gemm.supports(x, weight)
        self.taken += takes
        return CUTS["split"] if takes else None


@needs_sm90
@pytest.mark.parametrize(
    ("tokens", "columns", "dtype", "by_kernel"),
    [
        (5, 64, torch.float16, True),
        (130, 64, torch.float16, True),
        (0, 64, torch.float16, True),
        (257, 64, torch.float16, False),
        (5, 60, torch.float16, False),
        (5, 64, torch.float32, False),
    ],
)
def test_layers_take_what_fits(
    triton_device: str, tokens: int, columns: int, dtype: torch.dtype, by_kernel: bool
) -> None:
    x, weight, bias = make(triton_device, dtype, tokens, 24, columns)
    ops, reference = CountedProducts(), TorchOps()
    torch.testing.assert_close(ops.linear(x, weight, bias), F.linear(x, weight, bias), rtol=2e-3, atol=2e-3)
    found, expected = (each.linear_silu_and_mul(x, weight, bias) for each in (ops, reference))
    torch.testing.assert_close(found, expected, rtol=4e-3, atol=4e-3)
    assert ops.taken == (2 if by_kernel else 0)


def test_rows_apart_in_memory_go_to_torch(triton_device: str) -> None:
    ops = CountedProducts()
    x, weight, _ = make(triton_device, torch.float16, 6, 24, 64)
    apart = torch.cat((x, x), dim=1)[:, :64]
    torch.testing.assert_close(ops.linear(apart, weight, None), F.linear(x, weight), rtol=2e-3, atol=2e-3)
    assert ops.taken == 0


@needs_gpu
@needs_sm90
@pytest.mark.parametrize(
    ("product", "tokens"),
    [(p, n) for p in CONFIGS for n in (5, 16, 32, 64, 100, 128) if padded_tokens(n) in CONFIGS[p]],
    ids=str,
)
def test_sizes_of_models(product: GemmShape, tokens: int) -> None:
    """Also: the same bits each time, with launches that overlap in a graph as one by one."""
    from radixrt.kernels.triton import skinny_gemm

    cut = find_config(tokens, product.rows, product.columns, gated=product.gated)
    assert cut is not None
    workspace = skinny_gemm.Workspace("cuda")
    x, weight, bias = make("cuda", torch.bfloat16, tokens, product.rows, product.columns)

    def run(early: bool = True) -> torch.Tensor:
        return skinny_gemm.multiply(x, weight, bias, workspace, cut, gated=product.gated, early=early)

    found = run(early=False)
    check(found, exactly(x, weight, bias, product.gated), torch.bfloat16)
    assert all(torch.equal(found, run()) for _ in range(10))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [run() for _ in range(10)]
    for _ in range(3):
        graph.replay()
        assert all(torch.equal(found, each) for each in captured)
    assert not workspace.arrived.any()
