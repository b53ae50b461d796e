"""The compiled operations equal the torch reference, and the reference equals its definition in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from radixrt.kernels.build import load_kernels
from radixrt.layers.ops import CpuOps, LayerOps, TorchOps

DTYPES = [torch.float32, torch.bfloat16]
ROWS = [1, 3, 300]
"""300 rows are enough for the kernels to use several threads."""

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture(scope="module")
def compiled(cache_folder: Path) -> LayerOps:
    return CpuOps(load_kernels(cache_folder / "kernels"))


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"atol": 2e-6, "rtol": 2e-6} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 1e-2}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [576, 64, 24])
def test_add_rms_norm(compiled: LayerOps, rows: int, dtype: torch.dtype, dim: int) -> None:
    residual, weight = torch.randn(rows, dim), torch.rand(dim) + 0.5
    x = torch.randn(rows, dim).to(dtype)
    total = residual.double() + x.double()
    exact = total / (total.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    for ops in (TorchOps(), compiled):
        for added in (x, None):
            summed = residual.clone()
            out = ops.add_rms_norm(summed, added, weight, 1e-5, dtype)
            assert out.dtype == dtype
            if added is None:
                assert torch.equal(summed, residual)
            else:
                torch.testing.assert_close(summed, residual + x.float())
                torch.testing.assert_close(out.double(), exact, **tolerance(dtype))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1536, 112, 24])
def test_silu_and_mul(compiled: LayerOps, rows: int, dtype: torch.dtype, size: int) -> None:
    x = (torch.randn(rows, 2 * size) * 8).to(dtype)
    x[0, 0], x[0, 1] = -300.0, 300.0
    gate, up = x.double().chunk(2, -1)
    exact = gate * torch.sigmoid(gate) * up
    for ops in (TorchOps(), compiled):
        torch.testing.assert_close(ops.silu_and_mul(x).double(), exact, **tolerance(dtype))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [64, 128, 16])
def test_rotate(compiled: LayerOps, rows: int, dtype: torch.dtype, dim: int) -> None:
    fused = torch.randn(rows, 9, dim).to(dtype)
    table = torch.randn(512, 2, dim)
    positions = torch.randint(0, 512, (rows,))
    expected = TorchOps().rotate(fused.clone()[:, :7], positions, table)
    out = fused.clone()
    rotated = compiled.rotate(out[:, :7], positions, table)
    torch.testing.assert_close(rotated, expected, **tolerance(dtype))
    assert torch.equal(out[:, 7:], fused[:, 7:]), "the value heads are left alone"
