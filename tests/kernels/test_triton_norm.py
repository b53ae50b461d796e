"""The fused residual sum and RMSNorm against float64, of the residual as it is kept.

Tolerances are of the result's dtype: a unit in the last place of bfloat16 is up to 2^-7 of the value (Triton's
interpreter cuts off where the device rounds to nearest); of float32, 1e-5.
"""

from __future__ import annotations

import pytest
import torch

from radixrt.layers.ops import TorchOps

pytestmark = pytest.mark.gpu

BF16, F32 = torch.bfloat16, torch.float32
TOLERANCE = {BF16: 2**-7, F32: 1e-5}


def inputs(rows: int, size: int, dtype: torch.dtype, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * size)
    residual = torch.randn(rows, size, generator=generator) * 3
    x = torch.randn(rows, size, generator=generator)
    weight = 1 + 0.2 * torch.randn(size, generator=generator)
    return residual.to(device, dtype), x.to(device, dtype), weight.to(device, dtype)


@pytest.mark.parametrize("size", [8, 100, 576, 1024, 4096, 5000, 16384])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bf16", "f32"])
@pytest.mark.parametrize("adds", [True, False])
def test_sum_and_norm(triton_device: str, size: int, rows: int, dtype: torch.dtype, adds: bool) -> None:
    from radixrt.kernels.triton import norm

    residual, x, weight = inputs(rows, size, dtype, triton_device)
    kept = residual + x if adds else residual.clone()
    out = norm.add_rms_norm(residual, x if adds else None, weight, 1e-6, dtype)
    wide = residual.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    assert out.dtype == dtype
    if triton_device == "cuda":
        assert torch.equal(residual, kept)
    torch.testing.assert_close(residual, kept, rtol=TOLERANCE[dtype], atol=0)
    torch.testing.assert_close(out.double(), expected, rtol=TOLERANCE[dtype], atol=1e-6)


def test_equals_the_reference_across_dtypes(triton_device: str) -> None:
    """A float32 residual with bfloat16 activations, as a caller may choose."""
    from radixrt.kernels.triton import norm

    residual, x, weight = inputs(3, 576, F32, triton_device)
    reference = TorchOps().add_rms_norm(kept := residual.clone(), x.bfloat16(), weight, 1e-5, BF16)
    out = norm.add_rms_norm(residual, x.bfloat16(), weight, 1e-5, BF16)
    torch.testing.assert_close(residual, kept)
    torch.testing.assert_close(out.float(), reference.float(), rtol=2**-7, atol=1e-6)


def test_a_broken_row_stays_alone(triton_device: str) -> None:
    from radixrt.kernels.triton import norm

    residual, x, weight = inputs(3, 1024, BF16, triton_device)
    clean = norm.add_rms_norm(residual.clone(), x, weight, 1e-6, BF16)
    residual[1, 7] = torch.nan
    out = norm.add_rms_norm(residual, x, weight, 1e-6, BF16)
    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2]], clean[[0, 2]])


def test_no_rows(triton_device: str) -> None:
    from radixrt.kernels.triton import norm

    residual, x, weight = inputs(0, 1024, BF16, triton_device)
    assert norm.add_rms_norm(residual, x, weight, 1e-6, BF16).shape == (0, 1024)
