"""Keys and values of scattered slots, side by side, in every dtype that a pool has."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
@pytest.mark.parametrize(("heads", "dim"), [(8, 128), (3, 64)])
@pytest.mark.parametrize("count", [0, 1, 19])
def test_takes_each_slot_in_order(triton_device: str, count: int, heads: int, dim: int, dtype: torch.dtype) -> None:
    from radixrt.kernels.triton.gather_kv import gather_kv

    generator = torch.Generator().manual_seed(0)
    wanted = torch.float16 if dtype is torch.float8_e4m3fn else dtype
    keys, values = (torch.randn(12, heads, dim, generator=generator).to(dtype).to(triton_device) for _ in range(2))
    slots = torch.randint(12, (count,), generator=generator).to(torch.int32).to(triton_device)
    k, v = gather_kv((keys, values), slots, wanted)
    assert k.dtype is v.dtype is wanted
    assert k.equal(keys.to(wanted)[slots.long()])
    assert v.equal(values.to(wanted)[slots.long()])
