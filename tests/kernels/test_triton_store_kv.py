"""New keys and values into scattered slots, in every dtype that a pool has."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.gpu

VALUES = [-900.0, -448.0, -16.0, -1.5, 0.0, 0.5, 1.0, 7.0, 448.0, 600.0]
"""All of them are bfloat16 numbers, and those that float8 can hold are float8 ones: nothing is rounded."""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize(("heads", "dim"), [(8, 128), (3, 64)])
def test_each_token_lies_in_its_slot_and_nothing_else_changes(
    triton_device: str, dtype: torch.dtype, heads: int, dim: int
) -> None:
    from radixrt.kernels.triton.store_kv import store_kv

    tokens, slots = 7, 12
    which = torch.randint(len(VALUES), (tokens, 3 * heads, dim), generator=torch.Generator().manual_seed(0))
    fused = torch.tensor(VALUES)[which].to(triton_device)
    k, v = fused[:, :heads], fused[:, 2 * heads :]
    pool = tuple(torch.zeros(slots, heads, dim, device=triton_device).to(dtype) for _ in range(2))
    where = torch.randperm(slots, generator=torch.Generator().manual_seed(1))[:tokens].to(triton_device)
    store_kv(k, v, pool, where)
    for stored, new in zip(pool, (k, v), strict=True):
        expected = torch.zeros(slots, heads, dim, device=triton_device)
        limit = 448.0 if dtype is torch.float8_e4m3fn else torch.inf
        expected[where] = new.clamp(-limit, limit)
        torch.testing.assert_close(stored.float(), expected.to(dtype).float())
