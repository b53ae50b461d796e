"""Matrix-vector multiplication with a few rows against float64: within the rounding of result and float32 sums."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from radixrt.layers.cuda_ops import CudaOps
from radixrt.layers.formats.checkpoint import whole_weight
from radixrt.layers.formats.plain import Plain
from radixrt.layers.linear import Linear
from radixrt.layers.ops import LayerOps, TorchOps

pytestmark = pytest.mark.gpu

DTYPES = pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32], ids=["bf16", "f16", "f32"]
)  # fmt: skip

SIZES = [(1, 8), (3, 8), (7, 264), (30, 1000), (64, 1024), (5, 1280), (37, 2056), (18, 576)]
"""Rows and columns; few of them fill a program, a chunk or a step."""


def make(device: str, dtype: torch.dtype, tokens: int, rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rows + columns)
    shapes = ((tokens, columns), (rows, columns), (rows,))
    x, weight, bias = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
    return x, weight * columns**-0.5, bias


def check(found: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), exact, rtol=max(unit, 4e-6), atol=max(unit * 2**-4, 4e-6))


def silu(gate: torch.Tensor) -> torch.Tensor:
    return gate * gate.sigmoid()


@DTYPES
@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("tokens", [1, 2, 3])
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_gemv(
    triton_device: str, rows: int, columns: int, tokens: int, has_bias: bool, dtype: torch.dtype
) -> None:  # fmt: skip
    from radixrt.kernels.triton import gemv

    x, weight, bias = make(triton_device, dtype, tokens, rows, columns)
    exact = x.double() @ weight.double().T + (bias.double() if has_bias else 0.0)
    found = gemv.gemv(x, weight, bias if has_bias else None)
    assert found.shape == (tokens, rows)
    check(found, exact, dtype)


@DTYPES
@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_gate_up_silu(
    triton_device: str, rows: int, columns: int, tokens: int, has_bias: bool, dtype: torch.dtype
) -> None:  # fmt: skip
    from radixrt.kernels.triton import gemv

    x, weight, bias = make(triton_device, dtype, tokens, 2 * rows, columns)
    gate, up = (x.double() @ weight.double().T + (bias.double() if has_bias else 0.0)).chunk(2, dim=1)
    found = gemv.gate_up_silu(x, weight, bias if has_bias else None)
    assert found.shape == (tokens, rows)
    check(found, silu(gate) * up, dtype)


@pytest.mark.parametrize("columns", [520, 1304, 2312])
@pytest.mark.parametrize("tokens", [1, 2, 4])
@pytest.mark.parametrize("rows", [8, 12, 13])
def test_two_rows_for_each_warp(
    triton_device: str, monkeypatch: pytest.MonkeyPatch, rows: int, tokens: int, columns: int
) -> None:
    from radixrt.kernels.triton import gemv

    monkeypatch.setattr(gemv, "MANY_ROWS", 7)
    x, weight, bias = make(triton_device, torch.bfloat16, tokens, rows, columns)
    check(gemv.gemv(x, weight, bias), x.double() @ weight.double().T + bias.double(), torch.bfloat16)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="takes minutes in the interpreter")
@pytest.mark.parametrize("tokens", [1, 2, 4])
@pytest.mark.parametrize(
    ("rows", "columns"),
    [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072), (6144, 4096), (4096, 14336), (14336, 4096), (4096, 7168)],
)
def test_sizes_of_models(triton_device: str, rows: int, columns: int, tokens: int) -> None:
    from radixrt.kernels.triton import gemv

    x, weight, _ = make(triton_device, torch.bfloat16, tokens, rows, columns)
    exact = x.double() @ weight.double().T
    found = gemv.gemv(x, weight, None)
    check(found, exact, torch.bfloat16)
    assert all(torch.equal(found, gemv.gemv(x, weight, None)) for _ in range(10))
    gate, up = exact.chunk(2, dim=1)
    check(gemv.gate_up_silu(x, weight, None), silu(gate) * up, torch.bfloat16)


def test_large_gates_do_not_overflow(triton_device: str) -> None:
    from radixrt.kernels.triton import gemv

    weight = torch.zeros(8, 8)
    weight[:4, 0], weight[4:, 1] = torch.tensor([-1e4, -100.0, 100.0, 1e4]), 1.0
    out = gemv.gate_up_silu(torch.ones(1, 8, device=triton_device), weight.to(triton_device), None)
    torch.testing.assert_close(out.cpu(), torch.tensor([[0.0, 0.0, 100.0, 1e4]]))


@pytest.mark.parametrize(
    ("tokens", "rows", "columns", "expected"),
    [
        (0, 1024, 2048, False),
        (1, 1024, 2048, True),
        (4, 1024, 2048, True),
        (5, 1024, 2048, False),
        (2, 4096, 14336, True),
        (3, 4096, 14336, False),
        (1, 28672, 4096, True),
        (4, 4096, 1024, False),
        (1, 128256, 4096, False),
    ],
)
def test_choice(triton_device: str, tokens: int, rows: int, columns: int, expected: bool) -> None:
    from radixrt.kernels.triton import gemv

    assert gemv.wins(tokens, rows, columns) == expected


class CountedProducts(CudaOps):
    """Counts the calls that the kernels executed."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def _uses_gemv(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        takes = super()._uses_gemv(x, weight)
        self.taken += takes
        return takes


def layer(device: str, rows: int, columns: int, ops: LayerOps) -> Linear:
    made = Linear([whole_weight("", rows, columns)], True, torch.float32, Plain(ops))
    _, weight, bias = make(device, torch.float32, 1, rows, columns)
    made.weight, made.bias = (torch.nn.Parameter(value, requires_grad=False) for value in (weight, bias))
    made.process_weights_after_loading()
    return made


@pytest.mark.parametrize(
    ("tokens", "columns", "by_kernel"), [(1, 64, True), (4, 64, True), (5, 64, False), (0, 64, False), (1, 60, False)]
)
def test_layers_take_what_fits(triton_device: str, tokens: int, columns: int, by_kernel: bool) -> None:
    x, _, _ = make(triton_device, torch.float32, tokens, 1, columns)
    results = []
    ops = CountedProducts()
    each: LayerOps
    for each in (ops, TorchOps()):
        made = layer(triton_device, 24, columns, each)
        results.append((made(x), made.silu_and_mul(x)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert ops.taken == (2 if by_kernel else 0)


def test_rows_apart_in_memory_go_to_torch(triton_device: str) -> None:
    ops = CountedProducts()
    x, weight, _ = make(triton_device, torch.float32, 2, 24, 64)
    apart = torch.cat((x, x), dim=1)[:, :64]
    torch.testing.assert_close(ops.linear(apart, weight, None), F.linear(x, weight), rtol=1e-5, atol=1e-5)
    assert ops.taken == 0
