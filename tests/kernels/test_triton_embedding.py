"""A rank's part of the embedding, against the reference; copied, so equal."""

from __future__ import annotations

import pytest
import torch

from radixrt.layers.ops import TorchOps

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("size", [8, 100, 4096, 5120])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
def test_rows_of_this_rank_and_zeros(triton_device: str, size: int, dtype: torch.dtype) -> None:
    from radixrt.kernels.triton import embedding

    rows = torch.randn(64, size, generator=torch.Generator().manual_seed(size)).to(triton_device, dtype)
    ids = torch.tensor([0, 63, 64, 65, 127, 128, 64, 1000], device=triton_device)
    for first in (0, 64, 128):
        found = embedding.embed_shard(ids, rows, first)
        assert torch.equal(found, TorchOps().embed_shard(ids, rows, first))
    assert embedding.embed_shard(ids[:0], rows, 0).shape == (0, size)
