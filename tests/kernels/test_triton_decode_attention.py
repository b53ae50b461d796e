"""Decode attention over evenly shared keys equals plain attention: ragged rows, parts, heads, dtypes, repetition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.gpu

WIDTH = 1100
SHAPES = {"group 2": (8, 4, 64), "group 4": (16, 4, 64), "no group": (2, 2, 64), "three": (9, 3, 64)}


@dataclass
class Case:
    """Rows with random slots in a random pool, all on one device."""

    q: torch.Tensor
    pool: tuple[torch.Tensor, torch.Tensor]
    table: torch.Tensor
    places: torch.Tensor
    starts: np.ndarray
    ends: np.ndarray

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        """float64 [B, heads, dim], and log2 of the sums of exponentials [B, heads]."""
        heads, dim = self.q.shape[1:]
        group = heads // self.pool[0].shape[1]
        outs, lses = [], []
        for i, (start, end) in enumerate(zip(self.starts.tolist(), self.ends.tolist(), strict=True)):
            slots = self.table[self.places[i], start:end].long()
            keys, values = (x[slots].double().repeat_interleave(group, 1) for x in self.pool)
            scores = torch.einsum("hd,nhd->hn", self.q[i].double(), keys) * dim**-0.5
            outs.append(torch.einsum("hn,nhd->hd", scores.softmax(-1), values))
            lses.append(scores.logsumexp(-1) / np.log(2))
        return torch.stack(outs), torch.stack(lses)


def make_case(
    ends: list[int], starts: list[int] | None, shape: tuple[int, int, int], device: str, *, dtype: torch.dtype,
    pool_dtype: torch.dtype | None = None, seed: int = 0,
) -> Case:  # fmt: skip
    heads, kv_heads, dim = shape
    make = torch.Generator().manual_seed(seed)
    slots = 3000

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=make).to(dtype)

    table = torch.randint(1, slots, (len(ends) + 3, WIDTH), generator=make, dtype=torch.int32)
    places = torch.randperm(len(ends) + 2, generator=make)[: len(ends)] + 1
    pool = tuple(random(slots, kv_heads, dim).to(pool_dtype or dtype).to(device) for _ in range(2))
    # A view of a fused projection, as the decoder hands it over.
    q = random(len(ends), heads + 2 * kv_heads, dim).to(device)[:, :heads]
    begin = np.zeros(len(ends), np.int32) if starts is None else np.array(starts, np.int32)
    return Case(q, (pool[0], pool[1]), table.to(device), places.to(device), begin, np.array(ends, np.int32))


class Run:
    """A runner with its rows placed; `again` computes them once more with the same scratch."""

    def __init__(self, case: Case, device: str, processors: int, early: bool = False) -> None:
        from radixrt.attention.decode_runner import DecodeRunner

        heads, dim = case.q.shape[1:]
        self.case = case
        self.runner = DecodeRunner(
            num_heads=heads, num_kv_heads=case.pool[0].shape[1], head_dim=dim, max_rows=len(case.ends),
            kv_dtype=case.pool[0].dtype, device=torch.device(device), dependent_launch=early, processors=processors,
        )  # fmt: skip
        arrays = [torch.from_numpy(x).to(device) for x in self.runner.plan(case.starts, case.ends)]
        sizes = self.runner.list_sizes(int((case.ends - case.starts).sum()), len(case.ends))
        slots, meta = (torch.full((size,), -1, dtype=torch.int32, device=device) for size in sizes)
        ends = torch.from_numpy(case.ends.astype(np.int64)).to(device)
        self.rows = self.runner.place(case.places, ends, arrays, slots, meta)
        self.runner.list_slots(self.rows, case.table)
        self.out = torch.full(case.q.shape, torch.nan, dtype=case.q.dtype, device=device)
        self.lse = torch.full(case.q.shape[:2], torch.nan, device=device)

    def again(self, *, with_lse: bool = True) -> None:
        self.out.fill_(torch.nan)
        scale = self.case.q.shape[2] ** -0.5
        self.runner.attend(self.case.q, self.case.pool, self.rows, scale, self.out, self.lse if with_lse else None)


def close(run: Run, tolerance: float) -> None:
    expected, lse = run.case.expected()
    error = (run.out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.max() < tolerance, error.max()
    assert (run.lse.double() - lse).abs().max() < max(tolerance, 1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_equals_plain_attention(shape: str, seed: int, triton_device: str) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 12))
    ends = rng.integers(1, 700, rows)
    starts = [int(rng.integers(0, end)) for end in ends] if seed % 2 else None
    dtype = torch.float32 if triton_device == "cpu" else torch.bfloat16
    case = make_case(ends.tolist(), starts, SHAPES[shape], triton_device, dtype=dtype, seed=seed)
    run = Run(case, triton_device, processors=int(rng.integers(1, 12)))
    for _ in range(2):  # what the first call leaves behind must not change the second
        run.again()
        close(run, 1e-5 if dtype is torch.float32 else 2e-2)


@pytest.mark.parametrize(
    "ends", [[1], [64], [65], [1000], [64, 64, 64], [1] * 20, [1000, 1, 1000], [3, 900, 5, 7, 64, 128]], ids=str
)
@pytest.mark.parametrize("processors", [1, 5, 40])
def test_rows_that_end_where_lanes_do(ends: list[int], processors: int, triton_device: str) -> None:
    dtype = torch.float32 if triton_device == "cpu" else torch.bfloat16
    run = Run(make_case(ends, None, (4, 2, 64), triton_device, dtype=dtype), triton_device, processors)
    run.again()
    close(run, 1e-5 if dtype is torch.float32 else 2e-2)


@pytest.mark.parametrize("pool_dtype", [None, torch.float8_e4m3fn])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_half_precision_and_a_float8_pool(dim: int, pool_dtype: torch.dtype | None, triton_device: str) -> None:
    # The interpreter multiplies no matrices of bfloat16.
    for dtype in (torch.float16, torch.bfloat16) if triton_device == "cuda" else (torch.float16,):
        case = make_case([700, 30, 129], None, (8, 2, dim), triton_device, dtype=dtype, pool_dtype=pool_dtype)
        run = Run(case, triton_device, processors=3)
        run.again()
        close(run, 2e-2)


@pytest.mark.parametrize("block", [16, 32])
def test_rows_of_a_step_with_tensors_of_its_own(block: int, triton_device: str) -> None:
    from radixrt.attention.decode_runner import DecodeRunner, Sizes

    dtype = torch.float32 if triton_device == "cpu" else torch.bfloat16
    case = make_case([700, 31, 32, 1], [0, 7, 0, 0], (4, 2, 64), triton_device, dtype=dtype)
    runner = DecodeRunner(
        num_heads=4, num_kv_heads=2, head_dim=64, max_rows=4, kv_dtype=dtype, device=torch.device(triton_device),
        dependent_launch=False, processors=3, sizes=Sizes(block, 1, 3, 2),
    )  # fmt: skip
    ends = torch.from_numpy(case.ends.astype(np.int64)).to(triton_device)
    rows = runner.listed(case.places, case.starts, ends, case.ends, case.table)
    out = torch.full(case.q.shape, torch.nan, dtype=dtype, device=triton_device)
    runner.attend(case.q, case.pool, rows, 64**-0.5, out)
    expected, _ = case.expected()
    error = (out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.max() < (1e-5 if dtype is torch.float32 else 2e-2)


def test_parts_are_added_in_one_order(triton_device: str) -> None:
    case = make_case([1000] * 3, None, (4, 2, 64), triton_device, dtype=torch.float16)
    run = Run(case, triton_device, processors=9)
    found = []
    for _ in range(5):
        run.again(with_lse=False)
        found.append(run.out.clone())
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are CUDA's")
@pytest.mark.parametrize("early", [False, True])
def test_in_a_graph_whose_rows_change(early: bool) -> None:
    """One capture serves rows of any lengths: another plan in the same tensors, and the list made anew within."""
    cases = [
        make_case(ends, starts, (16, 8, 128), "cuda", dtype=torch.bfloat16)
        for ends, starts in (([700] * 8, None), ([1, 1100, 3, 64, 65, 1, 1, 500], None), ([900] * 8, [850, 0] * 4))
    ]
    first = Run(cases[0], "cuda", processors=132, early=early)
    sizes = first.runner.list_sizes(8 * WIDTH, 8)
    slots, meta = (torch.zeros(size, dtype=torch.int32, device="cuda") for size in sizes)
    arrays = [torch.from_numpy(x).cuda() for x in first.runner.plan(cases[0].starts, cases[0].ends)]
    ends = torch.from_numpy(cases[0].ends.astype(np.int64)).cuda()
    table = torch.zeros(12, WIDTH, dtype=torch.int32, device="cuda")
    rows = first.runner.place(cases[0].places.clone(), ends, arrays, slots, meta)
    q, out = cases[0].q.clone(), torch.zeros_like(cases[0].q)

    def step() -> None:
        first.runner.list_slots(rows, table)
        for _ in range(3):
            first.runner.attend(q, cases[0].pool, rows, 128**-0.5, out)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for case in [*cases, cases[0]]:
        for tensor, array in zip(arrays, first.runner.plan(case.starts, case.ends), strict=True):
            tensor.copy_(torch.from_numpy(array))
        ends.copy_(torch.from_numpy(case.ends.astype(np.int64)))
        rows.table_rows.copy_(case.places)
        table[: case.table.shape[0]] = case.table
        q.copy_(case.q)
        graph.replay()
        case.pool = cases[0].pool
        expected, _ = case.expected()
        error = (out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
        assert error.max() < 2e-2
