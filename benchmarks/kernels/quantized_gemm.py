"""Linear layers of quantized weights on CUDA, beside bfloat16: the table of docs/cuda.md.

    python -m benchmarks.kernels.quantized_gemm [--shape llama-3.1-8b] [--tokens 1 4 16 64 128 256 8192]

For each weight of a layer and number of tokens: microseconds as the engine multiplies, and in brackets the share of the
floor: the larger one of the time to read the weight as it is kept, at the bandwidth that a copy reaches on this GPU,
and the time to multiply at the rate that a large product reaches, in fp8 for rows of fp8 and else in bfloat16. Calls
are captured in a CUDA graph and cycle through copies of the weight, so that each is read from memory.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.common import machine
from benchmarks.common.cuda_timing import graph_us
from benchmarks.common.tables import table
from benchmarks.kernels.small_kernels import BF16, COPIES_BYTES, SHAPES, batch, matrices, random
from radixrt.kernels.triton.quantize import quantize_rows
from radixrt.layers.cuda_ops import CudaOps
from radixrt.layers.formats.codes import Codes, Numbers, Scheme, pack_nibbles
from radixrt.layers.formats.cuda_codes import fragment_codes

SHAPE_NAMES = {"qwen3-0.6b": SHAPES[0], "llama-3.1-8b": SHAPES[1]}
SIDE = 8192
"""Rows and columns of the products whose rate is the ceiling."""

Run = Callable[[torch.Tensor], object]


@dataclass(frozen=True)
class Form:
    """A way to keep a weight: in bfloat16 (numbers None), or as codes in a scheme."""

    name: str
    numbers: Numbers | None = None
    rows: int = 1
    columns: int = 0

    def nbytes(self, rows: int, columns: int) -> int:
        """Bytes of a weight with its scales, of 2 bytes in groups and of 4 for rows and blocks."""
        if self.numbers is None:
            return 2 * rows * columns
        scheme = Scheme(self.numbers, self.rows, self.columns)
        scales = scheme.scale_rows(rows) * scheme.groups(columns)
        return rows * columns * scheme.bits // 8 + scales * (2 if scheme.bits == 4 else 4)

    def products(self, ops: CudaOps, rows: int, columns: int, gated: bool) -> list[Run]:
        """Return products with copies of a random weight; gated ones are followed by silu and multiplication."""
        count = -(-COPIES_BYTES // self.nbytes(rows, columns))
        return [self._product(ops, rows, columns, gated) for _ in range(count)]

    def _product(self, ops: CudaOps, rows: int, columns: int, gated: bool) -> Run:
        if self.numbers is None:
            weight = random(rows, columns) * columns**-0.5
            plain = ops.linear_silu_and_mul if gated else ops.linear
            return lambda x: plain(x, weight, None)
        scheme = Scheme(self.numbers, self.rows, self.columns)
        codes = torch.randint(0, 16, (rows, columns), device="cuda", dtype=torch.uint8)
        if scheme.bits == 4:
            codes = pack_nibbles(codes)
        else:
            codes = (random(rows, columns) * 40).to(scheme.dtype)
        dtype = BF16 if scheme.bits == 4 else torch.float32
        scales = torch.full((scheme.scale_rows(rows), scheme.groups(columns)), 0.01, device="cuda", dtype=dtype)
        found = fragment_codes(Codes(codes, scales, None, None, scheme))
        assert found is not None
        if not gated:
            return lambda x: ops.multiply_codes(x, found, None)

        def multiply(x: torch.Tensor) -> torch.Tensor:
            if ops.reads_codes(x, found, gated=True):
                return ops.multiply_codes(x, found, None, gated=True)
            return ops.silu_and_mul(ops.multiply_codes(x, found, None))

        return multiply


FORMS = [
    Form("bf16"),
    Form("fp8 rows", "e4m3"),
    Form("fp8 blocks", "e4m3", 128, 128),
    Form("int8 rows", "int8"),
    Form("int4 groups of 128", "int4", 1, 128),
]


@dataclass(frozen=True)
class Ceilings:
    """What this GPU reaches: bytes per microsecond of a copy, and operations per microsecond of large products."""

    copy: float
    bf16: float
    fp8: float

    def floor(self, form: Form, tokens: int, rows: int, columns: int) -> float:
        """Least microseconds of a product."""
        rate = self.fp8 if form.numbers == "e4m3" and form.columns == 0 else self.bf16
        return max(form.nbytes(rows, columns) / self.copy, 2 * tokens * rows * columns / rate)


def measure_ceilings() -> Ceilings:
    source = torch.ones(1 << 28, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    a, b = random(SIDE, SIDE), random(SIDE, SIDE)
    x, y = quantize_rows(a), quantize_rows(b)

    def fp8() -> torch.Tensor:
        scales = {"scale_a": x.scales.t(), "scale_b": y.scales}
        return torch._scaled_mm(x.codes, y.codes.t(), **scales, out_dtype=BF16, use_fast_accum=True)

    work = 2 * SIDE**3
    return Ceilings(
        # In a graph, `copy_` runs on the copy engines, which are slower than kernels.
        2 * source.nbytes / graph_us(lambda: torch.neg(source, out=target), calls=4),
        work / graph_us(lambda: torch.mm(a, b.t()), calls=16),
        work / graph_us(fp8, calls=16),
    )


def microseconds(products: list[Run], x: torch.Tensor) -> float:
    """Time one of some products, which take turns."""
    turn = itertools.cycle(products)
    return graph_us(lambda: next(turn)(x), calls=max(12, len(products)) if x.shape[0] <= 512 else 4, replays=5)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPE_NAMES), default="llama-3.1-8b")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 4, 16, 64, 128, 256, 8192])
    args = parser.parse_args()
    facts = machine.facts() | {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    ceilings = measure_ceilings()
    facts |= {"copy, TB/s": f"{ceilings.copy / 1e6:.2f}", "bf16, TFLOP/s": f"{ceilings.bf16 / 1e6:.0f}"}
    facts |= {"fp8, TFLOP/s": f"{ceilings.fp8 / 1e6:.0f}"}
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    ops = CudaOps(early=True)
    rows_of_table: list[list[str]] = []
    sums = {form.name: [0.0] * len(args.tokens) for form in FORMS}
    for name, rows, columns in matrices(SHAPE_NAMES[args.shape], 1):
        if name == "gate and up":
            continue
        gated = "silu" in name
        for form in FORMS:
            products, cells = form.products(ops, rows, columns, gated), []
            for i, tokens in enumerate(args.tokens):
                us = microseconds(products, batch(tokens, columns))
                sums[form.name][i] += us
                cells.append(f"{us:.1f} ({ceilings.floor(form, tokens, rows, columns) / us:.0%})")
            rows_of_table.append([name, f"{rows} x {columns}", form.name, *cells])
    rows_of_table += [["all four", "", form.name, *(f"{us:.1f}" for us in sums[form.name])] for form in FORMS]
    print(table(["weight", "rows x columns", "kept as", *(f"T = {n}" for n in args.tokens)], rows_of_table))


if __name__ == "__main__":
    main()
