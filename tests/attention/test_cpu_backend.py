"""The compiled CPU backend equals the torch reference: decode, chunks, both at once, windows, head shapes, page sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from radixrt.attention import make_backend
from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.attention.cpu import CpuBackend
from radixrt.attention.torch_native import TorchNativeBackend
from radixrt.errors import ConfigError
from radixrt.executor.forward_batch import ForwardBatch, ForwardMode
from radixrt.executor.kv_cache import KVCache
from radixrt.kernels import build

NUM_SLOTS = 4096

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


def make_batch(seq_lens: list[int], extend_lens: list[int], rng: np.random.Generator) -> ForwardBatch:
    seq, ext = np.array(seq_lens, np.int32), np.array(extend_lens, np.int32)
    slots = rng.permutation(NUM_SLOTS)[: seq.sum()] + 1
    table = np.zeros((len(seq) + 1, 512), np.int32)
    new, start = [], 0
    for i, (n, e) in enumerate(zip(seq_lens, extend_lens, strict=True)):
        table[i + 1, :n] = slots[start : start + n]
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
        req_to_token=torch.from_numpy(table),
        seq_lens_cpu=seq,
        extend_lens_cpu=ext,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 1, 37])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", BATCHES)
def test_equals_the_reference(
    batch: str, shape: str, window: int | None, dtype: torch.dtype, cache_folder: Path
) -> None:
    generator = torch.Generator().manual_seed(len(batch) + len(shape))
    heads, kv_heads, dim = SHAPES[shape]
    layer = AttentionLayer(0, heads, kv_heads, dim, dim**-0.5, window)
    made = make_batch(*BATCHES[batch], np.random.default_rng(7))

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


def test_without_a_compiler_it_falls_back_and_says_what_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    layer = AttentionLayer(0, 2, 1, 32, 1.0)
    kv = KVCache([layer], 64, 1, torch.float32, torch.device("cpu"))
    backend = make_backend("auto", kv, [layer], torch.device("cpu"), tmp_path)
    assert isinstance(backend, TorchNativeBackend)
    assert "C++ compiler" in caplog.text
    with pytest.raises(ConfigError, match="no C\\+\\+ compiler"):
        make_backend("cpu", kv, [layer], torch.device("cpu"), tmp_path)


def test_shapes_that_it_does_not_take_go_to_the_reference(cache_folder: Path) -> None:
    layer = AttentionLayer(0, 2, 1, 20, 1.0)
    kv = KVCache([layer], 64, 1, torch.float32, torch.device("cpu"))
    assert isinstance(
        make_backend("auto", kv, [layer], torch.device("cpu"), cache_folder / "kernels"), TorchNativeBackend
    )
    with pytest.raises(ConfigError, match="head_dim 20"):
        make_backend("cpu", kv, [layer], torch.device("cpu"), cache_folder / "kernels")
