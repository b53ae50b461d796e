"""Search for the entries of `radixrt/kernels/triton/skinny_gemm_config.py`: times many tilings of a GEMM on this GPU.

    python -m benchmarks.kernels.skinny_gemm_tuning --shape llama-3.1-8b --ranks 2 [--tokens 16 32 64 128] [--only down]

For each weight of a layer and number of tokens: microseconds of cuBLAS (with our silu for gate and up), of the best
tiling, of the one in `skinny_gemm_config`, and the best as an entry of that table. A tiling is worth an entry where it
beats cuBLAS by more than the runs differ. Calls are captured in one graph and cycle through copies of the weight, so
that each is read from memory. All tilings are compiled first, by as many processes as there are cores.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median

import torch

from benchmarks.common import machine
from benchmarks.common.cuda_timing import graph_us
from benchmarks.common.tables import table
from benchmarks.kernels.small_kernels import SHAPES, batch, by_cublas, copies_of_weight, matrices, random
from radixrt.kernels.triton import skinny_gemm
from radixrt.kernels.triton.skinny_gemm_config import MAX_PARTS, MAX_TILES, Config, find_config, padded_tokens
from radixrt.layers.cuda_ops import CudaOps

SHARED_BYTES = 227 * 1024
"""Upper bound of the shared memory of one program."""
SHAPE_NAMES = {"qwen3-0.6b": SHAPES[0], "llama-3.1-8b": SHAPES[1]}
MIN_PROGRAMS, MAX_PROGRAMS = 64, 600
"""Fewer leave most of 132 processors idle; more read the tokens too often."""
CALLS = 16


def cuts(tokens: int, rows: int, columns: int, *, gated: bool) -> Iterator[Config]:
    """Candidate tilings of a GEMM; `rows` are those of the result, half of a gated weight's."""
    width = padded_tokens(tokens)
    for tile, step, splits, first, bulk in itertools.product(
        (16, 32, 64, 128), (128, 256), (1, 2, 4, 8), (False, True), (False, True)
    ):
        programs = -(-rows // tile) * splits
        if not MIN_PROGRAMS <= programs <= MAX_PROGRAMS or columns // splits < 2 * step:
            continue
        # The tensor cores' tiles have 64 rows at least, of the weight or of tokens; others are padding.
        if (width if first else tile) < 64 and (first or width > 32):
            continue
        sums = tile * width * (1 + gated)
        if splits > 1 and (programs > MAX_TILES or programs * sums > MAX_PARTS):
            continue
        most = min(8, SHARED_BYTES // (2 * step * (tile * (1 + gated) + width)))
        if most < 2 or sums > 128 * 256:
            continue
        for stages in sorted({most, min(4, most)}):
            yield Config(tile, step, splits, stages, 8 if sums > 128 * 64 else 4, first, bulk)


def compile_cuts(tokens: int, wanted: Sequence[Config], gated: bool) -> None:
    """Run each tiling once, on a small weight: the compiled kernel does not depend on the size of the weight."""
    workspace = skinny_gemm.Workspace("cuda")
    for cut in wanted:
        columns = 2 * cut.step * cut.splits
        x, weight = random(tokens, columns), random(2 * cut.rows if gated else cut.rows, columns)
        try:
            skinny_gemm.multiply(x, weight, None, workspace, cut, gated=gated, early=True)
        except Exception:  # exceeds a limit of this GPU; it is excluded again below
            continue
    torch.cuda.synchronize()


def measure(ours: CudaOps, tokens: int, rows: int, columns: int, gated: bool) -> list[str]:
    """Cells of the GEMM with a weight of `rows` x `columns`."""
    weights, x = copies_of_weight(rows, columns), batch(tokens, columns)
    turn = itertools.cycle(weights)
    calls, with_cublas = max(CALLS, len(weights)), by_cublas(ours)
    cublas = graph_us(lambda: with_cublas(x, next(turn), gated, True), calls=calls)
    workspace = skinny_gemm.Workspace("cuda")

    def timed(cut: Config) -> float:
        def run() -> torch.Tensor:
            return skinny_gemm.multiply(x, next(turn), None, workspace, cut, gated=gated, early=True)

        return graph_us(run, calls=calls, replays=5)

    found: list[tuple[float, Config]] = []
    for cut in cuts(tokens, rows // 2 if gated else rows, columns, gated=gated):
        try:
            found.append((timed(cut), cut))
        except Exception:  # as in compile_cuts
            workspace = skinny_gemm.Workspace("cuda")
    found.sort()
    finalists: list[tuple[float, Config | None]] = [
        (median(timed(each) for _ in range(3)), each) for _, each in found[:5]
    ]
    best, winner = min(finalists, default=(math.inf, None), key=lambda each: each[0])
    has = find_config(tokens, rows, columns, gated=gated)
    now = "cuBLAS" if has is None else f"{timed(has):.1f}"
    return [
        f"{rows} x {columns}",
        str(padded_tokens(tokens)),
        f"{cublas:.1f}",
        f"{best:.1f}",
        now,
        "none" if winner is None else _written(winner),
    ]


def _written(cut: Config) -> str:
    return f"Config({', '.join(map(str, cut))})"


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPE_NAMES), default="llama-3.1-8b")
    parser.add_argument("--ranks", type=int, default=1, help="GPUs that share the weights")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--only", default=None, metavar="NAME", help="weights with this in their name")
    args = parser.parse_args()
    for name, value in (machine.facts() | {"torch": torch.__version__}).items():
        print(f"{name}: {value}")
    products = [
        (name, rows, columns, "silu" in name)
        for name, rows, columns in matrices(SHAPE_NAMES[args.shape], args.ranks)
        if name != "gate and up" and (args.only is None or args.only in name)
    ]
    workers = max(1, len(os.sched_getaffinity(0)) - 2)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = []
        for tokens in args.tokens:
            for gated in sorted({each[3] for each in products}):
                wanted = {
                    cut
                    for _, rows, columns, is_gated in products
                    if is_gated == gated
                    for cut in cuts(tokens, rows // 2 if gated else rows, columns, gated=gated)
                }
                order = sorted(wanted)
                each = -(-len(order) // workers)
                jobs += [
                    pool.submit(compile_cuts, tokens, order[at : at + each], gated) for at in range(0, len(order), each)
                ]
        for job in jobs:
            job.result()
    ours = CudaOps(early=True)
    header = ["weight", "rows x columns", "tokens", "cuBLAS µs", "best", "now", "cut"]
    for name, rows, columns, gated in products:
        found = [[name, *measure(ours, tokens, rows, columns, gated)] for tokens in args.tokens]
        print(table(header, found), flush=True)


if __name__ == "__main__":
    main()
