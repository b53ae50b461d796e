"""Cases of `test_triton_tensor_parallel`, each run by every rank of a group of processes that map each other's memory.

`main` runs several cases one after the other, because starting a process costs more than most cases.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

HIDDEN = 104
PART_BYTES = 4 * HIDDEN * 4


class World:
    """One rank's view of the group.

    Attributes:
        folder: common to all ranks; `model` in it holds a tiny model.
    """

    def __init__(self, rank: int, ranks: int, folder: Path) -> None:
        self.rank, self.ranks, self.folder = rank, ranks, folder
        self._names = itertools.count()
        self._mapped: list[torch.Tensor] = []  # kernels know addresses alone
        self.generator = torch.Generator().manual_seed(5)
        self.weight = 1 + torch.rand(HIDDEN, generator=self.generator)

    def map(self, size: int) -> list[torch.Tensor]:
        """Map new memory of every rank, zeros: uint8 [size] each."""
        name = next(self._names)
        with open(self.folder / f"{name}-{self.rank}", "wb") as file:
            file.truncate(size)
        dist.barrier()
        paths = (str(self.folder / f"{name}-{rank}") for rank in range(self.ranks))
        maps = [torch.from_file(path, shared=True, size=size, dtype=torch.uint8) for path in paths]
        self._mapped += maps
        return maps

    def symmetric_memory(self, maps: list[torch.Tensor], part_bytes: int = PART_BYTES) -> Any:
        from radixrt.kernels.triton.symmetric_memory import SymmetricMemory

        return SymmetricMemory(addresses(maps), self.rank, part_bytes)

    def all_reduce_memory(self) -> Any:
        """Memory of an all-reduce, all sentinels before any rank sends."""
        from radixrt.kernels.triton import all_reduce
        from radixrt.kernels.triton.symmetric_memory import fill_with_sentinels

        maps = self.map(all_reduce.memory_bytes(PART_BYTES, self.ranks))
        fill_with_sentinels(maps[self.rank])
        dist.barrier()
        return self.symmetric_memory(maps)

    def reference(self, addends: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual stream and the output that an all-reduce of the addends must leave."""
        from radixrt.kernels.triton import norm

        kept, summed = residual.clone(), torch.zeros(residual.shape)
        for each in addends.float():
            summed += each
        return kept, norm.add_rms_norm(kept, summed, self.weight, 1e-6, torch.float32)


