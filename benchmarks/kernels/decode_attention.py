"""Table "Decode attention" of docs/cuda.md: one layer on CUDA, by FlashInfer's kernels and by ours, by row lengths.

    python -m benchmarks.kernels.decode_attention [--shapes 8b 0.6b] [--fp8] [--sweep]

Each figure is the median of replays of a graph that holds a launch for each of several layers' pools, so that nothing
is left in the L2 cache and launching costs nothing. TB/s counts each key and value once. `--sweep` goes through sizes
of our kernel (positions of a block, warps, buffers, programs on a processor) instead of the one that is used. `--fp8`
has keys and values in float8.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch

from benchmarks.common import machine
from benchmarks.common.cuda_timing import graph_us
from benchmarks.common.tables import table
from radixrt.attention.decode_runner import DecodeRunner, Sizes
from radixrt.messages.wire import Int32Array

SHAPES = {
    "8b": (32, 8, 128), "0.6b": (16, 8, 128), "8b, tp 2": (16, 4, 128), "8b, tp 4": (8, 2, 128),
    "gpt-oss": (64, 8, 64),
}  # fmt: skip
"""Query heads, kv heads, head dim."""
LAYERS = 6
CASES: dict[str, Callable[[np.random.Generator], Any]] = {
    "1 row of 200": lambda r: np.full(1, 200),
    "4 rows of 320": lambda r: np.full(4, 320),
    "16 rows of 700": lambda r: np.full(16, 700),
    "64 rows of 640": lambda r: np.full(64, 640),
    "64 rows of 1500": lambda r: np.full(64, 1500),
    "256 rows of 500": lambda r: np.full(256, 500),
    "256 rows of 900": lambda r: np.full(256, 900),
    "256 rows of 160": lambda r: r.integers(129, 193, 256),
    "256 rows, 100 to 1400": lambda r: np.sort(r.integers(100, 1400, 256))[::-1],
    "96 rows, 700 to 1900": lambda r: np.sort(r.integers(700, 1900, 96))[::-1],
    "32 rows, 100 to 8000": lambda r: np.sort(r.integers(100, 8000, 32))[::-1],
    "1 row of 32000": lambda r: np.full(1, 32000),
}
POOL = 300_000


SWEEP = [
    Sizes(block, num_warps, 2 * buffers + 1, programs)
    for block, num_warps, buffers, programs in (
        (16, 1, 2, 9), (16, 1, 3, 6), (32, 1, 1, 8), (32, 1, 2, 4), (32, 1, 2, 5), (32, 1, 3, 3), (32, 1, 4, 3),
        (32, 2, 2, 4), (64, 2, 1, 4), (64, 2, 2, 3), (64, 4, 1, 5), (64, 4, 2, 3), (64, 4, 3, 2), (128, 4, 1, 3),
    )
]  # fmt: skip
FP8_SWEEP = [Sizes(block, 1, 1, programs) for block, programs in ((16, 8), (16, 10), (16, 12), (32, 6), (32, 8))]


class Pools:
    """Keys and values of several layers, and a table whose rows have slots from all over them."""

    def __init__(self, shape: tuple[int, int, int], lens: Int32Array, dtype: torch.dtype = torch.bfloat16) -> None:
        heads, kv_heads, dim = shape
        self.shape, self.lens, self.dtype = shape, lens.astype(np.int32), dtype
        make = torch.Generator("cuda").manual_seed(0)
        pool = torch.randn(POOL, kv_heads, dim, device="cuda", generator=make).bfloat16().to(dtype)
        self.layers = [(pool.clone(), pool.clone()) for _ in range(LAYERS)]
        self.q = torch.randn(len(lens), heads, dim, device="cuda", generator=make).bfloat16()
        slots = torch.randperm(POOL - 1, device="cuda", generator=make)[: int(lens.sum())].to(torch.int32) + 1
        self.table = torch.zeros(len(lens), int(lens.max()), dtype=torch.int32, device="cuda")
        first = 0
        for row, length in enumerate(self.lens.tolist()):
            self.table[row, :length] = slots[first : first + length]
            first += length
        self.rows = torch.arange(len(lens), device="cuda")

    @property
    def layer_bytes(self) -> int:
        return int(self.lens.sum()) * 2 * self.shape[1] * self.shape[2] * self.dtype.itemsize


def ours(pools: Pools, sizes: Sizes | None = None) -> tuple[Callable[[], None], torch.Tensor]:
    """Something that runs all layers, and where the last one's output is then."""
    heads, kv_heads, dim = pools.shape
    runner = DecodeRunner(
        num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, max_rows=len(pools.lens), kv_dtype=pools.dtype,
        device=torch.device("cuda"), dependent_launch=True, sizes=sizes,
    )  # fmt: skip
    ends = torch.from_numpy(pools.lens.astype(np.int64)).cuda()
    rows = runner.listed(pools.rows, np.zeros_like(pools.lens), ends, pools.lens, pools.table)
    out = torch.empty_like(pools.q)

    def run() -> None:
        for pool in pools.layers:
            runner.attend(pools.q, pool, rows, dim**-0.5, out)

    return run, out


