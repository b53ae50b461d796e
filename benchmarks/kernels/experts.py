"""Table "Mixtures of experts" of docs/cuda.md: microseconds of routing and of all experts of a layer on CUDA.

    python -m benchmarks.kernels.experts [--shape qwen3-30b-a3b] [--weights fp8] [--tokens 1 64 8192] [--tune]
        [--seconds 60]

Tokens are routed by random weights. Calls are captured in one CUDA graph and cycle through different tokens, so that
the weights of few tokens are read from memory too. The floor is the time to read the weights of the experts that are
hit, or to multiply with them, whichever is longer. `pairs` is the kernel for a few tokens, `tiles` the one for more.
Weights are bfloat16, or codes of --weights; gpt-oss has mxfp4.

With --tune, also the fastest of many tilings for each size of tiles, as entries of `expert_gemm_config`; all are
compiled first, and the search ends after --seconds. For codes, also the times of all cuts of `expert_codes_gemv`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.common import machine
from benchmarks.common.cuda_timing import graph_us
from benchmarks.common.device_rates import Device, measure_device
from benchmarks.common.tables import table
from radixrt.kernels.packed_weights import PackedWeights
from radixrt.kernels.triton import expert_codes_gemm, expert_codes_gemv, expert_gemm, expert_gemv
from radixrt.kernels.triton.compile_ahead import compiling
from radixrt.kernels.triton.expert_codes_gemv import Cut
from radixrt.kernels.triton.expert_gemm import Weights
from radixrt.kernels.triton.expert_gemm_config import TILES, Config, find_codes_config, find_config, tile_of
from radixrt.kernels.triton.expert_tiles import Tiles, list_tiles
from radixrt.layers.cuda_ops import CudaOps
from radixrt.layers.formats.codes import Codes, Scheme
from radixrt.layers.formats.cuda_expert_codes import packed_weights
from radixrt.layers.routing import Routing

MAX_SHARED = 227 * 1024
INPUTS = 8
"""Sets of tokens that calls cycle through."""
TOKENS = [1, 2, 4, 8, 16, 64, 128, 256, 512, 2048, 8192]
TUNED_AT = {16: 64, 32: 256, 64: 1024, 128: 8192}
"""Tokens for which the tilings of each size of tiles are timed."""


@dataclass(frozen=True)
class Layer:
    """A layer of a model: sizes, and weights for all experts, the shared ones behind the others.

    Attributes:
        weight_bytes: of each number of the weights, its share of scales included.
    """

    hidden: int
    columns: int
    num_experts: int
    routing: Routing
    router: torch.Tensor
    gate_up: torch.Tensor | PackedWeights
    down: torch.Tensor | PackedWeights
    weight_bytes: float = 2.0

    @property
    def packed(self) -> bool:
        return isinstance(self.gate_up, PackedWeights)


SHAPES = {
    "gpt-oss-20b": (2880, 2880, 32, Routing(4, True)),
    "gpt-oss-120b": (2880, 2880, 128, Routing(4, True)),
    "qwen3-30b-a3b": (2048, 768, 128, Routing(8, True)),
    "qwen3.5-35b-a3b": (2048, 512, 256, Routing(8, True, 1)),
    "mixtral-8x7b": (4096, 14336, 8, Routing(2, True)),
}


SCHEMES: dict[str, tuple[Scheme, torch.dtype]] = {
    "fp8": (Scheme("e4m3"), torch.float32),
    "fp8-blocks": (Scheme("e4m3", 128, 128), torch.float32),
    "int8": (Scheme("int8"), torch.float32),
    "int4": (Scheme("int4", columns=128), torch.float16),
    "int4-g32": (Scheme("int4", columns=32), torch.float16),
    "mxfp4": (Scheme("e2m1", columns=32), torch.bfloat16),
}
"""By the name of --weights: codes, and the dtype of their scales."""


def make_layer(name: str, kind: str | None = None) -> Layer:
    """Return a layer with random weights.

    Args:
        kind: a key of SCHEMES; None for the shape's own kind, which is bfloat16 but for gpt-oss.
    """
    hidden, columns, count, routing = SHAPES[name]
    total = count + routing.num_shared
    kind = kind or ("mxfp4" if name.startswith("gpt-oss") else None)

    def plain(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02)

    router = torch.randn(count + (routing.num_shared > 0), hidden, device="cuda") * hidden**-0.5
    make = plain if kind is None else partial(random_codes, *SCHEMES[kind])
    gate_up, down = make(total, 2 * columns, hidden), make(total, hidden, columns)
    nbytes = 2.0 if kind is None else bytes_of(gate_up) / (total * 2 * columns * hidden)
    return Layer(hidden, columns, count, routing, router, gate_up, down, nbytes)


def random_codes(scheme: Scheme, dtype: torch.dtype, count: int, rows: int, columns: int) -> PackedWeights:
    """Return weights of random codes, each scale 2^-7."""
    shape = count, rows, scheme.code_columns(columns)
    codes = torch.randint(0, 126, shape, dtype=torch.uint8, device="cuda").view(scheme.dtype)
    scales = torch.full((count, scheme.scale_rows(rows), scheme.groups(columns)), 2.0**-7, dtype=dtype, device="cuda")
    packed = packed_weights(Codes(codes, scales, None, None, scheme))
    assert packed is not None
    return packed


def bytes_of(weight: Any) -> int:
    """Return the bytes of a weight's tensors, padding included."""
    return sum(each.nbytes for each in weight if isinstance(each, torch.Tensor))


