"""The compiled CPU backend equals the torch reference: decode, chunks, both at once, windows, head shapes, sharing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from radixrt.attention import make_backend
from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.attention.cpu import CpuBackend
from radixrt.attention.cpu_plan import SharedPrefix, find_shared_prefixes, plan_step
from radixrt.attention.torch_native import TorchNativeBackend
from radixrt.errors import ConfigError
from radixrt.executor.forward_batch import ForwardBatch, ForwardMode
from radixrt.executor.kv_cache import KVCache
from radixrt.kernels import build

NUM_SLOTS = 8192

BATCHES = {
    "one": ([1], [1]),
    "decode": ([300, 1, 64, 65, 128, 17, 200, 5, 31], [1] * 9),
    "prefill": ([100], [100]),
    "chunk": ([130, 77], [40, 1]),
    "mixed": ([300, 17, 1, 64, 65], [1, 17, 1, 30, 65]),
    "long-chunk": ([400], [300]),
}
SHAPES = {
    "smollm": (9, 3, 64),
    "qwen": (16, 8, 128),
    "one-kv-head": (8, 1, 32),
    "no-group": (4, 4, 16),
    "wide": (2, 1, 256),
}


SHARED = {
    "all": ([300, 250, 210, 201, 400], [1] * 5, [200] * 5),
    "to-the-end": ([200, 200, 201], [1, 1, 1], [199, 199, 199]),
    "two-groups-and-one-alone": ([300, 200, 290, 190, 77], [1] * 5, [180, -150, 180, -150, 0]),
    "unaligned": ([300, 310], [1, 1], [131, 131]),
    "too-little": ([300, 310], [1, 1], [100, 100]),
    "beside-a-chunk": ([300, 120, 260], [1, 50, 1], [192, 0, 192]),
    "many": ([150 + i for i in range(40)], [1] * 40, [140] * 40),
}
"""Lengths, new tokens, and how much of each row is the first (or, below zero, the second) common prefix."""


def make_batch(
    seq_lens: list[int], extend_lens: list[int], rng: np.random.Generator, common: list[int] | None = None
) -> ForwardBatch:
    seq, ext = np.array(seq_lens, np.int32), np.array(extend_lens, np.int32)
    slots = rng.permutation(NUM_SLOTS)[: seq.sum() + 400] + 1
    first_prefix, second_prefix = slots[-200:], slots[-400:-200]
    table = np.zeros((len(seq) + 1, 512), np.int32)
    new, start = [], 0
    for i, (n, e) in enumerate(zip(seq_lens, extend_lens, strict=True)):
        table[i + 1, :n] = slots[start : start + n]
        if common is not None:
            table[i + 1, : abs(common[i])] = (first_prefix if common[i] > 0 else second_prefix)[: abs(common[i])]
        new.append(table[i + 1, n - e : n])
        start += n
    decode = bool((ext == 1).all())
    zeros = torch.zeros(int(ext.sum()), dtype=torch.int64)
    return ForwardBatch(
        mode=ForwardMode.DECODE if decode else ForwardMode.EXTEND,
        input_ids=zeros,
        positions=zeros,
        req_pool_indices=torch.arange(1, len(seq) + 1),
        seq_lens=torch.from_numpy(seq).long(),
        out_cache_loc=torch.from_numpy(np.concatenate(new)).long(),
        extend_lens=torch.from_numpy(ext).long(),
        prefix_lens=torch.from_numpy(seq - ext).long(),
        logits_index=zeros,
        sample_rows=zeros,
        req_to_token=torch.from_numpy(table),
        seq_lens_cpu=seq,
        extend_lens_cpu=ext,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 1, 37])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [*BATCHES, *SHARED])
def test_equals_the_reference(
    batch: str, shape: str, window: int | None, dtype: torch.dtype, cache_folder: Path
) -> None:
    generator = torch.Generator().manual_seed(len(batch) + len(shape))
    heads, kv_heads, dim = SHAPES[shape]
    layer = AttentionLayer(0, heads, kv_heads, dim, dim**-0.5, window)
    seq_lens, extend_lens, common = SHARED.get(batch) or (*BATCHES[batch], None)
    made = make_batch(seq_lens, extend_lens, np.random.default_rng(7), common)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator).to(dtype)

    tokens = made.num_tokens
    # Views of a fused projection, as the decoder hands them over.
    fused = random(tokens, heads + 2 * kv_heads, dim)
    q, k, v = fused.split([heads, kv_heads, kv_heads], dim=1)
    pool = random(2, NUM_SLOTS + 1, kv_heads, dim)
    results = []
    for kind in ("reference", "compiled"):
        kv = KVCache([layer], NUM_SLOTS, 1, dtype, torch.device("cpu"))
        kv.k[0].copy_(pool[0])
        kv.v[0].copy_(pool[1])
        backend: AttentionBackend = (
            TorchNativeBackend(kv) if kind == "reference" else CpuBackend(kv, [layer], cache_folder / "kernels")
        )
        backend.prepare(made)
        results.append((backend.attend(layer, q, k, v, made), kv.k[0], kv.v[0]))
    (expected, k1, v1), (got, k2, v2) = results
    assert got.shape == (tokens, heads * dim)
    assert got.is_contiguous()
    assert torch.equal(k1, k2)
    assert torch.equal(v1, v2)
    if dtype == torch.float32:
        torch.testing.assert_close(got, expected, atol=3e-6, rtol=1e-5)
    else:
        error = (got.float() - expected.float()).norm() / expected.float().norm()
        assert error < 5e-3


def test_rows_that_share_slots_are_found() -> None:
    made = make_batch(*SHARED["two-groups-and-one-alone"][:2], np.random.default_rng(1), [180, -150, 180, -150, 0])
    rows = np.array([0, 1, 2, 3], np.int32)
    found = find_shared_prefixes(
        made.req_to_token.numpy(), made.req_pool_indices.numpy()[rows], made.seq_lens_cpu[rows], rows, 64
    )
    assert sorted((f.rows.tolist(), f.length) for f in found) == [([0, 2], 128), ([1, 3], 128)]


def test_every_row_and_head_is_planned_once() -> None:
    seq_lens, extend_lens = np.array([300, 120, 260, 500, 900], np.int32), np.array([1, 50, 1, 1, 300], np.int32)
    shared = [SharedPrefix(np.array([0, 2, 3], np.int32), 192)]
    for threads in (1, 2, 16):
        plan = plan_step(seq_lens, extend_lens, shared, 3, 3, max_queries=64, threads=threads)
        work = {(int(r), int(h)): 1 for g in plan.groups for r in plan.group_rows[g[0] : g[0] + g[1]] for h in [g[2]]}
        for row, head, heads, _, _, queries in plan.tasks.tolist():
            for h in range(head, head + heads):
                work[(row, h)] = work.get((row, h), 0) + queries
        assert work == {(r, h): int(extend_lens[r]) for r in range(5) for h in range(3)}


LIMITS: dict[str, Any] = {"dtype": torch.float32, "max_rows": 4, "context_length": 64}


def test_without_a_compiler_it_falls_back_and_says_what_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    layer = AttentionLayer(0, 2, 1, 32, 1.0)
    kv = KVCache([layer], 64, 1, torch.float32, torch.device("cpu"))
    backend = make_backend("auto", kv, [layer], **LIMITS, kernel_cache=tmp_path)
    assert isinstance(backend, TorchNativeBackend)
    assert "C++ compiler" in caplog.text
    with pytest.raises(ConfigError, match="no C\\+\\+ compiler"):
        make_backend("cpu", kv, [layer], **LIMITS, kernel_cache=tmp_path)


def test_shapes_that_it_does_not_take_go_to_the_reference(cache_folder: Path) -> None:
    layer = AttentionLayer(0, 2, 1, 20, 1.0)
    kv = KVCache([layer], 64, 1, torch.float32, torch.device("cpu"))
    assert isinstance(
        make_backend("auto", kv, [layer], **LIMITS, kernel_cache=cache_folder / "kernels"), TorchNativeBackend
    )
    with pytest.raises(ConfigError, match="head_dim 20"):
        make_backend("cpu", kv, [layer], **LIMITS, kernel_cache=cache_folder / "kernels")
