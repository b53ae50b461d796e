"""Attention over a narrowed batch equals the whole batch's at the positions that sample, in every CPU backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.attention.cpu import CpuBackend
from radixrt.attention.kv_cache import KVCache
from radixrt.attention.torch_native import TorchNativeBackend
from radixrt.forward_batch import batch_builder
from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.messages.runner import ForwardStep, RowWrite
from radixrt.messages.wire import pack_i32
from tests.step_sections import sections

NUM_SLOTS = 4096
SHAPES = {"smollm": (9, 3, 64), "one-kv-head": (8, 1, 32), "large-group": (24, 2, 16)}
SHARED_LENGTH = 96


@pytest.fixture(autouse=True)
def narrow_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_builder, "MIN_SAVED_TOKENS", 0)


def random_rows(rng: np.random.Generator) -> list[tuple[int, int, bool]]:
    """Return (length, new tokens, whether the row samples): prompts with and without a prefix, and single tokens."""
    rows = []
    for _ in range(int(rng.integers(0, 4))):
        prefix, new = int(rng.integers(1, 200)), int(rng.integers(1, 120))
        rows.append((prefix + new, new, bool(rng.integers(2))))
    for _ in range(int(rng.integers(0, 4))):
        new = int(rng.integers(1, 150))
        rows.append((new, new, bool(rng.integers(2))))
    rows += [(int(rng.integers(SHARED_LENGTH + 1, 300)), 1, True) for _ in range(int(rng.integers(0, 5)))]
    return rows or [(70, 70, False)]


def make_batch(rows: list[tuple[int, int, bool]], rng: np.random.Generator, *, shares: bool) -> ForwardBatch:
    """Create a step over scattered slots; its single tokens at the end may share SHARED_LENGTH positions."""
    lens, extends, samples = (list(column) for column in zip(*rows, strict=True))
    order = rng.permutation(NUM_SLOTS) + 1
    slots = [order[sum(lens[:i]) : sum(lens[: i + 1])] for i in range(len(rows))]
    single = [i for i, (n, extend, _) in enumerate(rows) if extend == 1 and n > SHARED_LENGTH and samples[i]]
    shares = shares and len(single) > 1
    for i in single if shares else []:
        slots[i] = np.concatenate([slots[single[0]][:SHARED_LENGTH], slots[i][SHARED_LENGTH:]])
    builder = BatchBuilder(len(rows), max(lens), torch.device("cpu"))
    pairs = list(zip(slots, extends, strict=True))
    writes = [RowWrite(i + 1, 0, pack_i32(row[: len(row) - n])) for i, (row, n) in enumerate(pairs)]
    builder.write_rows([write for write in writes if write.slots])
    step = ForwardStep(
        step_id=0, mode=1, req_pool_idx=pack_i32(np.arange(1, len(rows) + 1)), seq_lens=pack_i32(lens),
        out_cache_loc=pack_i32(np.concatenate([row[len(row) - n :] for row, n in pairs])),
        extend_lens=pack_i32(extends), input_ids=pack_i32(np.zeros(sum(extends))), samples=bytes(samples),
        sections=sections(pack_i32([0, SHARED_LENGTH, 0, len(single)]), pack_i32(single)) if shares else {},
    )  # fmt: skip
    return builder.build(step, narrow=True)


def make_backend(kind: str, kv: KVCache, layer: AttentionLayer, cache_folder: Path) -> AttentionBackend:
    return TorchNativeBackend(kv) if kind == "reference" else CpuBackend(kv, [layer], cache_folder / "kernels")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["compiled", "reference"])
@pytest.mark.parametrize("window", [None, 1, 37])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(8))
def test_narrowed_equals_whole(
    seed: int, shape: str, window: int | None, kind: str, dtype: torch.dtype, cache_folder: Path
) -> None:
    heads, kv_heads, dim = SHAPES[shape]
    layer = AttentionLayer(0, heads, kv_heads, dim, dim**-0.5, window)
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    batch = make_batch(random_rows(rng), rng, shares=seed % 2 == 1)
    assert batch.narrowed is not None
    fused = torch.randn(batch.num_tokens, heads + 2 * kv_heads, dim, generator=generator).to(dtype)
    q, k, v = fused.split([heads, kv_heads, kv_heads], dim=1)
    pool = torch.randn(2, NUM_SLOTS + 1, kv_heads, dim, generator=generator).to(dtype)

    def backend() -> tuple[AttentionBackend, KVCache]:
        kv = KVCache([layer], NUM_SLOTS, 1, dtype, torch.device("cpu"))
        kv.k[0].copy_(pool[0])
        kv.v[0].copy_(pool[1])
        made = make_backend(kind, kv, layer, cache_folder)
        made.prepare(batch)
        return made, kv

    whole, whole_kv = backend()
    expected = whole.attend(layer, q, k, v, batch)[batch.logits_index]
    narrowed, narrowed_kv = backend()
    narrowed.store(layer, k, v, batch)
    assert torch.equal(narrowed_kv.k[0], whole_kv.k[0])
    assert torch.equal(narrowed_kv.v[0], whole_kv.v[0])
    if batch.narrowed.num_tokens == 0:
        return
    got = narrowed.attend(layer, q[batch.logits_index], None, None, batch.narrowed)
    assert got.shape == expected.shape
    assert got.dtype == dtype
    if dtype == torch.float32:
        torch.testing.assert_close(got, expected, atol=1e-6 if kind == "reference" else 3e-6, rtol=1e-5)
    else:
        assert (got.float() - expected.float()).norm() / expected.float().norm() < 5e-3


@pytest.mark.parametrize("kind", ["compiled", "reference"])
def test_layers_before_the_last_attend_to_the_whole_batch(kind: str, cache_folder: Path) -> None:
    """Both batches are planned at once, and a later step without a narrowed batch has one plan."""
    layers = [AttentionLayer(i, 4, 2, 16, 0.25) for i in range(2)]
    kv = KVCache(layers, NUM_SLOTS, 1, torch.float32, torch.device("cpu"))
    backend = TorchNativeBackend(kv) if kind == "reference" else CpuBackend(kv, layers, cache_folder / "kernels")
    rng = np.random.default_rng(0)
    batch = make_batch([(150, 60, True), (80, 80, False), (120, 1, True)], rng, shares=False)
    q, k, v = torch.randn(batch.num_tokens, 8, 16).split([4, 2, 2], dim=1)
    backend.prepare(batch)
    first = backend.attend(layers[0], q, k, v, batch)
    assert first.shape == (batch.num_tokens, 64)
    backend.store(layers[1], k, v, batch)
    assert batch.narrowed is not None
    kv.k[1].copy_(kv.k[0])
    kv.v[1].copy_(kv.v[0])
    last = backend.attend(layers[1], q[batch.logits_index], None, None, batch.narrowed)
    torch.testing.assert_close(last, first[batch.logits_index])
    decode = make_batch([(90, 1, True), (33, 1, True)], rng, shares=False)
    backend.prepare(decode)
    assert backend.attend(layers[0], q[:2], k[:2], v[:2], decode).shape == (2, 64)
