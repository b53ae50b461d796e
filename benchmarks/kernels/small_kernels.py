"""Tables "Small kernels" and "GEMMs with the tokens of a batch" of docs/cuda.md.

Microseconds of each small kernel on CUDA beside torch's own operations, and the bandwidth that it reaches.

    python -m benchmarks.kernels.small_kernels [--tokens 1 64 256 8192] [--calls 20] [--only heads] [--early]

Calls are captured in one CUDA graph and replayed, so that no time of the host is in it. A cell is microseconds of ours,
of torch in brackets, and GB/s of ours: bytes that must be read or written once. Below some 50 MB all data is in
the L2 cache, as it is when the previous operation has just written it, so figures can exceed the memory's bandwidth.
The weights of GEMMs are an exception: calls cycle through enough copies that each is read from memory. There a "!"
marks a choice of the slower kernel (in radixrt/kernels/triton: by gemv.py for a few tokens, by skinny_gemm_config.py
for more).
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from benchmarks.common import machine
from benchmarks.common.cuda_timing import graph_us
from benchmarks.common.tables import table
from radixrt.attention.base import AttentionLayer
from radixrt.kernels.triton import gemv, skinny_gemm
from radixrt.kernels.triton.filters import filtered_sample
from radixrt.kernels.triton.mask import apply_bitmask
from radixrt.kernels.triton.padding import empty_padded
from radixrt.kernels.triton.sampling import SampleWorkspace, fused_sample
from radixrt.kernels.triton.skinny_gemm_config import find_config
from radixrt.layers.cuda_ops import CudaOps
from radixrt.layers.ops import LayerOps, TorchOps
from radixrt.runner.sampling import draw

BF16 = torch.bfloat16
EPS = 1e-6
CONTEXT = 4096
MAX_ROWS = 512
"""A step samples at most this many rows; kernels on logits are not measured with more tokens."""

FEW_TOKENS = [1, 2, 4]
BATCH_TOKENS = [8, 16, 32, 64, 128]
COPIES_BYTES = 256 * 2**20
"""Size of all copies of one weight: several times the L2 cache."""

Run = Callable[[], object]


@dataclass(frozen=True)
class Shape:
    """Dimensions of a model that determine the sizes of its kernels."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    qk_norm: bool
    vocab: int


SHAPES = [
    Shape("Qwen3-0.6B", 1024, 3072, 16, 8, 128, True, 151936),
    Shape("Llama-3.1-8B", 4096, 14336, 32, 8, 128, False, 128256),
]


@dataclass(frozen=True)
class Case:
    """One operation: ours, torch's, and the bytes that it cannot avoid."""

    ours: Run
    torch: Run
    nbytes: int


