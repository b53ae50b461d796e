"""The FlashInfer backend against the reference in float32: every shape of step, page size, window and pool dtype.

Tolerance: queries, keys, values and the result are bfloat16, whose unit roundoff is 2^-9; errors of 1e-2 of the norm
would be a wrong mask or slot, not rounding. With a pool of float8 the reference has keys and values rounded to float8:
what is read is what the pool holds, also of tokens that are computed in the step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from radixrt.attention import flashinfer_plans
from radixrt.attention.base import AttentionLayer
from radixrt.attention.flashinfer_modules import FlashInferModules
from radixrt.attention.kv_cache import KVCache
from radixrt.attention.torch_native import TorchNativeBackend
from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.messages.runner import ForwardStep, RowWrite
from radixrt.messages.wire import pack_i32

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

DEVICE = torch.device("cuda")
STEPS = {
    "decode": [(1, 1), (37, 1), (512, 1), (1025, 1), (7, 1)],
    "prompts": [(5, 5), (130, 130), (1, 1), (64, 64)],
    "chunks": [(700, 120), (33, 32), (400, 1), (90, 90)],
    "many and few": [(700, 120), (300, 64), (33, 32), (500, 7), (130, 2), (90, 1)],
    "few": [(900, 20), (40, 16)],
}
NARROWED = {
    "prompts": ([(130, 130), (64, 64), (5, 5)], [1, 0, 1]),
    "fresh": ([(600, 600), (70, 70)], [1, 1]),
    "chunks": ([(700, 120), (33, 32), (400, 1), (90, 90)], [0, 1, 1, 1]),
    "all-kinds": (
        [(900, 130), (300, 64), (33, 32), (500, 7), (130, 2), (1100, 1100), (400, 1), (90, 1), (17, 1), (1025, 1)],
        [1, 0, 1, 1, 0, 0, 1, 1, 1, 1],
    ),
    "one-of-many": ([(2500, 300), (80, 80)], [0, 1]),
    "none": ([(600, 600), (90, 90)], [0, 0]),
}
"""Rows, and whether each of them samples."""

SHAPES = {"llama": (32, 8, 128), "qwen": (16, 8, 128), "small": (9, 3, 64)}


def make_batch(
    rows: list[tuple[int, int]], page_size: int, seed: int, samples: list[int] | None = None, *, narrow: bool = False
) -> tuple[ForwardBatch, int]:
    """A step of rows (sequence length, new tokens) in scattered pages, and the slots of the pool.

    samples: by row, 0 for one that does not; None if all do.
    """
    rng = np.random.default_rng(seed)
    pages = [-(-n // page_size) for n, _ in rows]
    order = rng.permutation(sum(pages)) + 1
    builder = BatchBuilder(len(rows), max(n for n, _ in rows) + page_size, DEVICE, sample_sizes=(3, 7, 16))
    writes, new, first = [], [], 0
    for i, ((n, extend), count) in enumerate(zip(rows, pages, strict=True)):
        slots = (order[first : first + count, None] * page_size + np.arange(page_size)).reshape(-1)[:n]
        first += count
        writes.append(RowWrite(i + 1, 0, pack_i32(slots[: n - extend])))
        new.append(slots[n - extend :])
    builder.write_rows([w for w in writes if w.slots])
    decode = all(extend == 1 for _, extend in rows)
    tokens = sum(extend for _, extend in rows)
    step = ForwardStep(
        step_id=0, mode=2 if decode else 1, req_pool_idx=pack_i32(np.arange(1, len(rows) + 1)),
        seq_lens=pack_i32([n for n, _ in rows]), out_cache_loc=pack_i32(np.concatenate(new)),
        extend_lens=b"" if decode else pack_i32([e for _, e in rows]),
        input_ids=b"" if decode else pack_i32(np.zeros(tokens)),
        samples=b"" if decode else bytes(samples or [1] * len(rows)),
    )  # fmt: skip
    return builder.build(step, narrow=narrow), sum(pages) * page_size


class Compiling(FlashInferModules):
    """Modules that are never ready."""

    def __init__(self) -> None:
        super().__init__(self._find_none)

    @staticmethod
    def _find_none() -> list[tuple[Any, Callable[[], Any]]]:
        threading.Event().wait()
        return []


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("rows", STEPS)
@pytest.mark.parametrize("pool", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("compiled", [True, False])
def test_equals_the_reference(
    rows: str, window: int | None, shape: str, page_size: int, pool: torch.dtype, *, compiled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if (window is not None or pool is torch.float8_e4m3fn) and (shape != "llama" or page_size != 1):
        pytest.skip("each combination compiles kernels of its own; windows and float8 are tried with one shape")
    from radixrt.attention.flashinfer import FlashInferBackend

    heads, kv_heads, dim = SHAPES[shape]
    layer = AttentionLayer(0, heads, kv_heads, dim, dim**-0.5, window)
    batch, slots = make_batch(STEPS[rows], page_size, seed=1)
    generator = torch.Generator(DEVICE).manual_seed(2)

    def random(tokens: int, count: int) -> torch.Tensor:
        return torch.randn(tokens, count, dim, device=DEVICE, generator=generator).bfloat16()

    q, k, v = (random(batch.num_tokens, n) for n in (heads, kv_heads, kv_heads))
    ours = KVCache([layer], slots, page_size, pool, DEVICE)
    exact = KVCache([layer], slots, page_size, torch.float32, DEVICE)
    for mine, theirs in ((ours.k[0], exact.k[0]), (ours.v[0], exact.v[0])):
        mine.copy_(random(slots + page_size, kv_heads).to(pool))
        theirs.copy_(mine.float())
    monkeypatch.setattr(
        flashinfer_plans, "MAX_GATHERED_BYTES", 2 * kv_heads * dim * 2 * 300
    )  # so that rows are divided
    backend = FlashInferBackend(
        ours, [layer], dtype=torch.bfloat16, max_rows=8, context_length=2048, modules=None if compiled else Compiling()
    )
    reference = TorchNativeBackend(exact)
    backend.prepare(batch)
    reference.prepare(batch)
    got = backend.attend(layer, q, k, v, batch).float()
    expected = reference.attend(layer, q.float(), k.to(pool).float(), v.to(pool).float(), batch)
    error = (got - expected).norm() / expected.norm()
    assert error < 1e-2
    # Each row by itself: a short one must not hide behind long ones.
    rows_error = (got - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert rows_error.max() < 3e-2


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("rows", NARROWED)
@pytest.mark.parametrize("pool", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_narrowed_last_layer_equals_the_reference(
    rows: str, window: int | None, page_size: int, pool: torch.dtype, *, compiled: bool
) -> None:
    """Two layers of a step: the first attends to all of it, the last to its narrowed batch."""
    if (window is not None or pool is torch.float8_e4m3fn) and page_size != 1:
        pytest.skip("windows and float8 are tried with one page size")
    from radixrt.attention.flashinfer import FlashInferBackend

    heads, kv_heads, dim = SHAPES["llama"]
    layers = [AttentionLayer(i, heads, kv_heads, dim, dim**-0.5, window) for i in range(2)]
    batch, slots = make_batch(NARROWED[rows][0], page_size, 3, NARROWED[rows][1], narrow=True)
    narrowed = batch.narrowed
    assert narrowed is not None
    generator = torch.Generator(DEVICE).manual_seed(2)

    def random(tokens: int, count: int) -> torch.Tensor:
        return torch.randn(tokens, count, dim, device=DEVICE, generator=generator).bfloat16()

    ours = KVCache(layers, slots, page_size, pool, DEVICE)
    exact = KVCache(layers, slots, page_size, torch.float32, DEVICE)
    for mine, theirs in zip(ours.k + ours.v, exact.k + exact.v, strict=True):
        theirs.copy_(random(slots + page_size, kv_heads))
        mine.copy_(theirs.to(pool))
    modules = None if compiled else Compiling()
    backend = FlashInferBackend(ours, layers, dtype=torch.bfloat16, max_rows=16, context_length=4096, modules=modules)
    reference = TorchNativeBackend(exact)
    limit = 1e-2 if pool is torch.bfloat16 else 6e-2
    for _ in range(2):  # the second time every plan is made again in the same buffers
        backend.prepare(batch)
        reference.prepare(batch)
        for layer in layers:
            q, k, v = (random(batch.num_tokens, n) for n in (heads, kv_heads, kv_heads))
            expected = reference.attend(layer, q.float(), k.float(), v.float(), batch)
            if layer is layers[0]:
                got = backend.attend(layer, q, k, v, batch).float()
            else:
                backend.store(layer, k, v, batch)
                if narrowed.num_tokens == 0:
                    continue
                samples = len(batch.sample_rows)  # what follows is padding
                expected = expected[batch.logits_index[:samples]]
                got = backend.attend(layer, q[batch.logits_index], None, None, narrowed).float()[:samples]
            assert got.shape == expected.shape
            assert (got - expected).norm() / expected.norm() < limit
            assert ((got - expected).norm(dim=-1) / expected.norm(dim=-1)).max() < 3.4 * limit
        stored = ours.k[1][batch.out_cache_loc].float(), exact.k[1][batch.out_cache_loc]
        assert (stored[0] - stored[1]).norm() / stored[1].norm() < limit


def test_float32_is_left_to_the_reference(caplog: pytest.LogCaptureFixture, tmp_path) -> None:  # type: ignore[no-untyped-def]
    from radixrt.attention import make_backend

    layer = AttentionLayer(0, 2, 1, 64, 1.0)
    kv = KVCache([layer], 64, 1, torch.float32, DEVICE)
    backend = make_backend(
        "auto",
        kv,
        [layer],
        dtype=torch.float32,
        max_rows=2,
        context_length=64,
        kernel_cache=tmp_path,
        dependent_launch=False,
    )
    assert isinstance(backend, TorchNativeBackend)
    assert "float32" in caplog.text
