"""Shared prefixes and their merge in Triton equal plain attention: random trees, ragged suffixes, heads, dtypes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixrt.attention.cascade import Tile
from tests.attention.shared_batches import SharedBatch, plain_attention, random_tree

pytestmark = pytest.mark.gpu

SMALL = (Tile(16, 2), Tile(32, 1))


def run(
    batch: SharedBatch, device: str, *, heads: int, kv_heads: int, dim: int, dtype: torch.dtype,
    pool_dtype: torch.dtype | None = None, tiles: tuple[Tile, ...] = SMALL, processors: int = 6, padding: int = 2,
    in_place: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the kernels' result and the expected one, [B, heads, dim]; checks that padding rows are not written."""
    from radixrt.attention.cascade import CascadeRunner

    num_rows = len(batch.seq_lens)
    generator = torch.Generator().manual_seed(num_rows + heads + dim)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator).to(dtype)

    # A view of a fused projection, as the decoder hands it over.
    q = random(num_rows + padding, heads + 2 * kv_heads, dim)[:, :heads]
    pool = random(2, batch.num_slots + 1, kv_heads, dim).to(pool_dtype or dtype)
    scale = dim**-0.5
    expected, _ = plain_attention(batch, q, pool[0], pool[1], scale)
    ends = batch.shared.ends(num_rows)
    own, own_lse = plain_attention(batch, q, pool[0], pool[1], scale, ends)
    own_rows = torch.cat([own, torch.full((padding, heads, dim), 7.0)]).to(dtype).to(device)
    own_lse = torch.cat([own_lse / np.log(2), torch.zeros(padding, heads)]).float().to(device)
    runner = CascadeRunner(
        num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, max_rows=num_rows + padding,
        device=torch.device(device), dtype=dtype, processors=processors, tiles=tiles,
    )  # fmt: skip
    plan = runner.plan(batch.shared, batch.rows)
    assert plan is not None
    assert runner.plan(batch.shared, batch.rows) is plan
    assert np.array_equal(plan.ends, ends)
    placed = runner.upload(plan)
    table = torch.from_numpy(batch.table).to(device)
    runner.attend_shared(q.to(device), pool[0].to(device), pool[1].to(device), table, scale, plan.tile, placed)
    out = own_rows if in_place else torch.empty(num_rows + padding, heads * dim, dtype=dtype, device=device)
    runner.merge(own_rows, own_lse, out, placed)
    got = out.view(-1, heads, dim).cpu()
    assert (got[num_rows:] == 7.0).all()
    return got[:num_rows].double(), expected