def flashinfer_s(pools: Pools, tensor_cores: bool) -> tuple[Callable[[], None], torch.Tensor]:
    import flashinfer

    heads, kv_heads, dim = pools.shape
    workspace = torch.zeros(384 * 2**20, dtype=torch.uint8, device="cuda")
    indptr = torch.zeros(len(pools.lens) + 1, dtype=torch.int32)
    indptr[1:] = torch.from_numpy(pools.lens).cumsum(0)
    indices = torch.cat([pools.table[i, :n] for i, n in enumerate(pools.lens.tolist())])
    ones = torch.ones(len(pools.lens), dtype=torch.int32)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace, "NHD", use_cuda_graph=True, use_tensor_cores=tensor_cores, paged_kv_indptr_buffer=indptr.cuda(),
        paged_kv_indices_buffer=indices, paged_kv_last_page_len_buffer=ones.cuda(),
    )  # fmt: skip
    wrapper.plan(indptr, indices, ones, heads, kv_heads, dim, 1, q_data_type=torch.bfloat16, kv_data_type=pools.dtype)
    out = torch.empty_like(pools.q)

    def run() -> None:
        for k, v in pools.layers:
            wrapper.run(pools.q, (k.unsqueeze(1), v.unsqueeze(1)), out=out)

    return run, out


def compile_one(sizes: Sizes, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Compile in a process of its own, which leaves the kernels in Triton's cache on disk."""
    global LAYERS, POOL
    LAYERS, POOL = 1, 4096
    run, _ = ours(Pools(shape, np.full(3, 100), dtype), sizes)
    run()
    torch.cuda.synchronize()


def columns(shape: tuple[int, int, int], sweep: list[Sizes]) -> Iterator[tuple[str, Callable[[Pools], Any]]]:
    group = shape[0] // shape[1]
    yield "FlashInfer", lambda pools: flashinfer_s(pools, group >= 4)
    if not sweep:
        yield "ours", ours
    for sizes in sweep:
        name = f"{sizes.block}/{sizes.num_warps}w/{sizes.num_stages // 2}b/{sizes.programs}p"
        yield name, partial(ours, sizes=sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=["8b", "0.6b"])
    parser.add_argument("--fp8", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    args = parser.parse_args()
    dtype = torch.float8_e4m3fn if args.fp8 else torch.bfloat16
    sweep = [] if not args.sweep else FP8_SWEEP if args.fp8 else SWEEP
    for name, value in machine.facts().items():
        print(f"{name}: {value}")
    if sweep:
        with ProcessPoolExecutor(14, mp_context=get_context("spawn")) as pool:
            jobs = [pool.submit(compile_one, sizes, SHAPES[name], dtype) for name in args.shapes for sizes in sweep]
            failed = [job.exception() for job in jobs if job.exception() is not None]
        print("failed to compile:", failed, flush=True)
    for name in args.shapes:
        rows: list[list[str]] = []
        headings: list[str] = []
        for case, make in CASES.items():
            pools = Pools(SHAPES[name], np.asarray(make(np.random.default_rng(0)), np.int32), dtype)
            cells, reference = [], None
            headings = []
            for heading, build in columns(SHAPES[name], sweep):
                headings.append(heading)
                try:
                    run, out = build(pools)
                    us = graph_us(run) / LAYERS
                except Exception as error:
                    cells.append(type(error).__name__)
                    continue
                reference = out.clone() if reference is None else reference
                wrong = (out - reference).abs().max().item() > 0.02
                cells.append(f"{us:.1f} {pools.layer_bytes / us / 1e6:.2f}{' wrong' if wrong else ''}")
            rows.append([case, *cells])
            print(name, case, dict(zip(headings, cells, strict=True)), flush=True)
        print(table([f"{name}: µs, TB/s", *headings], rows))


if __name__ == "__main__":
    main()
