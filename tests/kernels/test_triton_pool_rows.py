"""Rows of scattered slots: the bytes of all layers, of any dtype and size, and back into other slots."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.gpu


def random_pool(shapes: list[tuple[int, int]], dtype: torch.dtype, slots: int, device: str) -> list[torch.Tensor]:
    """Tensors [slots, heads, dim] of random bytes, NaNs among them."""
    generator = torch.Generator().manual_seed(0)
    sizes = [(slots, heads, dim * dtype.itemsize) for heads, dim in shapes]
    return [torch.randint(256, size, generator=generator, dtype=torch.uint8).view(dtype).to(device) for size in sizes]


def as_rows(tensors: list[torch.Tensor]) -> torch.Tensor:
    """uint8 [slots, row_bytes], on the CPU."""
    return torch.cat([tensor.cpu().view(torch.uint8).flatten(1) for tensor in tensors], dim=1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize(
    "shapes",
    [[(8, 128)] * 6, [(3, 64)] * 2, [(2, 64), (2, 64), (40, 128), (40, 128), (1, 16)], [(1, 3), (1, 3), (3, 5)]],
    ids=["equal", "one layer", "larger than a block", "odd sizes"],
)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_moves_every_byte(
    triton_device: str, shapes: list[tuple[int, int]], dtype: torch.dtype, index: torch.dtype
) -> None:
    from radixrt.kernels.triton.pool_rows import PoolTensors, gather_rows, scatter_rows

    tensors = random_pool(shapes, dtype, 23, triton_device)
    pool, before = PoolTensors(tensors), as_rows(tensors)
    assert pool.row_bytes == before.shape[1]
    source = torch.tensor([22, 3, 4, 5, 0, 11, 3], dtype=index)
    piece = torch.full((9, pool.row_bytes), 7, dtype=torch.uint8, device=triton_device)
    gather_rows(pool, source.to(triton_device), piece[:7])
    assert piece[:7].cpu().equal(before[source.long()])
    assert piece[7:].eq(7).all()

    target = torch.tensor([1, 22, 9, 8, 10, 0, 2], dtype=index)
    scatter_rows(pool, target.to(triton_device), piece[:7])
    expected = before.clone()
    expected[target.long()] = before[source.long()]
    assert as_rows(tensors).equal(expected)


def test_no_slots(triton_device: str) -> None:
    from radixrt.kernels.triton.pool_rows import PoolTensors, gather_rows

    pool = PoolTensors(random_pool([(1, 64)], torch.bfloat16, 4, triton_device))
    nothing = torch.empty(0, dtype=torch.int32, device=triton_device)
    gather_rows(pool, nothing, torch.empty(0, pool.row_bytes, dtype=torch.uint8, device=triton_device))