def floor_us(layer: Layer, experts: torch.Tensor, device: Device) -> tuple[float, float, float]:
    """Bytes of the weights of the experts that are hit, operations, and the least microseconds for both."""
    each = 3 * layer.hidden * layer.columns
    nbytes, flops = layer.weight_bytes * each * len(experts.unique()), 2.0 * each * experts.numel()
    return nbytes, flops, max(nbytes / device.bytes_per_s, flops / device.flops_per_s) * 1e6


def cuts(tile: int, *, gated: bool) -> Iterator[Config]:
    """Candidate tilings of tiles of so many tokens, for plain weights."""
    for rows, step, warps, first, bulk in itertools.product(
        (32, 64, 128, 256), (64, 128, 256), (4, 8), (False, True), (False, True)
    ):
        sums = tile * rows * (1 + gated)
        if (tile if first else rows) < 64 and (first or rows < 32 or tile > 32):
            continue
        if sums > warps * 32 * 128 or (warps == 8 and sums < 64 * 64) or (tile == 128 and sums < 128 * 128):
            continue
        if tile >= 64 and step == 256:
            continue
        each = 2 * step * (rows * (1 + gated) + tile)
        for budget in (MAX_SHARED // 3, MAX_SHARED // 2, MAX_SHARED):
            stages = min(8, (budget - 1024) // each)
            if stages >= 3 or (stages == 2 and step == 256):
                yield Config(rows, step, stages, warps, first, bulk)


def codes_cuts(tile: int, weight: PackedWeights, *, gated: bool) -> Iterator[Config]:
    """Candidate tilings for weights of codes, which the copy engine fetches. The tensor cores take at least 64 rows for
    four warps from registers."""
    halves, narrow = 1 + gated, 0 < weight.group < 128
    for (rows, warps), step in itertools.product(((64, 4), (128, 4), (128, 8)), (128, 256)):
        if tile * rows * halves > warps * 32 * 128 or (weight.group >= 128 and step > 128):
            continue
        scales = weight.scales.element_size() * step // weight.group if narrow else 0
        each = rows * halves * (step * 4 // weight.in_word + scales) + 2 * step * tile
        for budget in (MAX_SHARED // 5, MAX_SHARED // 4, MAX_SHARED // 3, MAX_SHARED // 2, MAX_SHARED):
            stages = min(8, (budget - 1024) // each)
            if stages >= 2:
                yield Config(rows, step, stages, warps, bulk=True)


def tune(layer: Layer, tile: int, seconds: float) -> list[list[str]]:
    """Rows of the table of tilings: the fastest five of each of both GEMMs, and the present one."""
    tokens, found = TUNED_AT[tile], []
    top_k = layer.routing.top_k
    x = torch.randn(tokens, layer.hidden, device="cuda", dtype=torch.bfloat16)
    experts = torch.rand(tokens, layer.num_experts, device="cuda").topk(top_k).indices.int()
    tiles = list_tiles(experts, layer.num_experts + layer.routing.num_shared, tile)
    inner = torch.randn(tokens * top_k, layer.columns, device="cuda", dtype=torch.bfloat16)
    for gated, weight, rows in ((True, layer.gate_up, x), (False, layer.down, inner)):
        run = partial(multiply, rows, weight, tiles, tile, top_k=top_k, gated=gated)
        if isinstance(weight, PackedWeights):
            wanted, now = set(codes_cuts(tile, weight, gated=gated)), find_codes_config(tile, weight, gated=gated)
        else:
            wanted, now = set(cuts(tile, gated=gated)), find_config(tile, gated=gated)
        with contextlib.suppress(Exception), compiling():  # some exceed a limit of this GPU
            for cut in sorted(wanted | {now}):
                run(cut=cut)
        deadline, timed = time.perf_counter() + seconds, []
        for cut in [now, *sorted(wanted)]:
            if time.perf_counter() > deadline:
                break
            try:
                timed.append((graph_us(partial(run, cut=cut), calls=4, replays=5), cut))
            except Exception:
                continue
        present = timed[0][0]
        best = sorted(timed)[:5]
        name = "gate and up" if gated else "down"
        found += [[name, str(tile), str(tokens), f"{present:.1f}", f"{us:.1f}", str(tuple(cut))] for us, cut in best]
        found[-1][-1] += f" of {len(timed)} of {len(wanted)}"
    return found


CUTS = [Cut(warps, blocks) for warps in (2, 4, 8, 16) for blocks in (1, 2, 4)]


def time_cuts(layer: Layer, tokens: int) -> list[list[str]]:
    """Rows of the table of cuts of `expert_codes_gemv`: microseconds of each GEMM by each of CUTS."""
    top_k = layer.routing.top_k
    experts = [torch.rand(tokens, layer.num_experts, device="cuda").topk(top_k).indices.int() for _ in range(INPUTS)]
    share = torch.full((tokens, top_k), 1.0 / top_k, device="cuda")
    found = []
    for gated, weight in ((True, layer.gate_up), (False, layer.down)):
        assert isinstance(weight, PackedWeights)
        x = torch.randn(tokens * (1 if gated else top_k), weight.columns, device="cuda", dtype=torch.bfloat16)

        def run(cut: Cut, turn: Iterator[torch.Tensor], *, gated: bool, weight: PackedWeights, x: torch.Tensor) -> None:
            expert_codes_gemv.multiply(x, weight, next(turn), share, gated=gated, early=True, cut=cut)

        each = partial(run, gated=gated, weight=weight, x=x)
        with compiling():
            for cut in CUTS:
                each(cut, itertools.cycle(experts))
        us = [graph_us(partial(each, cut, itertools.cycle(experts)), calls=INPUTS, replays=9) for cut in CUTS]
        found.append(["gate and up" if gated else "down", str(tokens), *(f"{value:.1f}" for value in us)])
    return found


def multiply(
    rows: torch.Tensor, weight: Weights, tiles: Tiles, tile: int, *, cut: Config, top_k: int, gated: bool
) -> torch.Tensor:
    """Run one GEMM."""
    if isinstance(weight, PackedWeights):
        return expert_codes_gemm.multiply(rows, weight, tiles, tile, cut, top_k=top_k, gated=gated, early=True)
    return expert_gemm.multiply(rows, weight, tiles, tile, cut, top_k=top_k, gated=gated, early=True)


def measure(layer: Layer, tokens: int, device: Device) -> list[str]:
    """Cells of one number of tokens."""
    ours = CudaOps(early=True)
    inputs = []
    for _ in range(INPUTS):
        x = torch.randn(tokens, layer.hidden, device="cuda", dtype=torch.bfloat16)
        inputs.append((x, *ours.route(x, layer.router, layer.routing)))
    turn = itertools.cycle(inputs)
    calls, replays = (INPUTS, 9) if tokens <= 512 else (2, 5)

    def timed(kernels: Any) -> float:
        def run() -> torch.Tensor:
            found: torch.Tensor = kernels.run_experts(*next(turn), layer.gate_up, layer.down, True)
            return found

        return graph_us(run, calls=calls, replays=replays)

    routing = graph_us(lambda: ours.route(next(turn)[0], layer.router, layer.routing), calls=calls, replays=replays)
    pairs = math.nan
    if isinstance(layer.gate_up, PackedWeights) and isinstance(layer.down, PackedWeights):
        if expert_codes_gemv.supports(inputs[0][0], layer.gate_up, layer.down):
            pairs = timed(expert_codes_gemv)
    elif tokens <= 16:
        pairs = timed(expert_gemv)
    tiles = timed(expert_gemm)
    nbytes, flops, floor = floor_us(layer, inputs[0][1], device)
    tile = tile_of(tokens, inputs[0][1].shape[1], layer.num_experts + layer.routing.num_shared)
    least = min(x for x in (pairs, tiles) if not math.isnan(x))
    return [
        str(tokens), str(tile), f"{routing:.1f}", f"{pairs:.1f}", f"{tiles:.1f}", f"{nbytes / 1e6:.0f}",
        f"{flops / 1e9:.1f}", f"{floor:.1f}", f"{floor / least:.0%}",
    ]  # fmt: skip


HEADER = ["tokens", "tile", "routing µs", "pairs µs", "tiles µs", "MB", "GFLOP", "floor µs", "floor / best"]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-30b-a3b")
    parser.add_argument("--weights", choices=sorted(SCHEMES), help="codes; default: bfloat16, or mxfp4 for gpt-oss")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--tune", action="store_true", help="search for tilings, too")
    parser.add_argument("--seconds", type=float, default=60.0, help="longest search for one GEMM and size of tiles")
    args = parser.parse_args()
    for name, value in (machine.facts() | {"torch": torch.__version__}).items():
        print(f"{name}: {value}")
    device = measure_device("cuda")
    print(f"rates: {device}")
    layer = make_layer(args.shape, args.weights)
    print(table(HEADER, [measure(layer, tokens, device) for tokens in args.tokens]), flush=True)
    if args.tune and layer.packed:
        header = ["GEMM", "tokens", *(f"{cut.warps} warps, {cut.blocks} blocks" for cut in CUTS)]
        print(table(header, [row for tokens in (1, 2, 4) for row in time_cuts(layer, tokens)]), flush=True)
    for tile in TILES if args.tune else ():
        header = ["GEMM", "tile", "tokens", "now µs", "best µs", "rows, step, stages, warps, tokens first, bulk"]
        print(table(header, tune(layer, tile, args.seconds)), flush=True)


if __name__ == "__main__":
    main()
