"""Makes the table "Linear layers of int8 and int4 weights on a CPU" of docs/benchmarks.md.

    python -m benchmarks.kernels.cpu_codes [--threads N] [--shape smollm2-135m] [--rows 1 4 8 ...]

Each figure is the time of one layer's linear layers (qkv, o, gate and up with SiLU, down) in processor time of all
threads, so that other work on the machine counts little. Weights of several layers are used in turn, as in a model. The
minimum of several rounds is taken, in which all kinds of weights have their turns. The floor of one row is the bytes of
the weights over the rate at which the same threads add up a buffer of 256 MiB.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads would count as work

import torch

from benchmarks.common.machine import facts
from benchmarks.common.tables import table
from radixrt.kernels.build import load_kernels
from radixrt.kernels.threads import set_threads
from radixrt.layers.formats.codes import Codes, Scheme
from radixrt.layers.formats.cpu_codes import CodePanels, CpuQuantized
from radixrt.layers.formats.online_layout import OnlineLayout, quantize
from radixrt.layers.formats.panels import Panels, PanelWeight
from radixrt.layers.ops import CpuOps
from radixrt.models.loading.source import cache_folder

GATE_UP = 2
"""Index of the layer that is gated."""
SHAPES = {
    "smollm2-135m": ((960, 576), (576, 576), (3072, 576), (576, 1536)),
    "smollm2-135m head": ((49152, 576),),
    "1.7b": ((6144, 2048), (2048, 2048), (16384, 2048), (2048, 8192)),
}
"""Output and input features of qkv, o, gate and up, and down."""
ROWS, ROUNDS = (1, 4, 8, 16, 64, 256, 1024), 7
MIN_BYTES = 100 << 20
"""Bytes of the bfloat16 weights that are read in turn."""


class Kind(NamedTuple):
    """A kind of weights: a function of x for each layer of each copy, and bytes of one copy."""

    name: str
    copies: list[list[Callable[[torch.Tensor], torch.Tensor]]]
    num_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shapes = SHAPES[options.shape]
    print(facts())
    kinds = make_kinds(shapes, options.threads)
    rate = read_rate()
    print(f"{options.shape}, {options.threads} threads, {rate / 1e9:.1f} GB a second of processor time")
    rows = []
    for count in options.rows:
        inputs = [torch.randn(count, columns) for _, columns in shapes]
        times = best(kinds, inputs)
        plain, cells = times[0], [str(count), f"{times[0]:.0f}"]
        for kind, found in zip(kinds, times, strict=True):
            floor = kind.num_bytes / rate * 1e6
            share = f", {floor / found:.0%} of the floor's rate" if count == 1 else ""
            cells += [f"{found:.0f} ({found / plain:.2f}{share})"] if kind is not kinds[0] else []
        rows.append(cells)
    print(table(["rows", "bfloat16, µs", *(f"{kind.name}, µs" for kind in kinds[1:])], rows))


def make_kinds(shapes: tuple[tuple[int, int], ...], threads: int) -> list[Kind]:
    """Return bfloat16 weights, and the same in int8 rows, int4 groups of 32, and these with minima as in Q4_1."""
    library = load_kernels(cache_folder() / "kernels")
    set_threads(library, threads)
    ops = CpuOps(library)
    panels, codes = Panels(ops), CpuQuantized(ops, OnlineLayout("int8"))
    weights = [torch.randn(*shape).bfloat16() for shape in shapes]
    if any(panels.pack(weight, gated=False) is None for weight in weights):
        raise SystemExit("this processor has no bfloat16 instructions")
    gated = [i == GATE_UP for i in range(len(shapes))]
    size = 2 * sum(weight.numel() for weight in weights)
    copies = max(1, -(-MIN_BYTES // size))

    def plain(weight: torch.Tensor, is_gated: bool) -> Callable[[torch.Tensor], torch.Tensor]:
        packed = panels.pack(weight, gated=is_gated)
        assert packed is not None
        multiply = panels.silu_and_mul if is_gated else panels.linear
        made = PanelWeight(packed, is_gated)
        return lambda x: multiply(made, x, None)

    def quantized(weight: Codes, is_gated: bool) -> tuple[CodePanels, Callable[[torch.Tensor], torch.Tensor]]:
        packed: Any = codes.pack(weight, gated=is_gated)
        multiply = codes.silu_and_mul if is_gated else codes.linear
        return packed, lambda x: multiply(packed, x, None)

    made = [Kind("bfloat16", [list(map(plain, weights, gated)) for _ in range(copies)], size)]
    forms = {
        "int8 rows": [quantize(weight, "int8") for weight in weights],
        "int4 groups of 32": [random_groups(weight, minima=False) for weight in weights],
        "with minima": [random_groups(weight, minima=True) for weight in weights],
    }
    for name, form in forms.items():
        layers = [
            [quantized(each, is_gated) for each, is_gated in zip(form, gated, strict=True)] for _ in range(copies)
        ]
        num_bytes = sum(packed.panels.nbytes for packed, _ in layers[0])
        made.append(Kind(name, [[run for _, run in layer] for layer in layers], num_bytes))
    return made


def random_groups(weight: torch.Tensor, *, minima: bool) -> Codes:
    """Return random int4 codes in groups of 32 columns, with float16 scales."""
    rows, columns = weight.shape
    codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
    scales = torch.rand(rows, columns // 32).half()
    return Codes(codes, scales, None, -scales if minima else None, Scheme("int4", columns=32))


def best(kinds: list[Kind], inputs: list[torch.Tensor]) -> list[float]:
    """Microseconds of processor time a layer, by kind."""
    found = [float("inf")] * len(kinds)
    for _ in range(ROUNDS):
        for i, kind in enumerate(kinds):
            started = time.process_time()
            for layer in kind.copies:
                for run, x in zip(layer, inputs, strict=True):
                    run(x)
            found[i] = min(found[i], (time.process_time() - started) / len(kind.copies) * 1e6)
    return found


def read_rate() -> float:
    """Bytes that a second of processor time reads from memory."""
    buffer, least = torch.ones(64 << 20), float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        buffer.sum()
        least = min(least, time.process_time() - started)
    return buffer.nbytes / least


if __name__ == "__main__":
    main()
