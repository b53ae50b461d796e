"""silu(gate) * up against float64; bfloat16 within a unit in its last place (2^-7) and float32 within 1e-5."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("size", [8, 100, 1536, 3072, 14336, 28672])
@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
def test_silu_and_mul(triton_device: str, size: int, rows: int, dtype: torch.dtype) -> None:
    from radixrt.kernels.triton import activation

    generator = torch.Generator().manual_seed(size)
    gate_up = (torch.randn(rows, 2 * size, generator=generator) * 4).to(triton_device, dtype)
    gate, up = gate_up.double().chunk(2, dim=1)
    out = activation.silu_and_mul(gate_up)
    assert out.dtype == dtype
    tolerance = 2**-7 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(out.double(), gate * gate.sigmoid() * up, rtol=tolerance, atol=1e-6)


def test_many_rows_take_the_larger_block(triton_device: str) -> None:
    from radixrt.kernels.triton import activation

    rows = activation.LARGE_FROM // 2048
    gate_up = torch.randn(rows, 2 * 2048, generator=torch.Generator().manual_seed(0)).to(triton_device)
    gate, up = gate_up.chunk(2, dim=1)
    torch.testing.assert_close(activation.silu_and_mul(gate_up), gate * gate.sigmoid() * up, rtol=1e-5, atol=1e-6)


def test_large_gates_do_not_overflow(triton_device: str) -> None:
    from radixrt.kernels.triton import activation

    gate = torch.tensor([[-1e4, -100.0, 0.0, 100.0, 1e4, torch.nan]])
    out = activation.silu_and_mul(torch.cat((gate, torch.ones_like(gate)), 1).to(triton_device)).cpu()
    assert out[0, :5].tolist() == [0.0, 0.0, 0.0, 100.0, 1e4]
    assert out[0, 5].isnan()
