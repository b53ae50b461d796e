"""What was chosen between on CUDA, each measured both ways: the tables of docs/cuda.md under "Measured choices".

    python -m benchmarks.choices steps --shape qwen3-0.6b --shape llama-3.1-8b
    python -m benchmarks.choices prompts
    python -m benchmarks.choices products
    python -m benchmarks.choices room

`steps` times decode steps as they are, and with every kernel launched when the one before it has ended. `prompts`
times one layer's attention over a prompt by pages and as it comes; `products` times products of bf16 matrices by
torch's default library and by cublasLt; `room` times products of `skinny_gemm` with too few tokens to fill a tile.
"""

import argparse
import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks import machine
from benchmarks.kernels import SHAPES, batch, by_cublas, by_skinny_gemm, copies_of_weight, matrices, microseconds
from benchmarks.report import table
from benchmarks.shapes import CONFIGS
from benchmarks.step_profile import start_runner, wall_us, warm_step
from radixrt.kernels.triton.skinny_gemm_config import find
from radixrt.layers.cuda_ops import CudaOps

STEPS = ["decode:1x192", "decode:64x640", "decode:256x900"]
PROMPT = 8192
PAGE_SIZES = (1, 16, 64)
HEADS = ((32, 8), (16, 8))
"""Query heads and kv heads; the head size is 128."""
HEAD_DIM = 128
PRODUCTS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (4096, 1024), (6144, 1024), (1024, 3072))
"""Columns and inner size; the rows are PROMPT."""
ROOM_TOKENS = (40, 64, 72, 96, 128)
"""The kernel's tiles have 64 or 128."""


def attention_flops(tokens: int, heads: int) -> int:
    """Multiplications and additions of causal attention over one prompt in one layer."""
    return 4 * heads * HEAD_DIM * (tokens * (tokens + 1) // 2)


def rate(flops: float, us: float) -> str:
    """Microseconds, and TFLOP/s."""
    return f"{us:.0f}, {flops / us / 1e6:.0f}"


@contextlib.contextmanager
def as_it_is(shape: str) -> Iterator[None]:
    yield


@contextlib.contextmanager
def late_launches(shape: str) -> Iterator[None]:
    from radixrt.runner import model_runner

    with patch.object(model_runner, "launches_early", lambda device: False):
        yield


WAYS: dict[str, Callable[[str], contextlib.AbstractContextManager[None]]] = {
    "as it is": as_it_is,
    "late launches": late_launches,
}


def measure_steps(shapes: list[str]) -> None:
    rows = []
    for shape in shapes:
        for way, context in WAYS.items():
            with context(shape):
                runner = start_runner(shape)
                with torch.inference_mode():
                    times = [wall_us(warm_step(runner, text)) for text in STEPS]
                runner.shutdown()
            rows.append([shape, way, *(f"{us:.0f}" for us in times)])
    print(table(["µs a step", "", *STEPS], rows))


def measure_prompts() -> None:
    import flashinfer

    from radixrt.attention.flashinfer_plans import WORKSPACE_BYTES, Planner, Rows, Shape

    rows = []
    lens = np.array([PROMPT], np.int32)
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    for heads, kv_heads in HEADS:
        q, k, v = (torch.randn(PROMPT, n, HEAD_DIM, device="cuda").bfloat16() for n in (heads, kv_heads, kv_heads))
        out = torch.empty_like(q)

        def planner(page_size: int, heads: int = heads, kv_heads: int = kv_heads) -> Planner:
            return Planner(
                flashinfer, Shape(heads, kv_heads, HEAD_DIM, HEAD_DIM**-0.5), None, dtype=torch.bfloat16,
                kv_dtype=torch.bfloat16, page_size=page_size, workspace=workspace,
            )  # fmt: skip

        times = []
        for page_size in PAGE_SIZES:
            pages = torch.randperm(PROMPT // page_size, device="cuda", dtype=torch.int32)
            slots = pages[:, None] * page_size + torch.arange(page_size, device="cuda", dtype=torch.int32)
            table_row = slots.reshape(1, -1).contiguous()
            pool = tuple(x.view(-1, page_size, kv_heads, HEAD_DIM) for x in (k, v))
            place = Rows(table_row, torch.zeros(1, dtype=torch.int64, device="cuda"), np.zeros(1, np.int32), lens)
            times.append(_run_us(planner(page_size).prefill(place, lens), q, pool, out))
        times.append(_run_us(planner(1).fresh(lens), q, k, v, out))
        rows.append([str(heads), *(rate(attention_flops(PROMPT, heads), us) for us in times)])
    print(table(["heads: µs, TFLOP/s", *(f"pages of {n}" for n in PAGE_SIZES), "as it comes"], rows))


def _run_us(wrapper: Any, *arguments: Any) -> float:
    """Of a planned wrapper; the last argument is the output."""
    *inputs, out = arguments

    def run() -> None:
        wrapper.run(*inputs, out=out)

    run()
    return wall_us(run)


def measure_products() -> None:
    rows = []
    for columns, inner in PRODUCTS:
        a = torch.randn(PROMPT, inner, device="cuda").bfloat16()
        b = torch.randn(columns, inner, device="cuda").bfloat16()
        cells = []
        for library in ("default", "cublaslt"):
            torch.backends.cuda.preferred_blas_library(library)
            work = functools.partial(torch.nn.functional.linear, a, b)
            work()
            cells.append(rate(2 * PROMPT * columns * inner, wall_us(work)))
        rows.append([f"{columns} x {inner}", *cells])
    torch.backends.cuda.preferred_blas_library("default")
    print(table(["columns x inner size: µs, TFLOP/s", "default", "cublaslt"], rows))


def measure_room() -> None:
    """Whether there is memory behind the tokens, which is fetched with them; and cuBLAS."""
    ours, cublas, rows = by_skinny_gemm(), by_cublas(CudaOps(early=True)), []
    for name, of, columns in matrices(SHAPES[1], 1):
        gated = "silu" in name
        if find(ROOM_TOKENS[0], of, columns, gated=gated) is None:
            continue
        weights = copies_of_weight(of, columns)
        each = itertools.cycle(weights)
        cells = []
        for tokens in ROOM_TOKENS:
            roomy = batch(tokens, columns)
            ways = ((ours, roomy), (ours, roomy.clone()), (cublas, roomy))
            times = [
                microseconds(lambda: kernel(x, next(each), gated, True), len(weights))  # noqa: B023 (called at once)
                for kernel, x in ways
            ]
            cells.append("{:.1f}, {:.1f} ({:.1f})".format(*times))
        rows.append([f"{of} x {columns}", *cells])
    print(table(["µs with room, without (cuBLAS)", *(f"{n} tokens" for n in ROOM_TOKENS)], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("steps", "prompts", "products", "room"))
    parser.add_argument("--shape", action="append", choices=sorted(CONFIGS))
    args = parser.parse_args()
    for name, value in machine.facts().items():
        print(f"{name}: {value}")
    if args.what == "steps":
        measure_steps(args.shape or ["qwen3-0.6b"])
    elif args.what == "prompts":
        measure_prompts()
    elif args.what == "products":
        measure_products()
    else:
        with torch.inference_mode():
            measure_room()


if __name__ == "__main__":
    main()
