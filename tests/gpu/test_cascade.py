"""FlashInfer for suffixes, Triton kernels for shared prefixes: equal to reference attention in float32.

Tolerance: as in test_flashinfer.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from radixrt.attention.base import AttentionLayer
from radixrt.attention.kv_cache import KVCache
from radixrt.attention.torch_native import TorchNativeBackend
from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.messages.runner import ForwardStep, RowWrite
from radixrt.messages.wire import pack_i32
from tests.attention.shared_batches import extend_step, random_tree
from tests.step_sections import sections

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SHAPES = {"llama": (32, 8, 128), "qwen": (16, 8, 128), "small": (9, 3, 64)}


def tree_step(seed: int, num_rows: int, device: torch.device) -> tuple[ForwardBatch, int]:
    """Return a DECODE step over a random tree, as the scheduler sends it, and the slots of the pool."""
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, num_rows, levels=4, run=400, own=100)
    while not len(tree.shared.segments):
        tree = random_tree(rng, num_rows, levels=4, run=400, own=100)
    builder = BatchBuilder(num_rows, tree.table.shape[1], device)
    slots = [tree.table[row, :length] for row, length in zip(tree.rows, tree.seq_lens, strict=True)]
    writes = [RowWrite(int(row), 0, pack_i32(path[:-1])) for row, path in zip(tree.rows, slots, strict=True)]
    builder.write_rows([write for write in writes if write.slots])
    step = ForwardStep(
        step_id=0, mode=2, req_pool_idx=pack_i32(tree.rows), seq_lens=pack_i32(tree.seq_lens),
        out_cache_loc=pack_i32([path[-1] for path in slots]),
        sections=sections(pack_i32(tree.shared.segments.reshape(-1)), pack_i32(tree.shared.rows)),
    )  # fmt: skip
    return builder.build(step), tree.num_slots


@pytest.mark.parametrize("pool", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_rows", [3, 40, 256])
def test_shared_parts_change_nothing(num_rows: int, shape: str, pool: torch.dtype) -> None:
    if pool is torch.float8_e4m3fn and shape != "llama":
        pytest.skip("each combination compiles kernels of its own; float8 is tried with one shape")
    from radixrt.attention.flashinfer import FlashInferBackend

    device = torch.device("cuda")
    heads, kv_heads, dim = SHAPES[shape]
    layer = AttentionLayer(0, heads, kv_heads, dim, dim**-0.5)
    batch, slots = tree_step(num_rows, num_rows, device)
    assert batch.shared is not None
    generator = torch.Generator(device).manual_seed(2)

    def random(tokens: int, count: int) -> torch.Tensor:
        return torch.randn(tokens, count, dim, device=device, generator=generator).bfloat16()

    q, k, v = (random(num_rows, n) for n in (heads, kv_heads, kv_heads))
    ours = KVCache([layer], slots, 1, pool, device)
    exact = KVCache([layer], slots, 1, torch.float32, device)
    for mine, theirs in ((ours.k[0], exact.k[0]), (ours.v[0], exact.v[0])):
        theirs.copy_(random(slots + 1, kv_heads))
        mine.copy_(theirs.to(pool))
    backend = FlashInferBackend(ours, [layer], dtype=torch.bfloat16, max_rows=256, context_length=8192)
    reference = TorchNativeBackend(exact)
    backend.prepare(batch)
    plain = replace(batch, shared=None)
    reference.prepare(plain)
    assert backend.plan_shared(batch.shared, batch.req_pool_indices_cpu) is not None
    got = backend.attend(layer, q, k, v, batch).float()
    expected = reference.attend(layer, q.float(), k.float(), v.float(), plain)
    limit = 1e-2 if pool is torch.bfloat16 else 6e-2
    assert (got - expected).norm() / expected.norm() < limit
    assert ((got - expected).norm(dim=-1) / expected.norm(dim=-1)).max() < 3 * limit
    backend.prepare(plain)  # and back
    again = backend.attend(layer, q, k, v, plain).float()
    assert (again - expected).norm() / expected.norm() < limit


@pytest.mark.parametrize(("pool", "shape"), [(torch.bfloat16, s) for s in SHAPES] + [(torch.float8_e4m3fn, "llama")])
@pytest.mark.parametrize(("num_prompts", "num_single"), [(2, 2), (30, 12), (200, 40), (3, 300)])
def test_prompts_share_beside_decode_rows_that_share(
    num_prompts: int, num_single: int, shape: str, pool: torch.dtype
) -> None:
    """Two layers: the first attends with all tokens of the step, the last with those that are sampled."""
    from radixrt.attention.flashinfer import FlashInferBackend, PagedPart

    device = torch.device("cuda")
    heads, kv_heads, dim = SHAPES[shape]
    layers = [AttentionLayer(i, heads, kv_heads, dim, dim**-0.5) for i in range(2)]
    rng = np.random.default_rng(num_prompts)
    trees = [random_tree(rng, n, levels=3, run=400, own=150, least=3) for n in (num_prompts, num_single)]
    while not len(trees[0].shared.segments):
        trees[0] = random_tree(rng, num_prompts, levels=3, run=400, own=150, least=3)
    batch = extend_step(trees[0], trees[1], rng, device)
    slots = sum(tree.num_slots for tree in trees)
    generator = torch.Generator(device).manual_seed(2)

    def random(tokens: int, count: int) -> torch.Tensor:
        return torch.randn(tokens, count, dim, device=device, generator=generator).bfloat16()

    ours = KVCache(layers, slots, 1, pool, device)
    exact = KVCache(layers, slots, 1, torch.float32, device)
    for mine, theirs in zip(ours.k + ours.v, exact.k + exact.v, strict=True):
        theirs.copy_(random(slots + 1, kv_heads))
        mine.copy_(theirs.to(pool))
    backend = FlashInferBackend(ours, layers, dtype=torch.bfloat16, max_rows=512, context_length=8192)
    reference = TorchNativeBackend(exact)
    plain = replace(batch, shared=None, narrowed=None)
    limit = 1e-2 if pool is torch.bfloat16 else 6e-2
    for _ in range(2):  # the second time every plan is made again in the same buffers
        backend.prepare(batch)
        reference.prepare(plain)
        assert any(isinstance(part, PagedPart) and part.shared is not None for part in backend.parts_of(batch))
        for layer in layers:
            q, k, v = (random(batch.num_tokens, n) for n in (heads, kv_heads, kv_heads))
            expected = reference.attend(layer, q.float(), k.float(), v.float(), plain)
            if layer is layers[0]:
                got = backend.attend(layer, q, k, v, batch).float()
            elif batch.narrowed is None:  # too few tokens to be left out
                continue
            else:
                backend.store(layer, k, v, batch)
                expected = expected[batch.logits_index[:-3]]
                got = backend.attend(layer, q[batch.logits_index], None, None, batch.narrowed).float()[:-3]
            assert (got - expected).norm() / expected.norm() < limit
            assert ((got - expected).norm(dim=-1) / expected.norm(dim=-1)).max() < 3.4 * limit
