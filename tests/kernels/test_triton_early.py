"""Kernels launched before the one before them has ended see all that it wrote."""

from __future__ import annotations

import pytest
import torch

from radixrt.attention.base import AttentionLayer
from radixrt.layers.cuda_ops import CudaOps

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

LAYERS, TOKENS, HEADS, DIM = 24, 64, 8, 128
HIDDEN = HEADS * DIM


def run_layers(ops: CudaOps, residual: torch.Tensor, weight: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """A chain in which each kernel, and each matrix product between them, reads what the one before wrote."""
    layer = AttentionLayer(0, HEADS, 2, DIM, DIM**-0.5)
    positions = torch.arange(TOKENS, device="cuda")
    x: torch.Tensor | None = None
    for _ in range(LAYERS):
        x = ops.add_rms_norm(residual, x, weight, 1e-6, torch.bfloat16)
        qkv = torch.cat((x, x[:, : 4 * DIM]), 1).view(TOKENS, HEADS + 4, DIM)
        q, _, _ = ops.prepare_heads(qkv, layer, positions, table, None, None, 1e-6, None, positions)
        x = ops.silu_and_mul(torch.cat((q.flatten(1), x), 1)) @ torch.eye(HIDDEN, device="cuda", dtype=torch.bfloat16)
    return ops.add_rms_norm(residual, x, weight, 1e-6, torch.bfloat16)


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="needs sm_90 or later"
)
def test_same_bits_eagerly_and_in_a_graph() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    start = torch.randn(TOKENS, HIDDEN, generator=generator, device="cuda").bfloat16()
    weight = torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
    table = torch.randn(TOKENS, 2, DIM, generator=generator, device="cuda").bfloat16()
    expected = run_layers(CudaOps(), start.clone(), weight, table)
    early = CudaOps(early=True)
    for _ in range(20):
        assert torch.equal(run_layers(early, start.clone(), weight, table), expected)
    residual, graph = start.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run_layers(early, residual, weight, table)
    for _ in range(20):
        residual.copy_(start)
        graph.replay()
        assert torch.equal(found, expected)
