"""Activations in float8: rows alone, fused with norm and activation, and products with them."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from radixrt.distributed.partial_sum import PartialSum
from radixrt.kernels.float8_rows import Float8Rows
from radixrt.kernels.triton.skinny_gemm_config import Config
from radixrt.layers.cuda_ops import CudaOps
from radixrt.layers.formats.codes import Codes, dequantize
from radixrt.layers.formats.cuda_codes import fragment_codes
from tests.kernels.test_triton_codes import activations, make

pytestmark = pytest.mark.gpu


def values_of(rows: Any) -> torch.Tensor:
    """Return the numbers float32 [T, columns] of `Float8Rows`, in the order of the columns."""
    from radixrt.kernels.triton import weight_formats

    columns = rows.shape[1]
    codes = weight_formats.from_fragment_order(rows.codes.view(torch.int32), 8).view(torch.float8_e4m3fn)
    return codes.float() * scales_of(rows).repeat_interleave(rows.group or columns, dim=1)


def scales_of(rows: Any) -> torch.Tensor:
    """Return the scales float32 [T, groups] of `Float8Rows`."""
    scales: torch.Tensor = rows.scales.t()[: rows.shape[0]]
    return scales


@pytest.mark.parametrize(("columns", "group"), [(64, 0), (192, 0), (4096, 0), (384, 128)])
def test_rows_of_activations(triton_device: str, columns: int, group: int) -> None:
    from radixrt.kernels.triton import quantize

    x = activations(triton_device, 5, columns)
    x[1] = 0.0
    x[2] *= 1e-3
    found = quantize.quantize_rows(x, group=group)
    scales, values = scales_of(found), values_of(found)
    largest = x.float().view(5, -1, group or columns).abs().amax(dim=2)
    torch.testing.assert_close(scales[largest > 0], (largest / 448)[largest > 0])
    assert not values[1].any()
    if triton_device == "cuda":
        # Half a unit of the last of three bits, or of the smallest exponent.
        spread = scales.repeat_interleave(group or columns, dim=1)
        assert ((values - x.float()).abs() <= torch.maximum(x.float().abs() / 16, spread / 1024) * 1.001).all()
    # The interpreter cuts off instead of rounding.
    assert (values - x.float()).norm() <= 0.08 * x.float().norm()


def assert_same(found: Any, expected: Any) -> None:
    assert found.group == expected.group
    assert torch.equal(found.codes.view(torch.uint8), expected.codes.view(torch.uint8))
    assert torch.equal(scales_of(found), scales_of(expected))


@pytest.mark.parametrize(("columns", "group"), [(576, 0), (4096, 0), (640, 128), (4096, 128)])
@pytest.mark.parametrize("adds", [True, False])
def test_a_norm_in_float8_is_the_norm_quantized(triton_device: str, columns: int, group: int, adds: bool) -> None:
    from radixrt.kernels.triton import norm, quantize

    residual, x = activations(triton_device, 6, columns), activations(triton_device, 7, columns)[:6]
    weight = activations(triton_device, 1, columns)[0]
    residual[2] = 0.0
    x[2] = 0.0
    kept = residual.clone()
    expected = quantize.quantize_rows(norm.add_rms_norm(kept, x if adds else None, weight, 1e-6, x.dtype), group=group)
    found = norm.add_rms_norm_float8(residual, x if adds else None, weight, 1e-6, group)
    assert torch.equal(residual, kept)
    if triton_device == "cpu" or not group:
        assert_same(found, expected)
    else:  # the compiler adds up the squares in another order
        assert (values_of(found) - values_of(expected)).norm() <= 2e-3 * values_of(expected).norm()


@pytest.mark.parametrize(("columns", "group"), [(192, 0), (1536, 0), (14336, 0), (384, 128), (4352, 128)])
def test_an_activation_in_float8_is_the_activation_quantized(triton_device: str, columns: int, group: int) -> None:
    from radixrt.kernels.triton import activation, quantize

    gate_up = activations(triton_device, 6, 2 * columns)
    gate_up[1] = 0.0
    expected = quantize.quantize_rows(activation.silu_and_mul(gate_up), group=group)
    assert_same(activation.silu_and_mul_float8(gate_up, group), expected)


class Doubling:
    """Two ranks with equal addends, without a fused kernel."""

    communicator = None

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


def test_addends_of_ranks_are_summed_before_the_norm(triton_device: str) -> None:
    residual, x = activations(triton_device, 6, 256), activations(triton_device, 5, 256).repeat(2, 1)[:6]
    weight, ops = activations(triton_device, 1, 256)[0], CudaOps()
    expected = ops.add_rms_norm(residual.clone(), x + x, weight, 1e-6, x.dtype)
    others = (weight, 1e-6, x.dtype, cast(Any, Doubling()))
    found = ops.all_reduce_add_rms_norm_float8(residual.clone(), PartialSum(x), *others, 0)
    assert isinstance(found, Float8Rows)
    assert (values_of(found) - expected.float()).norm() <= 0.08 * expected.float().norm()
    # A norm in another dtype than the residual's has no such kernel.
    wide = ops.all_reduce_add_rms_norm_float8(residual.float(), PartialSum(x), *others, 0)
    assert isinstance(wide, torch.Tensor)
    torch.testing.assert_close(wide.float(), expected.float(), rtol=2**-6, atol=1e-2)


def test_no_rows(triton_device: str) -> None:
    from radixrt.kernels.triton import activation, norm, quantize

    nothing = activations(triton_device, 0, 256)
    weight = activations(triton_device, 1, 256)[0]
    for group in (0, 128):
        assert quantize.quantize_rows(nothing, group=group).shape == (0, 256)
        assert norm.add_rms_norm_float8(nothing, None, weight, 1e-6, group).shape == (0, 256)
        assert activation.silu_and_mul_float8(nothing, group).shape == (0, 128)


BULK = Config(64, 128, 1, 3, 4, bulk=True)


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("scheme", [{}, {"group": 128, "block": 128}], ids=["rows", "blocks"])
def test_products_with_activations_in_float8(triton_device: str, scheme: dict[str, Any], gated: bool) -> None:
    """The product is that of the rounded activations with the weight, but for the tensor cores' sums."""
    from radixrt.kernels.triton import quantize, skinny_gemm

    weight = make("e4m3", 256 * (1 + gated), 512, device=triton_device, **scheme)
    words = fragment_codes(weight)
    assert words is not None
    wide = dequantize(Codes(weight.codes, weight.scales.double(), None, None, weight.scheme), torch.float64)
    bias = activations(triton_device, 1, weight.shape[0])[0].bfloat16()
    workspace = skinny_gemm.Workspace(triton_device)
    for tokens, cut in ((3, BULK), (20, BULK._replace(splits=2)), (70, BULK._replace(rows=128, warps=8, tokens=32))):
        x = quantize.quantize_rows(activations(triton_device, tokens, 512), group=words.group)
        found = skinny_gemm.multiply(x, words, bias, workspace, cut, gated=gated)
        exact = values_of(x).double() @ wide.T + bias.double()
        if gated:
            gate, up = exact.chunk(2, dim=1)
            exact = gate * gate.sigmoid() * up
        assert found.dtype == torch.bfloat16
        assert (found.double() - exact).norm() <= 0.01 * exact.norm()
