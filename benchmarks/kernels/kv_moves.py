"""Rates at which keys and values move: gather and scatter, the link between a device and host memory, files.

    python -m benchmarks.kernels.kv_moves [--device cpu] [--shape smollm2 0.6b 8b] [--files FOLDER] [--moves 32]

GB/s of moves of 16 MiB each, between scattered slots and consecutive places, beside the rate of the link alone: one
copy of 16 MiB between pinned memory and the device, or on a CPU from memory to memory. "out", "in" and "both ways" are
whole moves through `PoolCopies`, as the part `tiers` makes them, at most as many at once as the scheduler orders. With
"beside steps" they share the device with GEMMs; the last column says how much of their speed without moves these keep.
On a CPU, copies are timed in processor time, so that other work on the machine counts little. All rates are medians.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.common.cuda_timing import graph_us
from benchmarks.common.machine import facts
from benchmarks.common.tables import table
from radixrt.attention.base import AttentionLayer
from radixrt.attention.kv_cache import KVCache
from radixrt.memory_file import MemoryFile
from radixrt.messages.kv_moves import KEY_BYTES, MAX_MOVES, MAX_RECEIVING_ON_DEVICE, MOVE_BYTES, KVLoad, KVSave
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.parts.tiers.runner.arena import Arena
from radixrt.parts.tiers.runner.file_moves import FileMoves
from radixrt.parts.tiers.runner.page_file import PageFile
from radixrt.parts.tiers.runner.pool_copies import HostCopies, PoolCopies, pool_tensors
from radixrt.parts.tiers.runner.staging import CudaLink, CudaRows, StagedCopies

SHAPES = {"smollm2": (30, 3, 64), "0.6b": (28, 8, 128), "8b": (32, 8, 128)}
"""Layers, heads of keys and values, and their size."""
PAGE = 64
ROUNDS = 5
GEMM = 4096


class Rate(NamedTuple):
    what: str
    gb_s: float
    beside: float | None = None


class Bench:
    """A pool of twice the slots that all moves of a round need, and an arena.

    Attributes:
        move_bytes: bytes of a move.
    """

    def __init__(self, shape: tuple[int, int, int], device: torch.device, moves: int, folder: str) -> None:
        layers, heads, dim = shape
        row_bytes = 2 * layers * heads * dim * 2
        self.device, self.moves = device, moves
        self.tokens = max(MOVE_BYTES // row_bytes // PAGE, 1) * PAGE
        self.move_bytes = self.tokens * row_bytes
        places = moves * self.tokens
        specs = [AttentionLayer(i, heads, heads, dim, 1.0) for i in range(layers)]
        with torch.inference_mode():
            self.pool = KVCache(specs, 2 * places, 1, torch.bfloat16, device)
            for tensor in pool_tensors(self.pool):
                tensor.fill_(1)
        self._file = MemoryFile(os.path.join(folder, "arena"))
        self.arena = Arena(os.path.join(folder, "arena"), places + PAGE, row_bytes)
        self.arena.memory.fill_(1)
        slots = np.random.default_rng(0).permutation(2 * places).astype(np.int32) + 1
        self.slots = [slots[i * self.tokens : (i + 1) * self.tokens] for i in range(2 * moves)]
        self.places = [np.arange(self.tokens, dtype=np.int32) + PAGE + i * self.tokens for i in range(moves)]

    def close(self) -> None:
        self._file.close()
        del self.pool, self.arena

    def run(self, copies: PoolCopies, *, out: bool, into: bool, between: Callable[[], None] = lambda: None) -> float:
        """Return the seconds of all moves, at most as many at a time as the scheduler orders.

        Args:
            between: called after each poll.
        """
        started = time.perf_counter()
        sent, received, under_way = 0, 0, {True: 0, False: 0}
        most_out, most_in = (self.moves if out else 0), (self.moves if into else 0)
        while sent < most_out or received < most_in or any(under_way.values()):
            while sent < most_out and under_way[True] < MAX_MOVES:
                copies.out(sent, self.slots[sent], self.places[sent])
                sent, under_way[True] = sent + 1, under_way[True] + 1
            while received < most_in and under_way[False] < MAX_RECEIVING_ON_DEVICE:
                copies.into(received, self.places[received], self.slots[self.moves + received])
                received, under_way[False] = received + 1, under_way[False] + 1
            for ended in copies.poll():
                assert ended.seconds is not None, "a move has failed"
                under_way[ended.sends] -= 1
            between()
        return time.perf_counter() - started

    def rate(self, copies: PoolCopies, *, out: bool, into: bool) -> float:
        """Return GB/s of moves in one direction, or of both directions together."""
        total = self.move_bytes * self.moves * (out + into)
        return median(total / self.run(copies, out=out, into=into) for _ in range(ROUNDS)) / 1e9


def median_gb_s(num_bytes: int, call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the median rate of a call that ends when its bytes are copied."""
    call()
    rates = []
    for _ in range(3 * ROUNDS):
        started = clock()
        call()
        rates.append(num_bytes / (clock() - started))
    return median(rates) / 1e9