def trees(rng: np.random.Generator, **sizes: int) -> SharedBatch:
    while True:
        batch = random_tree(rng, **sizes)
        if len(batch.shared.segments) > 2:
            return batch


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", [(4, 4, 64), (4, 2, 128), (4, 1, 64), (8, 1, 128), (6, 2, 64)])
def test_equals_plain_attention(triton_device: str, shape: tuple[int, int, int], seed: int) -> None:
    heads, kv_heads, dim = shape
    batch = trees(np.random.default_rng(seed), num_rows=13, levels=4, run=90, own=20)
    got, expected = run(batch, triton_device, heads=heads, kv_heads=kv_heads, dim=dim, dtype=torch.float32)
    torch.testing.assert_close(got, expected, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("in_fp8", [False, True])
@pytest.mark.parametrize("shape", [(8, 2, 128), (8, 4, 64)])
def test_in_half_precision(triton_device: str, shape: tuple[int, int, int], in_fp8: bool) -> None:
    heads, kv_heads, dim = shape
    batch = trees(np.random.default_rng(11), num_rows=9, levels=3, run=150, own=20)
    # The interpreter multiplies no matrices of bfloat16.
    dtype = torch.bfloat16 if triton_device == "cuda" else torch.float16
    got, expected = run(
        batch, triton_device, heads=heads, kv_heads=kv_heads, dim=dim, dtype=dtype,
        pool_dtype=torch.float8_e4m3fn if in_fp8 else dtype, tiles=(Tile(64, 2), Tile(128, 1)), in_place=True,
    )  # fmt: skip
    assert (got - expected).norm() / expected.norm() < (6e-3 if dtype == torch.bfloat16 else 2e-3)


def test_a_long_prefix_in_several_splits_and_large_tiles(triton_device: str) -> None:
    from radixrt.forward_batch.forward_batch import SharedGroups

    rng = np.random.default_rng(5)
    common = rng.permutation(1100)[:1003] + 1
    table = np.zeros((41, 1010), np.int32)
    table[:, :1003] = common
    table[1:, 1003:1005] = np.arange(1101, 1181).reshape(40, 2)
    seq_lens = np.array([1004 + row % 2 for row in range(40)], np.int32)
    shared = SharedGroups(np.array([[0, 1003, 0, 40]], np.int32), np.arange(40, dtype=np.int32))
    batch = SharedBatch(table, seq_lens, shared, 1180)
    got, expected = run(
        batch, triton_device, heads=4, kv_heads=1, dim=64, dtype=torch.float32, tiles=(Tile(128, 1),), processors=9
    )
    torch.testing.assert_close(got, expected, atol=3e-6, rtol=1e-5)


def test_empty_parts(triton_device: str) -> None:
    from radixrt.kernels.triton.merge import merge

    own = torch.full((3, 2, 64), torch.nan, device=triton_device)
    own[1] = 5.0
    own_lse = torch.tensor([[-torch.inf] * 2, [0.0] * 2, [-torch.inf] * 2], device=triton_device)
    row_ptr = torch.tensor([0, 2, 3, 3], dtype=torch.int32, device=triton_device)
    partial = torch.stack([torch.full((2, 64), x) for x in (1.0, 3.0, 9.0)]).to(triton_device)
    partial_lse = torch.tensor([[1.0, 1.0], [1.0, -torch.inf], [-torch.inf] * 2], device=triton_device)
    out = torch.empty(3, 128, device=triton_device)
    merge(own, own_lse, row_ptr, partial, partial_lse, out)
    out = out.view(3, 2, 64).cpu()
    assert out[0, 0].unique().tolist() == [2.0]  # two halves; what has no weight adds nothing
    assert out[0, 1].unique().tolist() == [1.0]
    assert out[1].unique().tolist() == [5.0]
    assert out[2].unique().tolist() == [0.0]


def test_parts_that_lie_in_another_order(triton_device: str) -> None:
    from radixrt.kernels.triton.merge import merge

    generator = torch.Generator().manual_seed(0)
    own, partial = (torch.randn(n, 3, 64, generator=generator).to(triton_device) for n in (5, 7))
    own_lse, partial_lse = (torch.randn(n, 3, generator=generator).to(triton_device) for n in (5, 7))
    row_ptr = torch.tensor([0, 2, 2, 3, 6, 7], dtype=torch.int32, device=triton_device)
    order = torch.tensor([4, 1, 6, 0, 2, 5, 3], dtype=torch.int32, device=triton_device)
    merged, plain = torch.empty_like(own), torch.empty_like(own)
    merge(own, own_lse, row_ptr, partial, partial_lse, merged, order)
    merge(own, own_lse, row_ptr, partial[order.long()], partial_lse[order.long()], plain)
    assert merged.equal(plain)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dim", [64, 128])
def test_a_graph_captured_with_one_plan_replays_another(dim: int) -> None:
    from radixrt.attention.cascade import CascadeRunner

    rng, heads, kv_heads, rows = np.random.default_rng(3), 16, 8, 48
    tile = Tile(64, 2)
    runner = CascadeRunner(
        num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, max_rows=64, device=torch.device("cuda"),
        dtype=torch.bfloat16, tiles=(tile,),
    )  # fmt: skip
    batches = [trees(rng, num_rows=rows, levels=4, run=600, own=9) for _ in range(4)]
    slots = max(b.num_slots for b in batches) + 1
    width = max(b.table.shape[1] for b in batches)
    q = torch.randn(rows, heads, dim, device="cuda").bfloat16()
    pool = torch.randn(2, slots, kv_heads, dim, device="cuda").bfloat16()
    table = torch.zeros(rows + 1, width, dtype=torch.int32, device="cuda")
    own = torch.zeros(rows, heads, dim, dtype=torch.bfloat16, device="cuda")
    own_lse = torch.zeros(rows, heads, device="cuda")
    out = torch.empty(rows, heads * dim, dtype=torch.bfloat16, device="cuda")

    buffer = torch.zeros(runner.limits.packed_size, dtype=torch.int32, device="cuda")
    placed = runner.place(buffer)

    def step() -> None:
        runner.attend_shared(q, pool[0], pool[1], table, dim**-0.5, tile, placed)
        runner.merge(own, own_lse, out, placed)

    step()  # compiles; the plan has no work
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for batch in batches:
        plan = runner.plan(batch.shared, batch.rows)
        assert plan is not None
        buffer.copy_(torch.from_numpy(plan.packed))
        table[:, : batch.table.shape[1]] = torch.from_numpy(batch.table).cuda()
        expected, _ = plain_attention(batch, q, pool[0], pool[1], dim**-0.5)
        part, lse = plain_attention(batch, q, pool[0], pool[1], dim**-0.5, batch.shared.ends(rows))
        own.copy_(part)
        own_lse.copy_(lse / np.log(2))
        graph.replay()
        assert (out.view(rows, heads, dim).double() - expected).norm() / expected.norm() < 6e-3
