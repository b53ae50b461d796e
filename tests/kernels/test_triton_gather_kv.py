"""Keys and values of scattered slots, side by side, in every dtype that a pool has."""

from __future__ import annotations

import itertools
import types
from typing import Any

import numpy as np
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


class Wrapper:
    """Fake of FlashInfer's wrapper for keys side by side: `plan` notes the rows, `run` computes them in float32."""

    def __init__(self, workspace: torch.Tensor, layout: str, backend: str = "auto") -> None:
        assert layout == "NHD"

    def plan(self, query_ptr: torch.Tensor, key_ptr: torch.Tensor, *shape: int, causal: bool, **options: Any) -> None:
        assert causal
        self.rows, self.options = list(zip(query_ptr.tolist(), key_ptr.tolist(), strict=True)), options

    def run(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, out: torch.Tensor, lse: torch.Tensor | None,
        return_lse: bool,
    ) -> None:  # fmt: skip
        assert not return_lse
        assert k.dtype == q.dtype
        for (first, first_key), (end, end_key) in itertools.pairwise(self.rows):
            queries, keys = end - first, end_key - first_key
            offset = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
            seen = offset <= 0
            if self.options["window_left"] >= 0:
                seen &= offset >= -self.options["window_left"]
            scores = torch.einsum("qhd,khd->hqk", q[first:end].float(), k[first_key:end_key].float())
            weights = (scores * self.options["sm_scale"]).masked_fill(~seen, -torch.inf).softmax(-1)
            out[first:end] = torch.einsum("hqk,khd->qhd", weights, v[first_key:end_key].float()).to(out.dtype)


class Event:
    """Fake of torch.cuda.Event."""

    def synchronize(self) -> None: ...

    def record(self) -> None: ...


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("starts", [None, [3, 0, 8]])
def test_prompts_read_what_a_float8_pool_holds(
    window: int | None, starts: list[int] | None, monkeypatch: pytest.MonkeyPatch, triton_device: str
) -> None:
    from radixrt.attention import flashinfer_plans as plans

    if triton_device != "cpu":
        pytest.skip("on a GPU FlashInfer itself computes, in tests/gpu/test_flashinfer.py")
    monkeypatch.setattr(plans, "MAX_GATHERED_BYTES", 2 * 2 * 16 * 2 * 20)  # so that rows are divided
    monkeypatch.setattr(plans, "pinned", lambda values: torch.from_numpy(np.array(values, np.int32)))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    made = types.SimpleNamespace(
        BatchPrefillWithPagedKVCacheWrapper=Wrapper, BatchPrefillWithRaggedKVCacheWrapper=Wrapper
    )
    shape = plans.Shape(2, 2, 16, 0.25)
    planner = plans.Planner(
        made, shape, window, dtype=torch.float16, kv_dtype=torch.float8_e4m3fn, page_size=1,
        workspace=torch.zeros(1, dtype=torch.uint8),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    lens, news = np.array([12, 17, 9], np.int32), np.array([7, 17, 1], np.int32)
    table = torch.randperm(60, generator=generator).to(torch.int32).view(3, 20)
    pool = [torch.randn(60, 1, 2, 16, generator=generator).to(torch.float8_e4m3fn) for _ in range(2)]
    q = torch.randn(int(news.sum()), 2, 16, generator=generator).half()
    first = np.zeros(3, np.int32) if starts is None else np.array(starts, np.int32)
    rows = plans.Rows(table, torch.arange(3), lens, None if starts is None else first)
    out = torch.zeros_like(q)
    planner.prefill(rows, news, short=False).run(q, (pool[0], pool[1]), out=out)
    at = 0
    for row, (length, new, start) in enumerate(zip(lens.tolist(), news.tolist(), first.tolist(), strict=True)):
        slots = table[row, :length].long()
        keys, values = (x[slots, 0].float() for x in pool)
        for position in range(length - new, length):
            low = max(start, 0 if window is None else position - window + 1)
            scores = torch.einsum("hd,khd->hk", q[at].float(), keys[low : position + 1]) * 0.25
            expected = torch.einsum("hk,khd->hd", scores.softmax(-1), values[low : position + 1])
            assert torch.allclose(out[at].float(), expected, atol=2e-3)
            at += 1