def random(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def norm(ours: LayerOps, s: Shape, tokens: int) -> Case:
    residual, x, weight = random(tokens, s.hidden), random(tokens, s.hidden), random(s.hidden)

    def run(ops: LayerOps) -> Run:
        return lambda: ops.add_rms_norm(residual, x, weight, EPS, BF16)

    return Case(run(ours), run(TorchOps()), 4 * tokens * s.hidden * 2)


def activation(ours: LayerOps, s: Shape, tokens: int) -> Case:
    gate_up = random(tokens, 2 * s.intermediate)
    reference = TorchOps()
    nbytes = 3 * tokens * s.intermediate * 2
    return Case(lambda: ours.silu_and_mul(gate_up), lambda: reference.silu_and_mul(gate_up), nbytes)


def heads(ours: LayerOps, s: Shape, tokens: int, dtype: torch.dtype = BF16) -> Case:
    layer = AttentionLayer(0, s.heads, s.kv_heads, s.head_dim, s.head_dim**-0.5)
    qkv = random(tokens, s.heads + 2 * s.kv_heads, s.head_dim)
    weight = random(s.head_dim) if s.qk_norm else None
    rotary = random(CONTEXT, 2, s.head_dim)
    positions = torch.randint(0, CONTEXT, (tokens,), device="cuda")
    slots = 1 + torch.randperm(4 * tokens, device="cuda")[:tokens]
    keys, values = random(2, 4 * tokens + 1, s.kv_heads, s.head_dim, dtype=dtype)
    reference = TorchOps()

    def with_torch() -> None:
        _, k, v = reference.prepare_heads(qkv, layer, positions, rotary, weight, weight, EPS, None, slots)
        assert k is not None
        assert v is not None
        keys.view(torch.uint8)[slots] = k.to(dtype).view(torch.uint8)
        values.view(torch.uint8)[slots] = v.to(dtype).view(torch.uint8)

    def with_kernel() -> None:
        ours.prepare_heads(qkv, layer, positions, rotary, weight, weight, EPS, (keys, values), slots)

    moved = 2 * s.heads * 2 + 2 * s.kv_heads * (2 + dtype.itemsize) + 2 * 2
    return Case(with_kernel, with_torch, tokens * s.head_dim * moved)


def heads_fp8(ours: LayerOps, s: Shape, tokens: int) -> Case:
    return heads(ours, s, tokens, torch.float8_e4m3fn)


def sampling(_: LayerOps, s: Shape, rows: int) -> Case:
    logits = random(rows, s.vocab, dtype=torch.float32) * 3
    temperature = torch.full((rows,), 0.6, device="cuda")
    u = torch.rand(rows, device="cuda", dtype=torch.float64)
    workspace = SampleWorkspace(rows, s.vocab, "cuda")

    def with_torch() -> None:
        best = logits.amax(-1)
        draw.inverse_cdf(draw.token_weights(logits, best, temperature), u)

    return Case(lambda: fused_sample(logits, temperature, u, workspace), with_torch, rows * s.vocab * 4)


def top_p(_: LayerOps, s: Shape, rows: int) -> Case:
    """All rows with top_p 0.95, as `Sampler` does them; the logits are random, so the nucleus is large."""
    logits = random(rows, s.vocab, dtype=torch.float32) * 3
    temperature, part = torch.full((rows,), 0.6, device="cuda"), torch.full((rows,), 0.95, device="cuda").double()
    u = torch.rand(rows, device="cuda", dtype=torch.float64)
    which = torch.arange(rows, device="cuda", dtype=torch.int32)
    top_k, min_p = torch.full_like(which, s.vocab), torch.full((rows,), 0.0, device="cuda")
    workspace = SampleWorkspace(rows, s.vocab, "cuda")

    def with_kernels() -> None:
        fused_sample(logits, temperature, u, workspace)
        filtered_sample(logits, temperature, u, workspace, which, top_k, part, min_p)

    def with_torch() -> None:
        weights = draw.token_weights(logits, logits.amax(-1), temperature)
        draw.inverse_cdf(draw.top_p_cutoff(logits, temperature, part, weights).apply(weights, logits), u)

    return Case(with_kernels, with_torch, rows * s.vocab * 4)


def masks(_: LayerOps, s: Shape, rows: int) -> Case:
    logits = random(rows, s.vocab, dtype=torch.float32)
    words = (s.vocab + 31) // 32
    bits = torch.randint(-(2**31), 2**31, (rows, words), device="cuda", dtype=torch.int32)
    where = torch.arange(rows, device="cuda", dtype=torch.int32)
    shifts = torch.arange(32, device="cuda", dtype=torch.int32)

    def with_torch() -> None:
        forbidden = ((bits[:, :, None] >> shifts) & 1 == 0).view(rows, -1)[:, : s.vocab]
        logits.masked_fill_(forbidden, -torch.inf)

    return Case(lambda: apply_bitmask(logits, where, bits), with_torch, rows * (8 * s.vocab + 4 * words))


def output_head(_: LayerOps, s: Shape, rows: int) -> Case:
    """Ours leaves the result in float32; torch's rounds it to bfloat16."""
    hidden, weight = random(rows, s.hidden), random(s.vocab, s.hidden)
    nbytes = weight.nbytes + hidden.nbytes + rows * s.vocab * 4
    return Case(
        lambda: torch.mm(hidden, weight.t(), out_dtype=torch.float32),
        lambda: torch.nn.functional.linear(hidden, weight),
        nbytes,
    )


KERNELS: dict[str, Callable[[LayerOps, Shape, int], Case]] = {
    "norm": norm,
    "activation": activation,
    "heads": heads,
    "heads, fp8 pool": heads_fp8,
    "sampling": sampling,
    "top_p": top_p,
    "mask": masks,
    "output head": output_head,
}
OVER_LOGITS = {"sampling", "top_p", "mask", "output head"}


def matrices(s: Shape, ranks: int) -> Iterator[tuple[str, int, int]]:
    """Name, rows and columns of the weights of a layer, split over ranks."""
    yield "qkv", (s.heads + 2 * s.kv_heads) * s.head_dim // ranks, s.hidden
    yield "o", s.hidden, s.heads * s.head_dim // ranks
    yield "gate and up", 2 * s.intermediate // ranks, s.hidden
    yield "gate and up, silu", 2 * s.intermediate // ranks, s.hidden
    yield "down", s.hidden, s.intermediate // ranks


Multiply = Callable[[torch.Tensor, torch.Tensor, bool, bool], torch.Tensor]
"""By x, weight, whether gate and up are multiplied, and whether it is launched early."""


def by_gemv(x: torch.Tensor, weight: torch.Tensor, gated: bool, early: bool) -> torch.Tensor:
    kernel = gemv.gate_up_silu if gated else gemv.gemv
    return kernel(x, weight, None, early)


def by_cublas(ours: CudaOps) -> Multiply:
    """With our `silu_and_mul` where it is gated."""

    def multiply(x: torch.Tensor, weight: torch.Tensor, gated: bool, early: bool) -> torch.Tensor:
        y = torch.nn.functional.linear(x, weight)
        return ours.silu_and_mul(y) if gated else y

    return multiply


def copies_of_weight(rows: int, columns: int) -> list[torch.Tensor]:
    """Random weights of a size, enough copies that each is read from memory when they are used in turn."""
    return [random(rows, columns) * columns**-0.5 for _ in range(-(-COPIES_BYTES // (2 * rows * columns)))]


def batch(tokens: int, columns: int) -> torch.Tensor:
    """Random numbers for some tokens, with the memory behind them that they have in a step."""
    x = random(tokens, columns)
    return empty_padded(tokens, columns, dtype=x.dtype, device=x.device).copy_(x)


def by_skinny_gemm() -> Multiply:
    workspace = skinny_gemm.Workspace("cuda")

    def multiply(x: torch.Tensor, weight: torch.Tensor, gated: bool, early: bool) -> torch.Tensor:
        cut = find_config(x.shape[0], *weight.shape, gated=gated)
        assert cut is not None
        return skinny_gemm.multiply(x, weight, None, workspace, cut, gated=gated, early=early)

    return multiply


@dataclass(frozen=True)
class GemmKernel:
    """A GEMM kernel, its numbers of tokens, its rule of selection (by tokens, rows, columns, gated),
    and whether it can be measured where it is not selected."""

    name: str
    make: Callable[[], Multiply]
    wins: Callable[[int, int, int, bool], bool]
    tokens: list[int]
    anywhere: bool


GEMM_KERNELS = [
    GemmKernel(
        "matrix-vector multiplications", lambda: by_gemv,
        lambda tokens, rows, columns, _: gemv.wins(tokens, rows, columns), FEW_TOKENS, anywhere=True,
    ),
    GemmKernel(
        "batch GEMMs", by_skinny_gemm, lambda *sizes: find_config(*sizes[:3], gated=sizes[3]) is not None, BATCH_TOKENS,
        anywhere=False,
    ),
]  # fmt: skip


def gemm_cell(
    ours: CudaOps, kernel: Multiply | None, chosen: bool, tokens: int, rows: int, columns: int, gated: bool,
    early: bool, calls: int,
) -> str:  # fmt: skip
    """A cell: our kernel, if there is one, and cuBLAS with our `silu_and_mul` where it is gated.

    Args:
        chosen: whether the kernel would be taken.
    """
    nbytes = 2 * (rows * columns + tokens * (columns + (rows // 2 if gated else rows)))
    weights, x = copies_of_weight(rows, columns), batch(tokens, columns)
    mine, others = itertools.cycle(weights), itertools.cycle(weights)
    cublas = by_cublas(ours)
    each = max(calls, len(weights))
    others_us = graph_us(lambda: cublas(x, next(others), gated, early), calls=each)
    if kernel is None:
        return f"({others_us:.1f})"
    mine_us = graph_us(lambda: kernel(x, next(mine), gated, early), calls=each)
    mark = "" if chosen == (mine_us < others_us) else " !"
    return f"{mine_us:.1f} ({others_us:.1f}) {nbytes / mine_us / 1e3:.0f}{mark}"


def gemm_rows(ours: CudaOps, gemm: GemmKernel, early: bool, calls: int) -> Iterator[list[str]]:
    kernel = gemm.make()
    for shape, ranks in itertools.product(SHAPES, (1, 2)):
        for name, rows, columns in matrices(shape, ranks):
            gated, cells = "silu" in name, []
            for n in gemm.tokens:
                chosen = gemm.wins(n, rows, columns, gated)
                mine = kernel if chosen or gemm.anywhere else None
                cells.append(gemm_cell(ours, mine, chosen, n, rows, columns, gated, early, calls))
            model = shape.name if ranks == 1 else f"{shape.name}, {ranks} ranks"
            yield [name, model, f"{rows} x {columns}", *cells]


def cell(case: Case, calls: int) -> str:
    ours, theirs = graph_us(case.ours, calls=calls), graph_us(case.torch, calls=calls)
    return f"{ours:.1f} ({theirs:.1f}) {case.nbytes / ours / 1e3:.0f}"


def rows_of(ours: LayerOps, only: str | None, tokens: list[int], calls: int) -> Iterator[list[str]]:
    for name, make in KERNELS.items():
        if only is not None and only not in name:
            continue
        for shape in SHAPES:
            counts = [n for n in tokens if name not in OVER_LOGITS or n <= MAX_ROWS]
            found = [cell(make(ours, shape, n), calls) for n in counts]
            yield [name, shape.name, *found, *["-"] * (len(tokens) - len(found))]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 64, 256, 8192])
    parser.add_argument("--calls", type=int, default=20, help="in one graph")
    parser.add_argument("--only", default=None, metavar="NAME", help="kernels with this in their name")
    parser.add_argument("--early", action="store_true", help="launch each kernel before the one before it has ended")
    args = parser.parse_args()
    facts = machine.facts() | {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    ours = CudaOps(early=args.early)
    header = ["µs of ours (of torch), GB/s", "shape"]
    found = list(rows_of(ours, args.only, args.tokens, args.calls))
    if found:
        print(table([*header, *(f"T = {n}" for n in args.tokens)], found))
    for gemm in GEMM_KERNELS:
        if args.only is None or args.only in gemm.name:
            print(f"\n{gemm.name}")
            found = list(gemm_rows(ours, gemm, args.early, args.calls))
            print(table([*header, "weight", *(f"T = {n}" for n in gemm.tokens)], found))


if __name__ == "__main__":
    main()
