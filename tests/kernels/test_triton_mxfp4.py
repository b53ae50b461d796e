"""Experts with weights of MXFP4 numbers: exactly what the kernels compute with the dequantized weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radixrt.kernels.packed_weights import PackedWeights
from radixrt.kernels.triton.expert_gemm_config import TILES, find_codes_config
from radixrt.layers.formats.mxfp4 import GROUP, Mxfp4, dequantize
from radixrt.layers.ops import TorchOps
from radixrt.layers.swiglu import BiasedSwiGLU, ClampedSwiGLU
from tests.kernels.test_triton_experts import check, dtypes, exactly, make

pytestmark = pytest.mark.gpu

SMALL = [(1, 4, 2, 64, 32), (5, 8, 8, 96, 64), (40, 5, 3, 160, 96)]
"""Tokens, experts, top k, hidden size and columns, for the interpreter."""
SIZES = [(32, 4, 2880, 2880), (128, 4, 2880, 736), (8, 2, 96, 32)]
TOKENS = (1, 4, 16, 33, 129, 500)


def random_weights(count: int, rows: int, columns: int, device: str) -> tuple[PackedWeights, torch.Tensor]:
    """MXFP4 numbers of at most 0.75, which float16 represents exactly too, and the same ones in bfloat16."""
    generator = torch.Generator(device).manual_seed(rows + columns)

    def random(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator, device=device, dtype=torch.uint8)

    codes, scales = random(0, 256, count, rows, columns // 2), random(120, 125, count, rows, columns // GROUP)
    blocks = codes.view(count * rows, columns // GROUP, GROUP // 2)
    return packed(codes, scales), dequantize(blocks, scales.flatten(0, 1)).view(count, rows, columns)


def packed(codes: torch.Tensor, scales: torch.Tensor) -> PackedWeights:
    found: PackedWeights = Mxfp4(TorchOps()).prepare({"weight": codes, "scales": scales})
    return found


def made(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """x, experts and weights of `make`; MXFP4 weights, and the same ones in dtype; biases and a clamp."""
    _, count, _, hidden, columns = shape
    x, experts, weights, _, _ = make(device, dtype, *shape)
    gate_up, plain_gate_up = random_weights(count, 2 * columns, hidden, device)
    down, plain_down = random_weights(count, hidden, columns, device)
    offsets = [torch.linspace(-1.5, 1.5, count * n, device=device).view(count, n) for n in (2 * columns, hidden)]
    rule = BiasedSwiGLU(ClampedSwiGLU(1.702, 7.0), *offsets)
    return (x / 4, experts, weights), (gate_up, down), (plain_gate_up.to(dtype), plain_down.to(dtype)), rule


@pytest.mark.parametrize("case", range(len(SIZES)))
def test_equals_float64(triton_device: str, case: int) -> None:
    from radixrt.layers.cuda_ops import CudaOps

    for shape in [(tokens, *SIZES[case]) for tokens in TOKENS] if triton_device == "cuda" else [SMALL[case]]:
        for dtype in dtypes(triton_device):
            routed, packed, plain, rule = made(triton_device, dtype, shape)
            found = CudaOps().run_experts(*routed, *packed, rule)
            check(found, (*routed, *plain), rule)
        routed, packed, plain, rule = made(triton_device, torch.float32, shape)
        exact, size = exactly(*routed, *plain, rule)
        error = (CudaOps().run_experts(*routed, *packed, rule).double() - exact).abs() / (exact.abs() + size)
        assert error.max() < 1e-5  # the sums are float32


@pytest.mark.parametrize("tile", TILES)
def test_each_tiling_equals_that_of_the_dequantized_weights(triton_device: str, tile: int) -> None:
    """Bit for bit: the numbers are dequantized exactly, and the sums are those of the other kernel."""
    from radixrt.kernels.triton import expert_codes_gemm, expert_gemm
    from radixrt.kernels.triton.expert_tiles import list_tiles

    (x, experts, _), packed, plain, _ = made(triton_device, torch.float16, (40, 5, 3, 160, 96))
    tiles = list_tiles(experts, 5, tile)
    for gated in (True, False):
        given = x if gated else x.repeat_interleave(3, dim=0)[:, :96].contiguous()
        place = 0 if gated else 1
        options: dict[str, Any] = {"top_k": 3, "gated": gated}
        cut = find_codes_config(tile, packed[place], gated=gated)._replace(bulk=False)
        found = expert_codes_gemm.multiply(given, packed[place], tiles, tile, cut, **options)
        single = cut._replace(stages=1)  # plain weights take four times the shared memory, and stages change no sum
        assert torch.equal(found, expert_gemm.multiply(given, plain[place], tiles, tile, single, **options))


def test_every_number_and_scale(triton_device: str) -> None:
    """The identity as tokens: each of the 256 bytes, under every scale whose numbers are finite."""
    from radixrt.kernels.triton.expert_codes_gemm import multiply
    from radixrt.kernels.triton.expert_gemm_config import FLOAT32_CODES, FLOAT32_TILE
    from radixrt.kernels.triton.expert_tiles import list_tiles

    codes = torch.arange(256, device=triton_device).to(torch.uint8).view(16, 16).repeat(16, 1)[None]
    scales = torch.arange(256, device=triton_device).clamp(1, 252).to(torch.uint8)
    weight = packed(codes, scales.view(1, 256, 1))
    x = torch.eye(GROUP, device=triton_device)
    tiles = list_tiles(torch.zeros(GROUP, 1, dtype=torch.int32, device=triton_device), 1, FLOAT32_TILE)
    found = multiply(x, weight, tiles, FLOAT32_TILE, FLOAT32_CODES, top_k=1, gated=False)
    expected = dequantize(codes.view(256, 1, 16), scales[:, None]).float()
    assert torch.equal(found.T, expected)