def host_rates(bench: Bench) -> Iterator[Rate]:
    source, target = (torch.ones(bench.move_bytes, dtype=torch.uint8) for _ in range(2))
    yield Rate("link: memory to memory", median_gb_s(bench.move_bytes, lambda: target.copy_(source), time.thread_time))
    copies = HostCopies(pool_tensors(bench.pool), bench.arena.rows)
    ascending = [np.arange(bench.tokens, dtype=np.int32) + 1 + i * bench.tokens for i in range(bench.moves)]
    for kind, slots in (("scattered", bench.slots[: bench.moves]), ("consecutive", ascending)):

        def out(slots: list[Int32Array] = slots) -> None:
            for move, places in enumerate(bench.places):
                copies.out(move, slots[move], places)

        def into(slots: list[Int32Array] = slots) -> None:
            for move, places in enumerate(bench.places):
                copies.into(move, places, slots[move])

        for name, call in (("out", out), ("in", into)):
            rate = median_gb_s(bench.move_bytes * bench.moves, call, time.thread_time)
            yield Rate(f"{name}, {kind} slots", rate)


def cuda_rates(bench: Bench) -> Iterator[Rate]:
    from radixrt.kernels.triton.pool_rows import PoolTensors, gather_rows, scatter_rows

    device, size = bench.device, bench.move_bytes
    tensors = pool_tensors(bench.pool)
    pool = PoolTensors(tensors)
    slots = torch.from_numpy(bench.slots[0]).to(device)
    piece = torch.empty(bench.tokens, pool.row_bytes, dtype=torch.uint8, device=device)
    yield Rate("gather", size / graph_us(lambda: gather_rows(pool, slots, piece), calls=20) / 1e3)
    yield Rate("scatter", size / graph_us(lambda: scatter_rows(pool, slots, piece), calls=20) / 1e3)
    pinned = torch.empty(piece.shape, dtype=torch.uint8, pin_memory=True)
    for name, target, source in (("to the host", pinned, piece), ("to the device", piece, pinned)):

        def copy(target: torch.Tensor = target, source: torch.Tensor = source) -> None:
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()

        yield Rate(f"link: {name}", median_gb_s(size, copy))

    rows = CudaRows(tensors)
    rows.compile_ahead()
    copies = StagedCopies(rows, CudaLink(bench.arena, device), PAGE, device)
    started = time.perf_counter()
    bench.run(copies, out=True, into=False)  # registers the arena
    yield Rate("out, first time: memory is registered", size * bench.moves / (time.perf_counter() - started) / 1e9)
    yield Rate("out", bench.rate(copies, out=True, into=False))
    yield Rate("in", bench.rate(copies, out=False, into=True))
    yield Rate("both ways", bench.rate(copies, out=True, into=True))
    for name, out, into in (("out", True, False), ("in", False, True), ("both ways", True, True)):
        yield beside_steps(bench, copies, name, out=out, into=into)
    copies.close()