def addresses(maps: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([each.data_ptr() for each in maps])


def sentinel(dtype: torch.dtype) -> torch.Tensor:
    """The bytes of a sentinel as wide as the dtype."""
    from radixrt.kernels.triton.symmetric_memory import fill_with_sentinels

    found = torch.empty(4, dtype=torch.uint8)
    fill_with_sentinels(found)
    return found[: dtype.itemsize]


def one_shot(world: World) -> None:
    """Both dtypes in both halves of the memory, and the fullest launch of each; each half is reused after either dtype,
    except by ranks that are many more than cores."""
    from radixrt.kernels.triton import all_reduce

    ranks, memory = world.ranks, world.all_reduce_memory()
    all_reduce.ONE_SHOT_BYTES[ranks] = 1 << 20
    for epoch, rows in enumerate((1, 4, 2, 1, 1, 2, 4, 1)[: 8 if ranks < 8 else 4]):
        dtype = (torch.float32, torch.bfloat16)[epoch // 2 % 2]
        addends = torch.randn(ranks, rows, HIDDEN, generator=world.generator).to(dtype)
        addends[:, :, 3:5] = 0.0
        addends[0].view(torch.uint8)[:, 3 * dtype.itemsize : 4 * dtype.itemsize] = sentinel(dtype)
        addends[-1, :, 4] = -0.0
        residual = torch.randn(rows, HIDDEN, generator=world.generator)
        assert rows <= all_reduce.rows_per_launch(memory, rows, HIDDEN, dtype.itemsize)
        kept, expected = world.reference(addends, residual)
        args = memory, residual, addends[world.rank], world.weight, 1e-6, torch.float32
        out = all_reduce.all_reduce_add_rms_norm(*args)
        assert torch.equal(residual, kept), epoch
        assert torch.equal(out, expected), epoch
        assert memory.epoch.tolist() == [epoch + 2, 0]
    assert all_reduce.rows_per_launch(memory, 5, HIDDEN, 4) == 4
    assert all_reduce.rows_per_launch(memory, 4, HIDDEN - 1, 4) == 0


def two_shot(world: World) -> None:
    """The same two-shot, with one-shot launches between, sums of several launches, and fewer rows than ranks."""
    from radixrt.kernels.triton import all_reduce

    ranks, memory = world.ranks, world.all_reduce_memory()
    all_reduce.ONE_SHOT_BYTES[ranks] = 2 * HIDDEN * 2
    launches = 0
    for case, rows in enumerate((ranks, 1, 4, 3, 9, 2, 4, 3)[: 8 if ranks < 8 else 4]):
        dtype = (torch.float32, torch.bfloat16)[case // 2 % 2]
        size = dtype.itemsize
        addends = (4 * torch.randn(ranks, rows, HIDDEN, generator=world.generator)).round().to(dtype)
        residual = (4 * torch.randn(rows, HIDDEN, generator=world.generator)).round().to(dtype)
        residual[0] = 0
        addends[:, 0, 3:5] = 0.0
        addends[0].view(torch.uint8)[0, 3 * size : 4 * size] = sentinel(dtype)
        residual.view(torch.uint8)[0, 4 * size : 5 * size] = sentinel(dtype)
        assert all_reduce.num_shots(memory, rows, HIDDEN, size) == (1 if rows * size <= 4 else 2)
        launches += -(-rows // all_reduce.rows_per_launch(memory, rows, HIDDEN, size))
        without_sentinels = residual.clone()
        without_sentinels[0, 4] = 0
        kept, expected = world.reference(addends, without_sentinels)
        args = memory, residual, addends[world.rank], world.weight, 1e-6, torch.float32
        out = all_reduce.all_reduce_add_rms_norm(*args)
        residual[0, 3:5] += 1
        kept[0, 3:5] += 1  # one-shot, a negligible number may stay
        assert torch.equal(residual, kept), case
        torch.testing.assert_close(out, expected)
        assert memory.epoch.tolist() == [launches + 1, 0]
    assert launches > 8 or ranks == 8
    assert all_reduce.rows_per_launch(memory, 1, 4 * HIDDEN + 1, 4) == 0


def gemms(world: World) -> None:
    """Addends that the GEMM kernels send, of every kernel and tiling, one-shot and two-shot, and one not sent."""
    from radixrt.kernels.triton import all_reduce, gemv, skinny_gemm
    from radixrt.kernels.triton.skinny_gemm_config import Config

    rank, ranks, memory, generator = world.rank, world.ranks, world.all_reduce_memory(), world.generator
    workspace = skinny_gemm.Workspace("cpu")
    tilings = (Config(16, 64, 1, 2, 4), Config(64, 64, 2, 2, 4, True), Config(32, 64, 1, 3, 4, False, True))
    for epoch, rows in enumerate((1, 2, 8, 5, 4, 3, 1)):
        x = torch.randint(-3, 4, (ranks, rows, 128), generator=generator).half()
        weights = torch.randint(-3, 4, (ranks, HIDDEN, 128), generator=generator).half()
        bias = torch.arange(HIDDEN).half() if rank == 0 else None
        exact = torch.einsum("rtk,rnk->tn", x.float(), weights.float()) + torch.arange(HIDDEN)
        dtype = (torch.float32, torch.float16)[epoch // 2 % 2]
        residual = torch.randint(-9, 9, (rows, HIDDEN), generator=generator).to(dtype)
        all_reduce.ONE_SHOT_BYTES[ranks] = (1 << 20, 0)[epoch // 2 % 2]
        sent = epoch != 4
        send = memory if sent else None
        if rows < 3:
            addend = gemv.gemv(x[rank], weights[rank], bias, send=send)
            alone = gemv.gemv(x[rank], weights[rank], bias)
        else:
            given = x[rank], weights[rank], bias, workspace, tilings[epoch % 3]
            addend = skinny_gemm.multiply(*given, send=send)
            alone = skinny_gemm.multiply(*given)
        assert torch.equal(addend, alone), epoch
        kept, expected = world.reference(exact[None], residual)
        args = memory, residual, addend, world.weight, 1e-6, torch.float32
        out = all_reduce.all_reduce_add_rms_norm(*args, sent=sent)
        assert torch.equal(residual, kept), epoch
        assert torch.equal(out, expected), epoch


def all_gathers(world: World) -> None:
    from radixrt.kernels.triton import all_gather

    ranks, maps = world.ranks, world.map(all_gather.memory_bytes(PART_BYTES, world.ranks))
    memory = world.symmetric_memory(maps)
    sizes = [(1, 8, 8 * ranks), (3, 40, 40 * ranks - 7), (8, 32, 32 * ranks), (2, 8, 9)]
    for epoch, (rows, each, columns) in enumerate(sizes):
        shards = torch.randn(ranks, rows, each, generator=world.generator)
        maps[world.rank].view(torch.float32)[: rows * each] = shards[world.rank].flatten()
        out = all_gather.all_gather_columns(memory, each, torch.zeros(rows, columns))
        assert torch.equal(out, torch.cat(list(shards), dim=1)[:, :columns]), epoch
        assert memory.epoch.tolist() == [epoch + 2, 0]


def samples(world: World) -> None:
    from radixrt.kernels.triton import sampling, sharded_sampling

    rank, ranks, generator = world.rank, world.ranks, world.generator
    maps = world.map(4 * 3 * 8192)
    memory = world.symmetric_memory(world.map(sharded_sampling.memory_bytes(ranks)), 0)
    sizes = [
        (3, 8192, 8192 * ranks - 100),
        (2, 64, 64 * ranks),
        (1, 4160, 4160 * ranks - 4100),
        (3, 8192, 8192 * ranks),
    ]
    for case, (rows, each, vocab) in enumerate(sizes):
        logits = 4 * torch.randn(rows, each * ranks, generator=generator)
        logits[0, min(vocab, each + 3) - 1] = 30.0
        if case == 3:
            logits[0, each + 5] = torch.nan
            logits[1] = float("-inf")
        temperature = torch.tensor([0.0, 0.7, 1.3])[:rows]
        u = torch.rand(rows, dtype=torch.float64, generator=generator)
        shard = maps[rank].view(torch.float32)[: rows * each].view(rows, each)
        shard.copy_(logits[:, rank * each : (rank + 1) * each])
        assert sharded_sampling.supports(rows, each, ranks)
        own = sampling.SampleWorkspace(8, vocab, "cpu")
        found = sharded_sampling.fused_sample(memory, addresses(maps), shard, vocab, temperature, u, own)
        whole = sampling.fused_sample(logits[:, :vocab], temperature, u)
        for ours, theirs in zip(found, whole, strict=True):
            assert torch.equal(ours.nan_to_num(-1.0), theirs.nan_to_num(-1.0)), (case, ours, theirs)
        dist.barrier()  # as the all-reduces of a step: no rank overwrites what another still reads
    assert not sharded_sampling.supports(1025, 64, ranks)
    assert not sharded_sampling.supports(1024, 65 * 4096, ranks)


def self_test(world: World) -> None:
    from radixrt.distributed import device_communicator
    from radixrt.kernels.triton import all_reduce

    rank, ranks = world.rank, world.ranks
    device_communicator.PART_BYTES[ranks] = 4096 * 4 * 5
    all_reduce.ONE_SHOT_BYTES[ranks] = 4096 * 4 * 3
    device_communicator.GATHER_BYTES = 4096
    maps = world.map(device_communicator.memory_bytes(ranks))
    device_communicator.initialize(maps[rank], ranks)
    dist.barrier()
    made = device_communicator.DeviceCommunicator(rank, ranks, maps[rank], addresses(maps))
    # 1 and 3 rows are reduced one-shot, 12 two-shot, in float32 in several launches.
    assert device_communicator.self_test(made, rank, ranks, torch.device("cpu"), all_rows=(1, 3, 12))
    assert made.gather_buffer(16, 64) is not None
    assert made.gather_buffer(16, 65) is None
    assert made.sample_buffer(1025, 1) is None
    assert made.supports(torch.zeros(600, 4096), torch.zeros(600, 4096), torch.zeros(4096))
    assert not made.supports(torch.zeros(6, 4097), torch.zeros(6, 4097), torch.zeros(4097))
    assert not made.supports(torch.zeros(6, 16384), torch.zeros(6, 16384), torch.zeros(16384))
    assert not made.supports(torch.zeros(7, 4096), torch.zeros(7, 4096).half(), torch.zeros(4096))
    assert made.supports(torch.zeros(1, 4096), torch.zeros(1, 4096).half(), torch.zeros(4096))


def model(world: World) -> None:
    """A model of one layer: one-shot and two-shot all-reduces, sent by the GEMM and not."""
    from radixrt.distributed import device_communicator
    from radixrt.distributed.parallel import TPGroup
    from radixrt.kernels.triton import all_reduce
    from radixrt.layers.cuda_ops import CudaOps
    from radixrt.models.loading.weights import load_model
    from radixrt.models.model_config import load_model_spec
    from tests.models.dense_attention import run_in_steps

    ranks = world.ranks
    device_communicator.PART_BYTES[ranks] = 64 * 4 * 4
    all_reduce.ONE_SHOT_BYTES[ranks] = 64 * 4 * 2
    device_communicator.GATHER_BYTES = 1 << 16
    maps = world.map(device_communicator.memory_bytes(ranks))
    device_communicator.initialize(maps[world.rank], ranks)
    dist.barrier()

    class Group(TPGroup):
        def __init__(self) -> None:
            self.rank, self.size = world.rank, ranks
            own = maps[world.rank]
            self.communicator = device_communicator.DeviceCommunicator(world.rank, ranks, own, addresses(maps))

        def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError("an all-reduce that the communicator does not support")

    ways = []
    run = all_reduce.all_reduce_add_rms_norm

    def watched(*args: Any) -> torch.Tensor:
        ways.append((all_reduce.num_shots(args[0], len(args[2]), args[2].shape[1], 4), args[-1]))
        return run(*args)

    all_reduce.all_reduce_add_rms_norm = watched  # type: ignore[assignment]
    path = world.folder / "model"
    spec = load_model_spec(path)
    with torch.inference_mode():
        whole = load_model(path, spec, dtype="float32", device="cpu")
        split = load_model(path, spec, dtype="float32", device="cpu", ops=CudaOps(), group=Group())
        # Steps of 3, 5, and 3 tokens, then of 1; 5 are more than one launch of two ranks reduces.
        for given in ([[7, 8, 9], [10, 3, 4], [5, 6, 7, 8, 9]], [[11, 12, 13]]):
            for ours, theirs in zip(run_in_steps(split, given), run_in_steps(whole, given), strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    assert set(ways) == {(shots, sent) for shots in (1, 2) for sent in (False, True)}, set(ways)


CASES: dict[str, Callable[[World], None]] = {
    "one-shot": one_shot, "two-shot": two_shot, "gemms": gemms, "all-gathers": all_gathers, "samples": samples,
    "self-test": self_test, "model": model,
}  # fmt: skip


def yield_when_waiting() -> None:
    """Let the interpreter yield the processor at each load and atomic: ranks that poll would starve the others."""
    from triton.runtime.interpreter import InterpreterBuilder

    def yielding(run: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            os.sched_yield()
            return run(*args, **kwargs)

        return wrapped

    for name in ("create_masked_load", "create_atomic_rmw"):
        setattr(InterpreterBuilder, name, yielding(getattr(InterpreterBuilder, name)))


def patch_quickly() -> None:
    """Let the interpreter search Triton's modules once for what it patches.

    It does so for every program and every function that this calls, which takes a third of its time.
    """
    from triton.language.core import is_builtin
    from triton.runtime import interpreter

    @functools.cache
    def builtins_of(patched: Any) -> list[tuple[str, Any]]:
        return [(name, member) for name, member in inspect.getmembers(patched) if is_builtin(member)]

    def members_to_patch(patched: Any) -> list[tuple[str, Any]]:
        return [(name, member) for name, member in builtins_of(patched) if getattr(patched, name) is member]

    interpreter.inspect = ModuleType("inspect")
    vars(interpreter.inspect).update(vars(inspect), getmembers=members_to_patch)


def run_rank(rank: int, ranks: int, folder: Path, names: list[str]) -> None:
    """Run the cases, and list those that passed in a file."""
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), ranks), rank=rank, world_size=ranks)  # type: ignore[attr-defined]
    for name in names:
        CASES[name](World(rank, ranks, folder / name))
        dist.barrier()
        with (folder / f"passed-{rank}").open("a", encoding="utf-8") as file:
            print(name, file=file)


def main() -> None:
    """Run groups of cases, one group after the other, by ranks that are forked once everything is imported.

    Arguments: a folder, in which each group has one by its number of ranks; for each group the number, a colon, and the
    names of its cases between commas.
    """
    from radixrt.kernels.triton import all_gather, all_reduce, gemv, sharded_sampling, skinny_gemm  # noqa: F401
    from radixrt.layers import cuda_ops  # noqa: F401
    from radixrt.models.loading import weights  # noqa: F401

    yield_when_waiting()
    patch_quickly()
    for group in sys.argv[2:]:
        ranks, _, names = group.partition(":")
        run_group(int(ranks), Path(sys.argv[1]) / ranks, names.split(","))


def run_group(ranks: int, folder: Path, names: list[str]) -> None:
    """Run cases by forked ranks; once one fails, the others are killed."""
    started = []
    for rank in range(ranks):
        if not (child := os.fork()):
            try:
                run_rank(rank, ranks, folder, names)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        started.append(child)
    while started:
        child, status = os.wait()
        started.remove(child)
        if status:
            for other in started:
                os.kill(other, signal.SIGKILL)
            print(f"one of {ranks} ranks ended with wait status {status}", file=sys.stderr)
