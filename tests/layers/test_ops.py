"""The compiled operations equal the torch reference, and the reference equals its definition in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from radixrt.attention.base import AttentionLayer
from radixrt.kernels.build import load_kernels
from radixrt.layers.formats.checkpoint import whole_weight
from radixrt.layers.formats.panels import Panels, PanelWeight, plain_format
from radixrt.layers.formats.plain import Float32Copies
from radixrt.layers.linear import Linear
from radixrt.layers.ops import CpuOps, TorchOps

DTYPES = [torch.float32, torch.bfloat16]
ROWS = [1, 3, 300]
"""300 rows are enough for the kernels to use several threads."""

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture(scope="module")
def compiled(cache_folder: Path) -> CpuOps:
    return CpuOps(load_kernels(cache_folder / "kernels"))


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"atol": 2e-6, "rtol": 2e-6} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 1e-2}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [576, 64, 24])
def test_add_rms_norm(compiled: CpuOps, rows: int, dtype: torch.dtype, dim: int) -> None:
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
def test_join_columns(compiled: CpuOps, rows: int, dtype: torch.dtype) -> None:
    parts = [torch.randn(rows, n).to(dtype) for n in (64, 5, 32)]
    expected = torch.cat(parts, dim=1)
    for ops in (TorchOps(), compiled):
        torch.testing.assert_close(ops.join_columns(parts), expected, atol=0, rtol=0)
        torch.testing.assert_close(
            ops.join_columns([parts[0][:, :32], parts[1]]), expected[:, [*range(32), *range(64, 69)]]
        )


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1536, 112, 24])
def test_silu_and_mul(compiled: CpuOps, rows: int, dtype: torch.dtype, size: int) -> None:
    x = (torch.randn(rows, 2 * size) * 8).to(dtype)
    x[0, 0], x[0, 1] = -300.0, 300.0
    gate, up = x.double().chunk(2, -1)
    exact = gate * torch.sigmoid(gate) * up
    for ops in (TorchOps(), compiled):
        torch.testing.assert_close(ops.silu_and_mul(x).double(), exact, **tolerance(dtype))


POSITIONS = torch.arange(512)
IDENTITY = {dim: torch.stack((torch.ones(512, dim), torch.zeros(512, dim)), dim=1) for dim in (64, 256, 24)}
"""Tables that rotate by no angle."""


def heads_of(dim: int) -> AttentionLayer:
    """Five heads of q, and two of k and v each."""
    return AttentionLayer(0, 5, 2, dim, dim**-0.5)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [64, 256, 24])
def test_norm_heads(compiled: CpuOps, rows: int, dtype: torch.dtype, dim: int) -> None:
    fused = torch.randn(rows, 9, dim).to(dtype)
    weights = torch.rand(2, dim) + 0.5
    x = fused[:, :7].double()
    weight = torch.cat((weights[:1].expand(5, dim), weights[1:].expand(2, dim))).double()
    exact = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    for ops in (TorchOps(), compiled):
        out = fused.clone()
        q, k, _ = ops.prepare_heads(
            out, heads_of(dim), POSITIONS[:rows], IDENTITY[dim], *weights, 1e-5, None, POSITIONS
        )
        assert k is not None
        normed = torch.cat((q, k), dim=1)
        torch.testing.assert_close(normed.double(), exact, **tolerance(dtype))
        assert torch.equal(out[:, 7:], fused[:, 7:])


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "rotary"), [(64, 64), (128, 128), (16, 16), (256, 64), (128, 96), (32, 8)])
def test_rotate(compiled: CpuOps, rows: int, dtype: torch.dtype, dim: int, rotary: int) -> None:
    fused = torch.randn(rows, 9, dim).to(dtype)
    angles = torch.randn(512, rotary // 2)
    cos, sin = angles.cos(), angles.sin()
    table = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1)
    positions = torch.randint(0, 512, (rows,))
    results = []
    for ops in (TorchOps(), compiled):
        q, k, v = ops.prepare_heads(fused.clone(), heads_of(dim), positions, table, None, None, 0.0, None, positions)
        assert k is not None
        assert v is not None
        assert torch.equal(v, fused[:, 7:]), "the value heads are left alone"
        results.append(torch.cat((q, k), dim=1))
    torch.testing.assert_close(results[1], results[0], **tolerance(dtype))


def gemm(compiled: CpuOps, *shape: int, gated: bool) -> tuple[torch.Tensor, PanelWeight]:
    """A random weight, and its panels; skips where the processor has no bfloat16 instructions."""
    weight = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    panels = Panels(compiled).pack(weight, gated=gated)
    if panels is None:
        pytest.skip("this processor has no bfloat16 instructions")
    return weight, PanelWeight(panels, gated)


GEMM_ROWS = [1, 2, 11, 12, 13, 31, 37, 256, 300, 513]


@pytest.mark.parametrize("rows", GEMM_ROWS)
@pytest.mark.parametrize("shape", [(32, 32), (96, 160), (576, 1536)])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_panels(compiled: CpuOps, rows: int, shape: tuple[int, int], bias: bool) -> None:
    weight, panels = gemm(compiled, *shape, gated=False)
    x, offset = torch.randn(rows, shape[1]), torch.randn(shape[0]).bfloat16() if bias else None
    exact = x.bfloat16().double() @ weight.double().T
    found = Panels(compiled).linear(panels, x, offset)
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found.double(), exact if offset is None else exact + offset.double(), atol=1e-3, rtol=1e-4
    )


@pytest.mark.parametrize("rows", GEMM_ROWS)
@pytest.mark.parametrize("shape", [(32, 32), (192, 64), (3072, 576)])
def test_gated_panels(compiled: CpuOps, rows: int, shape: tuple[int, int]) -> None:
    weight, panels = gemm(compiled, *shape, gated=True)
    x = torch.randn(rows, shape[1])
    gate, up = (x.bfloat16().double() @ weight.double().T).chunk(2, -1)
    found = Panels(compiled).silu_and_mul(panels, x, None)
    torch.testing.assert_close(found.double(), gate * torch.sigmoid(gate) * up, atol=5e-3, rtol=1e-4)


@pytest.mark.parametrize("gated", [False, True])
def test_a_row_has_the_same_bits_beside_few_others_and_with_any_panels(compiled: CpuOps, gated: bool) -> None:
    """Products of one, two or three rows pass over up to four panels together, over the last one to three alone."""
    panels, x = Panels(compiled), torch.randn(3, 96)
    weight = torch.randn(13 * 32, 96).bfloat16()
    if panels.pack(weight, gated=False) is None:
        pytest.skip("this processor has no bfloat16 instructions")

    def multiply(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        packed = panels.prepare({"weight": weight}, gated=gated)
        return panels.silu_and_mul(packed, x, None) if gated else panels.linear(packed, x, None)

    whole = multiply(weight, x)
    for row in range(3):
        assert torch.equal(multiply(weight, x[row : row + 1])[0], whole[row])
    assert torch.equal(multiply(weight, x[:2]), whole[:2])
    halves, width = weight.view(2, -1, 96), 16 if gated else 32
    for first in range(0, whole.shape[1], width):  # the panel alone
        part = halves[:, first : first + 16].reshape(-1, 96) if gated else weight[first : first + 32]
        assert torch.equal(multiply(part, x), whole[:, first : first + width])


def test_panels_of_a_row_do_not_depend_on_its_neighbours_values(compiled: CpuOps) -> None:
    _, panels = gemm(compiled, 64, 64, gated=False)
    x = torch.randn(40, 64)
    expected = Panels(compiled).linear(panels, x, None)
    x[1::2] = float("nan")
    assert torch.equal(Panels(compiled).linear(panels, x, None)[::2], expected[::2])


@pytest.mark.parametrize("shape", [(48, 64), (64, 48), (31, 32)])
def test_other_shapes_have_no_panels(compiled: CpuOps, shape: tuple[int, int]) -> None:
    assert Panels(compiled).pack(torch.zeros(shape, dtype=torch.bfloat16), gated=False) is None


def test_float32_weights_have_no_panels(compiled: CpuOps) -> None:
    assert Panels(compiled).pack(torch.zeros(64, 64), gated=False) is None


@pytest.mark.parametrize("rows", [1, 31, 32])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("float32_min_rows", [None, 32])
def test_gated_linear_layer(compiled: CpuOps, rows: int, bias: bool, float32_min_rows: int | None) -> None:
    """The layer gives the same with panels, in float32 and by torch."""
    weight, offset = torch.randn(128, 64).bfloat16(), torch.randn(128).bfloat16()
    x = torch.randn(rows, 64).bfloat16().float()
    found = []
    for ops in (TorchOps(), compiled):
        plain = plain_format(ops)
        kind = plain if float32_min_rows is None else Float32Copies(ops, plain, float32_min_rows)
        layer = Linear([whole_weight("", 128, 64)], bias, torch.bfloat16, kind, gated=True)
        layer.weight = nn.Parameter(weight, requires_grad=False)
        layer.bias = nn.Parameter(offset, requires_grad=False) if bias else None
        layer.process_weights_after_loading()
        found.append(layer.silu_and_mul(x))
    exact = x.double() @ weight.double().T
    gate, up = (exact + offset.double() if bias else exact).chunk(2, -1)
    for y in found:
        assert y.dtype == torch.float32
        torch.testing.assert_close(y.double(), gate * torch.sigmoid(gate) * up, atol=0.3, rtol=0.02)