def beside_steps(bench: Bench, copies: PoolCopies, name: str, *, out: bool, into: bool) -> Rate:
    """Move while the device computes steps of about 10 ms. At most two are launched ahead, as in the engine."""
    left, right = (torch.randn(GEMM, GEMM, device=bench.device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(left)
    ends: list[torch.cuda.Event] = []
    calls = 1

    def step() -> None:
        if len(ends) >= 2 and not ends[-2].query():
            return
        for _ in range(calls):
            torch.mm(left, right, out=product)
        ends.append(torch.cuda.Event(enable_timing=True))
        ends[-1].record()

    def step_ms() -> float:
        """Return the time of a step with everything that runs between steps, and forget the steps."""
        torch.cuda.synchronize()
        mean = ends[0].elapsed_time(ends[-1]) / (len(ends) - 1)
        ends.clear()
        return float(mean)

    def alone(count: int) -> float:
        while len(ends) < count:
            step()
        return step_ms()

    alone(10)
    calls = max(1, round(10 / alone(10)))
    before = alone(50)
    seconds = [bench.run(copies, out=out, into=into, between=step) for _ in range(ROUNDS)]
    gb_s = bench.move_bytes * bench.moves * (out + into) / median(seconds) / 1e9
    return Rate(f"{name}, beside steps", gb_s, before / step_ms())


def file_rates(bench: Bench, folder: str) -> Iterator[Rate]:
    page_bytes = bench.arena.rows.shape[1] * PAGE
    path = os.path.join(folder, "kv_moves.pages")
    file = PageFile(path, page_bytes, bytes(16))
    moves = FileMoves(file, bench.arena.memory.view(-1, page_bytes).numpy())
    count = bench.tokens // PAGE

    def run(make: Callable[[int, Int32Array], KVSave | KVLoad]) -> float:
        started = time.perf_counter()
        for move in range(bench.moves):
            moves.begin(make(move, np.arange(count, dtype=np.int32) + 1 + move * count), lambda: None)
        ended = 0
        while ended < bench.moves:
            for each in moves.poll():
                assert each.seconds is not None, "a move has failed"
                ended += 1
            time.sleep(0.001)
        return bench.move_bytes * bench.moves / (time.perf_counter() - started) / 1e9

    def save(move: int, pages: Int32Array) -> KVSave:
        return KVSave(move, pack_i32(pages), pack_i32(pages), bytes(count * KEY_BYTES))

    def load(move: int, pages: Int32Array) -> KVLoad:
        return KVLoad(move, pack_i32(pages), bytes(count * KEY_BYTES), pack_i32(pages))

    try:
        yield Rate("to the file", run(save))
        yield Rate("from the file, in the kernel's cache", median(run(load) for _ in range(3)))
        with open(path, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        yield Rate("from the file, from disk", run(load))
    finally:
        moves.close()
        os.unlink(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--shape", nargs="+", choices=[*SHAPES], default=[*SHAPES])
    parser.add_argument("--moves", type=int, default=32, help="moves of 16 MiB in a round")
    parser.add_argument("--files", type=Path, help="folder for the file; default: no file")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(facts(), torch.cuda.get_device_name() if args.device == "cuda" else "")
    lines = []
    for name in args.shape:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(SHAPES[name], torch.device(args.device), args.moves, folder)
            rates = list((host_rates if args.device == "cpu" else cuda_rates)(bench))
            if args.files is not None:
                rates += file_rates(bench, str(args.files))
            token = f"{bench.arena.rows.shape[1] / 1e3:.1f} kB"
            bench.close()
        links = [rate.gb_s for rate in rates if rate.what.startswith("link")]
        for what, gb_s, beside in rates:
            kept = "" if beside is None else f"{beside:.3f}"
            lines.append(
                (name, token, what, f"{gb_s:.1f}" if gb_s > 10 else f"{gb_s:.2f}", f"{gb_s / min(links):.2f}", kept)
            )
    print(table(["shape", "a token", "", "GB/s", "of the link", "steps"], lines))


if __name__ == "__main__":
    main()
