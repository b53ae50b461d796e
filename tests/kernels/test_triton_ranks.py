"""What ranks add up and gather through memory that all map: processes under Triton's interpreter, with files.

So turns, halves and flags are tested by real ranks that wait for each other; GPUs do the same in tests/gpu.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.rank_processes import run_ranks

START = """
import sys, torch
import torch.distributed as dist
from radixrt.kernels.triton import norm, rank_gather, rank_memory, rank_sampling, rank_sum, sampling
rank, ranks, folder, size, part = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", ranks), rank=rank, world_size=ranks)
def mapped(name):
    return [torch.from_file(f"{folder}/{name}{i}", shared=True, size=size, dtype=torch.uint8) for i in range(ranks)]
def addresses(maps):
    return torch.tensor([each.data_ptr() for each in maps])
maps, further = mapped("a"), mapped("b")
memory = rank_memory.RankMemory(addresses(maps), rank, part)
samples = rank_memory.RankMemory(addresses(further), rank, 0)
generator = torch.Generator().manual_seed(5)
weight = 1 + torch.rand(104, generator=generator)
marked = torch.empty(4, dtype=torch.uint8)
rank_memory.mark(marked)
def begin_marked():
    # The memory of sums is all marks before any rank sends.
    rank_memory.mark(maps[rank])
    dist.barrier()
def summed_and_normed(parts, residual):
    # What a sum over ranks leaves in the residual sum, and what it gives.
    kept, summed = residual.clone(), torch.zeros(residual.shape)
    for each in parts.float():
        summed += each
    return kept, norm.add_rms_norm(kept, summed, weight, 1e-6, torch.float32)
