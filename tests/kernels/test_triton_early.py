"""Kernels launched before the one before them has ended see all that it wrote."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from radixrt.attention.base import AttentionLayer
from radixrt.layers.cuda_ops import CudaOps

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

LAYERS, TOKENS, HEADS, DIM = 24, 64, 8, 128
HIDDEN = HEADS * DIM


def run_layers(ops: CudaOps, residual: torch.Tensor, weight: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """A chain in which each kernel, and each GEMM between them, reads the result of the one before."""
    layer = AttentionLayer(0, HEADS, 2, DIM, DIM**-0.5)
    positions = torch.arange(TOKENS, device="cuda")
    x: torch.Tensor | None = None
    for _ in range(LAYERS):
        x = ops.add_rms_norm(residual, x, weight, 1e-6, torch.bfloat16)
        qkv = torch.cat((x, x[:, : 4 * DIM]), 1).view(TOKENS, HEADS + 4, DIM)
        q, _, _ = ops.prepare_heads(qkv, layer, positions, table, None, None, 1e-6, None, positions)
        x = ops.silu_and_mul(torch.cat((q.flatten(1), x), 1)) @ torch.eye(HIDDEN, device="cuda", dtype=torch.bfloat16)
    return ops.add_rms_norm(residual, x, weight, 1e-6, torch.bfloat16)


def run_products(
    ops: CudaOps, residual: torch.Tensor, weight: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """The same for a step of few rows, whose GEMM kernels prefetch their weight before they wait."""
    x: torch.Tensor | None = None
    for _ in range(LAYERS):
        x = ops.add_rms_norm(residual, x, weight, 1e-6, torch.bfloat16)
        x = ops.linear(ops.linear_silu_and_mul(x, gate_up, None), down, None)
    return ops.add_rms_norm(residual, x, weight, 1e-6, torch.bfloat16)


needs_sm90 = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="needs sm_90 or later"
)


@needs_sm90
def test_same_bits_eagerly_and_in_a_graph() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    start = torch.randn(TOKENS, HIDDEN, generator=generator, device="cuda").bfloat16()
    weight = torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
    table = torch.randn(TOKENS, 2, DIM, generator=generator, device="cuda").bfloat16()
    expected = run_layers(CudaOps(), start.clone(), weight, table)
    same_in_a_graph(lambda ops, residual: run_layers(ops, residual, weight, table), start, expected)


@needs_sm90
@pytest.mark.parametrize("tokens", [1, 64])
def test_products_wait_for_their_rows(tokens: int) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    start = torch.randn(tokens, HIDDEN, generator=generator, device="cuda").bfloat16()
    weight = torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
    # The sizes of Qwen3-0.6B, whose linear layers use `skinny_gemm` for 64 tokens.
    gate_up = torch.randn(6 * HIDDEN, HIDDEN, generator=generator, device="cuda").bfloat16() * HIDDEN**-0.5
    down = torch.randn(HIDDEN, 3 * HIDDEN, generator=generator, device="cuda").bfloat16() * (3 * HIDDEN) ** -0.5
    expected = run_products(CudaOps(), start.clone(), weight, gate_up, down)
    same_in_a_graph(lambda ops, residual: run_products(ops, residual, weight, gate_up, down), start, expected)


def same_in_a_graph(
    run: Callable[[CudaOps, torch.Tensor], torch.Tensor], start: torch.Tensor, expected: torch.Tensor
) -> None:
    early = CudaOps(early=True)
    for _ in range(20):
        assert torch.equal(run(early, start.clone()), expected)
    residual, graph = start.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(early, residual)
    for _ in range(20):
        residual.copy_(start)
        graph.replay()
        assert torch.equal(found, expected)
