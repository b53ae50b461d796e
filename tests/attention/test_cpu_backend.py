"""The compiled CPU backend equals the torch reference: decode, chunks, both at once, windows, head shapes, sharing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from radixrt.attention import make_backend
from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.attention.cpu import CpuBackend, plan_step
from radixrt.attention.kv_cache import KVCache
from radixrt.attention.torch_native import TorchNativeBackend
from radixrt.errors import ConfigError
from radixrt.forward_batch.forward_batch import ForwardBatch, ForwardMode, SharedGroups
from radixrt.kernels import build
from radixrt.kernels.build import load_kernels
from radixrt.kernels.threads import set_threads
from tests.attention.shared_batches import random_tree

pytestmark = pytest.mark.usefixtures("two_threads")

NUM_SLOTS = 8192

BATCHES = {
    "one": ([1], [1]),
    "long": ([500], [1]),
    "long-beside-short": ([3, 512, 40], [1, 1, 1]),
    "two-new-of-a-long": ([450], [2]),
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
        logits_index=zeros,
        sample_rows=zeros,
        req_to_token=torch.from_numpy(table),
        seq_lens_cpu=seq,
        extend_lens_cpu=ext,
        req_pool_indices_cpu=np.arange(1, len(seq) + 1, dtype=np.int32),
        shared=None if common is None else common_prefixes(common),
    )


def common_prefixes(common: list[int]) -> SharedGroups:
    """The rows with the first prefix and those with the second, each as one group."""
    segments, order = [], []
    for sign in (1, -1):
        rows = [i for i, n in enumerate(common) if n * sign > 0]
        if rows:
            segments.append((0, min(abs(common[i]) for i in rows), len(order), len(rows)))
            order += rows
    return SharedGroups(np.array(segments, np.int32), np.array(order, np.int32))


def tree_batch(seed: int, num_rows: int = 30) -> ForwardBatch:
    """A DECODE batch of a random tree, four levels deep."""
    tree = random_tree(np.random.default_rng(seed), num_rows, levels=4, run=140, own=90)
    newest = tree.table[tree.rows, tree.seq_lens - 1]
    return ForwardBatch(
        mode=ForwardMode.DECODE,
        input_ids=torch.zeros(num_rows, dtype=torch.int64),
        positions=torch.from_numpy(tree.seq_lens - 1).long(),
        req_pool_indices=torch.from_numpy(tree.rows).long(),
        seq_lens=torch.from_numpy(tree.seq_lens).long(),
        out_cache_loc=torch.from_numpy(newest).long(),
        logits_index=torch.arange(num_rows),
        sample_rows=torch.from_numpy(tree.rows).long(),
        req_to_token=torch.from_numpy(tree.table),
        seq_lens_cpu=tree.seq_lens,
        extend_lens_cpu=np.ones(num_rows, np.int32),
        req_pool_indices_cpu=tree.rows,
        shared=tree.shared,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 1, 37])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [*BATCHES, *SHARED])
def test_equals_the_reference(
    batch: str, shape: str, window: int | None, dtype: torch.dtype, cache_folder: Path
) -> None:
    heads, kv_heads, dim = SHAPES[shape]
    layer = AttentionLayer(0, heads, kv_heads, dim, dim**-0.5, window)
    seq_lens, extend_lens, common = SHARED.get(batch) or (*BATCHES[batch], None)
    made = make_batch(seq_lens, extend_lens, np.random.default_rng(7), common)
    assert_equal(layer, made, replace(made, shared=None), dtype, cache_folder, "compiled")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["compiled", "reference"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_several_levels_equal_plain_attention(
    seed: int, shape: str, kind: str, dtype: torch.dtype, cache_folder: Path
) -> None:
    heads, kv_heads, dim = SHAPES[shape]
    made = tree_batch(seed)
    for window in (None, 37):
        layer = AttentionLayer(0, heads, kv_heads, dim, dim**-0.5, window)
        assert_equal(layer, made, replace(made, shared=None), dtype, cache_folder, kind)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", ["smollm", "one-kv-head"])
@pytest.mark.parametrize("batch", [*BATCHES, *SHARED])
def test_sinks(batch: str, shape: str, dtype: torch.dtype, cache_folder: Path) -> None:
    heads, kv_heads, dim = SHAPES[shape]
    seq_lens, extend_lens, common = SHARED.get(batch) or (*BATCHES[batch], None)
    made = make_batch(seq_lens, extend_lens, np.random.default_rng(7), common)
    for window in (None, 37):
        layer = AttentionLayer(0, heads, kv_heads, dim, dim**-0.5, window, has_sinks=True)
        for kind in ("compiled", "reference"):
            assert_equal(layer, made, replace(made, shared=None), dtype, cache_folder, kind)


def test_the_reference_adds_sinks_to_the_denominator() -> None:
    made = make_batch([30, 9], [12, 9], np.random.default_rng(3))
    layer, generator = AttentionLayer(0, 4, 2, 16, 0.25, 11, has_sinks=True), torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(made.num_tokens, heads, 16, generator=generator) for heads in (4, 2, 2))
    kv = KVCache([layer], int(made.req_to_token.max()), 1, torch.float32, torch.device("cpu"))
    for pool in (kv.k[0], kv.v[0]):
        pool.copy_(torch.randn(pool.shape, generator=generator))
    sinks, backend = torch.tensor([-1.0, 0.0, 2.0, 80.0]), TorchNativeBackend(kv)
    backend.prepare(made)
    found = backend.attend(layer, q, k, v, made, sinks).view(-1, 4, 16)
    token = 0
    for row, (length, new) in enumerate(zip([30, 9], [12, 9], strict=True)):
        for position in range(length - new, length):
            slots = made.req_to_token[row + 1, max(0, position - 10) : position + 1].long()
            for head in range(4):
                scores = 0.25 * kv.k[0][slots, head // 2] @ q[token, head]
                weights = torch.cat((scores, sinks[head : head + 1])).softmax(0)[:-1]
                torch.testing.assert_close(found[token, head], weights @ kv.v[0][slots, head // 2])
            token += 1


def assert_equal(
    layer: AttentionLayer, made: ForwardBatch, plain: ForwardBatch, dtype: torch.dtype, cache_folder: Path, kind: str
) -> None:
    """A backend gives for `made` what the reference gives for `plain`."""
    heads, kv_heads, dim = layer.num_heads, layer.num_kv_heads, layer.head_dim
    generator = torch.Generator().manual_seed(heads + dim)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator).to(dtype)

    num_slots = int(made.req_to_token.max())
    tokens = made.num_tokens
    # Views of a fused projection, as the decoder hands them over.
    fused = random(tokens, heads + 2 * kv_heads, dim)
    q, k, v = fused.split([heads, kv_heads, kv_heads], dim=1)
    pool = random(2, num_slots + 1, kv_heads, dim)
    sinks = torch.linspace(-2.0, 6.0, heads).bfloat16().float() if layer.has_sinks else None
    results = []
    for name, batch in (("reference", plain), (kind, made)):
        kv = KVCache([layer], num_slots, 1, dtype, torch.device("cpu"))
        kv.k[0].copy_(pool[0])
        kv.v[0].copy_(pool[1])
        backend: AttentionBackend = (
            TorchNativeBackend(kv) if name == "reference" else CpuBackend(kv, [layer], cache_folder / "kernels")
        )
        backend.prepare(batch)
        results.append((backend.attend(layer, q, k, v, batch, sinks), kv.k[0], kv.v[0]))
    (expected, k1, v1), (got, k2, v2) = results
    assert got.shape == (tokens, heads * dim)
    assert got.is_contiguous()
    assert got.dtype == dtype
    assert torch.equal(k1, k2)
    assert torch.equal(v1, v2)
    if dtype == torch.float32:
        torch.testing.assert_close(got, expected, atol=3e-6, rtol=1e-5)
    else:
        error = (got.float() - expected.float()).norm() / expected.float().norm()
        assert error < 5e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_decode_row_has_the_same_bits_on_any_number_of_threads_and_beside_others(
    dtype: torch.dtype, cache_folder: Path
) -> None:
    """Long rows are divided among the threads where there are few rows."""
    heads, kv_heads, dim = 6, 2, 32
    layer, generator = AttentionLayer(0, heads, kv_heads, dim, 0.2), torch.Generator().manual_seed(1)
    lengths = [500, 512, 129, 128, 1, 300, *range(20, 32)]
    made = make_batch(lengths, [1] * len(lengths), np.random.default_rng(2))
    kv = KVCache([layer], int(made.req_to_token.max()), 1, dtype, torch.device("cpu"))
    for pool in (kv.k[0], kv.v[0]):
        pool.copy_(torch.randn(pool.shape, generator=generator))
    q = torch.randn(len(lengths), heads, dim, generator=generator)
    library = load_kernels(cache_folder / "kernels")

    def attend(rows: slice, threads: int) -> torch.Tensor:
        set_threads(library, threads)
        batch = replace(
            made,
            req_pool_indices=made.req_pool_indices[rows],
            seq_lens=made.seq_lens[rows],
            seq_lens_cpu=made.seq_lens_cpu[rows],
            extend_lens_cpu=made.extend_lens_cpu[rows],
        )
        backend = CpuBackend(kv, [layer], cache_folder / "kernels")
        backend.prepare(batch)
        return backend.attend(layer, q[rows], None, None, batch)

    expected = attend(slice(None), 1)
    for threads in (1, 2, 5):
        assert torch.equal(attend(slice(None), threads), expected)
        for count in (1, 2, 6):
            assert torch.equal(attend(slice(count), threads), expected[:count])


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("seed", range(3))
def test_every_row_and_head_is_planned_once(threads: int, seed: int) -> None:
    made = tree_batch(seed)
    assert made.shared is not None
    plan = plan_step(
        made.seq_lens_cpu, made.extend_lens_cpu, made.shared, 3, 3, max_queries=64, threads=threads
    )  # fmt: skip
    work: dict[tuple[int, int], int] = {}
    ends = made.shared.ends(len(made.seq_lens_cpu))
    table = made.req_to_token.numpy()
    for first, count, head, first_segment, segments in plan.groups.tolist():
        rows = plan.group_rows[first : first + count]
        covered = np.zeros(count, np.int32)
        for start, length, member, members in plan.segments[first_segment : first_segment + segments].tolist():
            assert members > 1
            assert (covered[member : member + members] == start).all()
            covered[member : member + members] = start + length
            slots = table[made.req_pool_indices.numpy()[rows[member : member + members]], start : start + length]
            assert (slots == slots[0]).all()
        assert (covered <= ends[rows]).all()
        for row in rows.tolist():
            work[(row, head)] = work.get((row, head), 0) + 1
    for row, head, heads, _, _, queries in plan.tasks.tolist():
        for h in range(head, head + heads):
            work[(row, h)] = work.get((row, h), 0) + queries
    assert work == {(r, h): 1 for r in range(len(made.seq_lens_cpu)) for h in range(3)}


LIMITS: dict[str, Any] = {"dtype": torch.float32, "max_rows": 4, "context_length": 64, "dependent_launch": False}


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