"""

SUMS = """
rank_sum.ONE_TRIP_BYTES[ranks] = 1 << 20
begin_marked()
for turn, rows in enumerate((1, 8, 8, 3, 1, 5, 2, 8)):
    dtype = (torch.float32, torch.bfloat16)[turn // 2 % 2]  # both in both halves of the memory
    parts = torch.randn(ranks, rows, 104, generator=generator).to(dtype)
    parts[:, :, 3:5] = 0.0
    parts[0].view(torch.uint8)[:, 3 * dtype.itemsize : 4 * dtype.itemsize] = marked[: dtype.itemsize]
    parts[-1, :, 4] = -0.0
    residual = torch.randn(rows, 104, generator=generator)
    assert rows <= rank_sum.rows_at_a_time(memory, rows, 104, dtype.itemsize)
    kept, expected = summed_and_normed(parts, residual)
    out = rank_sum.sum_add_rms_norm(memory, residual, parts[rank], weight, 1e-6, torch.float32)
    assert torch.equal(residual, kept), turn
    assert torch.equal(out, expected), turn
    assert memory.turn.tolist() == [turn + 2, 0]
assert rank_sum.rows_at_a_time(memory, 9, 104, 4) == 8
assert rank_sum.rows_at_a_time(memory, 8, 103, 4) == 0
"""

TWO_TRIPS = """
rank_sum.ONE_TRIP_BYTES[ranks] = 2 * 104 * 2
begin_marked()
turns = 0
for case, rows in enumerate((ranks, 1, 8, 6, 21, 2, 8, 3)):
    dtype = (torch.float32, torch.bfloat16)[case // 2 % 2]  # both in both halves of the memory
    parts = (4 * torch.randn(ranks, rows, 104, generator=generator)).round().to(dtype)
    residual = (4 * torch.randn(rows, 104, generator=generator)).round().to(dtype)
    residual[0] = 0
    parts[:, 0, 3:5] = 0.0
    parts[0].view(torch.uint8)[0, 3 * dtype.itemsize : 4 * dtype.itemsize] = marked[: dtype.itemsize]
    residual.view(torch.uint8)[0, 4 * dtype.itemsize : 5 * dtype.itemsize] = marked[: dtype.itemsize]
    at_a_time = rank_sum.rows_at_a_time(memory, rows, 104, dtype.itemsize)
    trips = rank_sum.trips(memory, rows, 104, dtype.itemsize)
    assert trips == (1 if rows * dtype.itemsize <= 4 else 2)
    turns += -(-rows // at_a_time)
    unmarked = residual.clone()
    unmarked[0, 4] = 0
    kept, expected = summed_and_normed(parts, unmarked)
    out = rank_sum.sum_add_rms_norm(memory, residual, parts[rank], weight, 1e-6, torch.float32)
    residual[0, 3:5] += 1
    kept[0, 3:5] += 1  # in one trip, what is too small to matter may stay
    assert torch.equal(residual, kept), case
    torch.testing.assert_close(out, expected)
    assert memory.turn.tolist() == [turns + 1, 0]
assert rank_sum.rows_at_a_time(memory, 1, 8 * 104 + 1, 4) == 0
"""

PRODUCTS = """
from radixrt.kernels.triton import gemv, skinny_gemm
from radixrt.kernels.triton.skinny_gemm_config import Config
begin_marked()
workspace = skinny_gemm.Workspace("cpu")
cuts = (Config(16, 64, 1, 2, 4), Config(64, 64, 2, 2, 4, True), Config(32, 64, 1, 3, 4, False, True))
for turn, rows in enumerate((1, 2, 8, 5, 8, 3, 1)):
    x = torch.randint(-3, 4, (ranks, rows, 128), generator=generator).half()
    products = torch.randint(-3, 4, (ranks, 104, 128), generator=generator).half()
    bias = torch.arange(104).half() if rank == 0 else None
    exact = torch.einsum("rtk,rnk->tn", x.float(), products.float()) + torch.arange(104)
    dtype = (torch.float32, torch.float16)[turn // 2 % 2]
    residual = torch.randint(-9, 9, (rows, 104), generator=generator).to(dtype)
    rank_sum.ONE_TRIP_BYTES[ranks] = (1 << 20, 0)[turn // 2 % 2]
    sent = turn != 4
    send = memory if sent else None
    if rows < 3:
        part = gemv.gemv(x[rank], products[rank], bias, send=send)
        alone = gemv.gemv(x[rank], products[rank], bias)
    else:
        given = x[rank], products[rank], bias, workspace, cuts[turn % 3]
        part = skinny_gemm.multiply(*given, send=send)
        alone = skinny_gemm.multiply(*given)
    assert torch.equal(part, alone), turn
    kept, expected = summed_and_normed(exact[None], residual)
    out = rank_sum.sum_add_rms_norm(memory, residual, part, weight, 1e-6, torch.float32, sent=sent)
    assert torch.equal(residual, kept), turn
    assert torch.equal(out, expected), turn
"""

GATHERS = """
sizes = [(1, 8, 8 * ranks), (3, 40, 40 * ranks - 7), (8, 32, 32 * ranks), (2, 8, 9)]
for turn, (rows, each, columns) in enumerate(sizes):
    parts = torch.randn(ranks, rows, each, generator=generator)
    maps[rank].view(torch.float32)[: rows * each] = parts[rank].flatten()
    out = rank_gather.gather_columns(memory, each, torch.zeros(rows, columns))
    assert torch.equal(out, torch.cat(list(parts), dim=1)[:, :columns]), turn
    assert memory.turn.tolist() == [turn + 2, 0]
"""

SAMPLES = """
sizes = [(3, 8192, 8192 * ranks - 100), (2, 64, 64 * ranks), (1, 4160, 4160 * ranks - 4100), (3, 8192, 8192 * ranks)]
for turn, (rows, each, vocab) in enumerate(sizes):
    logits = 4 * torch.randn(rows, each * ranks, generator=generator)
    logits[0, min(vocab, each + 3) - 1] = 30.0
    if turn == 3:
        logits[0, each + 5] = torch.nan
        logits[1] = float("-inf")
    temperature = torch.tensor([0.0, 0.7, 1.3])[:rows]
    u = torch.rand(rows, dtype=torch.float64, generator=generator)
    part = maps[rank].view(torch.float32)[: rows * each].view(rows, each)
    part.copy_(logits[:, rank * each : (rank + 1) * each])
    assert rank_sampling.supports(rows, each, ranks)
    own = sampling.SampleWorkspace(8, vocab, "cpu")
    found = rank_sampling.fused_sample(samples, memory.addresses, part, vocab, temperature, u, own)
    whole = sampling.fused_sample(logits[:, :vocab], temperature, u)
    for ours, theirs in zip(found, whole):
        assert torch.equal(ours.nan_to_num(-1.0), theirs.nan_to_num(-1.0)), (turn, ours, theirs)
    dist.barrier()  # as the sums of a step: nobody overwrites what another still reads
assert not rank_sampling.supports(1025, 64, ranks)
assert not rank_sampling.supports(1024, 65 * 4096, ranks)
"""

WORKS = """
from radixrt.distributed import one_shot
from radixrt.kernels.triton import rank_sum
one_shot.PART_BYTES[ranks] = 4096 * 4 * 5
rank_sum.ONE_TRIP_BYTES[ranks] = 4096 * 4 * 3
one_shot.GATHER_BYTES = 4096
size = one_shot.memory_bytes(ranks)
all_memory = mapped("c")
one_shot.clear(all_memory[rank], ranks)
dist.barrier()
made = one_shot.OneShot(rank, ranks, all_memory[rank], addresses(all_memory))
assert one_shot.works(made, rank, ranks, torch.device("cpu"))
assert made.gather_place(16, 64) is not None
assert made.gather_place(16, 65) is None
assert made.sample_place(1025, 1) is None
assert made.takes(torch.zeros(600, 4096), torch.zeros(600, 4096), torch.zeros(4096))
assert not made.takes(torch.zeros(6, 4097), torch.zeros(6, 4097), torch.zeros(4097))
assert not made.takes(torch.zeros(6, 16384), torch.zeros(6, 16384), torch.zeros(16384))
assert not made.takes(torch.zeros(7, 4096), torch.zeros(7, 4096).half(), torch.zeros(4096))
assert made.takes(torch.zeros(1, 4096), torch.zeros(1, 4096).half(), torch.zeros(4096))
"""

MODEL = """
from pathlib import Path
from radixrt.distributed import one_shot
from radixrt.distributed.parallel import TPGroup
from radixrt.models.loading.weights import load_model
from radixrt.kernels.triton import gemv, rank_sum
from radixrt.layers.cuda_ops import CudaOps
from radixrt.models.model_config import load_model_spec
from tests.models.dense_attention import run_in_steps
from tests.models.test_decoder import sequences
from tests.tiny_models import make_tiny_model
one_shot.PART_BYTES[ranks] = 64 * 4 * 8
rank_sum.ONE_TRIP_BYTES[ranks] = 64 * 4 * 2
one_shot.GATHER_BYTES = 1 << 16
size = one_shot.memory_bytes(ranks)
all_memory = mapped("c")
one_shot.clear(all_memory[rank], ranks)
path = Path(folder) / "model"
if rank == 0:
    make_tiny_model(path)
dist.barrier()
class Group(TPGroup):
    def __init__(self):
        self.rank, self.size = rank, ranks
        self.one_shot = one_shot.OneShot(rank, ranks, all_memory[rank], addresses(all_memory))
    def all_reduce(self, x):
        raise AssertionError("not a sum of one_shot's")
ways = []
def watched(*args, run=rank_sum.sum_add_rms_norm):
    ways.append((rank_sum.trips(args[0], *args[2].shape, 4), args[-1]))
    return run(*args)
rank_sum.sum_add_rms_norm = watched
spec = load_model_spec(path)
with torch.inference_mode():
    whole = load_model(path, spec, dtype="float32", device="cpu")
    split = load_model(path, spec, dtype="float32", device="cpu", ops=CudaOps(), group=Group())
    for given in ([each[:7] for each in sequences()], [sequences()[1][:3]]):
        for ours, theirs in zip(run_in_steps(split, given), run_in_steps(whole, given), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
assert set(ways) == {(trips, sent) for trips in (1, 2) for sent in (False, True)}, set(ways)
"""


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))


WORK = {
    "sums": SUMS, "two trips": TWO_TRIPS, "products": PRODUCTS, "gathers": GATHERS, "samples": SAMPLES,
    "one shot": WORKS, "model": MODEL,
}  # fmt: skip


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize(
    ("name", "ranks"), [*((name, ranks) for name in WORK for ranks in (2, 4)), ("sums", 8), ("two trips", 8)]
)
def test_ranks_that_wait_for_each_other(name: str, ranks: int, tmp_path: Path) -> None:
    import triton

    from radixrt.kernels.triton import rank_gather, rank_sampling, rank_sum

    if name == "products" and _version(triton.__version__) < (3, 7) and _version(np.__version__) >= (2, 3):
        pytest.skip("the interpreter of this Triton has no loops with this NumPy")
    part = 8 * 104 * 4
    size = max(
        *(each.memory_bytes(part, ranks) for each in (rank_sum, rank_gather)),
        rank_sampling.memory_bytes(ranks),
    )
    for path in (tmp_path / f"{letter}{rank}" for letter in "abc" for rank in range(ranks)):
        with open(path, "wb") as file:
            file.truncate(size)
    run_ranks(
        START + WORK[name], ranks, tmp_path, size, part,
        environment={
            "GLOO_SOCKET_IFNAME": "lo", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
        },
    )  # fmt: skip
