"""Tables of decode attention over shared prefixes of docs/cascade.md and docs/cuda.md.

Microseconds of one layer's decode attention, over whole contexts and over prefixes and suffixes, for batches whose rows
share prefixes.

    python -m benchmarks.kernels.cascade [--device cuda] [--shapes 8b 0.6b] [--seconds 0.5]

On a CPU both are the compiled backend. On CUDA `whole` is the decode kernel over whole contexts; `prefix and suffix` is
that kernel over the suffixes, the kernel over the shared prefixes, and the merge, each also alone. Figures are
medians; on CUDA of replays of a graph, so that launching costs nothing. `planning` is the host's work when the batch's
rows change.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from benchmarks.common import machine
from benchmarks.common.cuda_timing import graph_us
from benchmarks.common.tables import table
from radixrt.attention.base import AttentionLayer
from radixrt.attention.cascade import plan_cascade
from radixrt.attention.kv_cache import KVCache
from radixrt.forward_batch.forward_batch import ForwardBatch, ForwardMode, SharedGroups

SHAPES = {"8b": (32, 8, 128), "0.6b": (16, 8, 128), "smollm2": (9, 3, 64)}
"""Query heads, kv heads, head dim."""
CALLS = 20
"""Calls in one CUDA graph."""


@dataclass(frozen=True)
class Geometry:
    """Nested prefixes: `branches[i]` of `lengths[i]` positions each under every one above; `own` behind the last."""

    branches: Sequence[int]
    lengths: Sequence[int]
    own: int

    @property
    def num_rows(self) -> int:
        return int(np.prod(self.branches))


GEOMETRIES = {
    "cuda": {
        "shared4k": Geometry((1, 256), (4096, 128), 32),
        "tree": Geometry((8, 8, 8), (1024, 256, 64), 16),
        "two rows of 4096": Geometry((1, 2), (4096, 128), 32),
        "8 rows of 512": Geometry((1, 8), (512, 128), 32),
    },
    "cpu": {
        "shared-prefix": Geometry((1, 16), (1200, 40), 8),
        "tree": Geometry((2, 2, 4), (330, 110, 55), 8),
        "two rows of 1200": Geometry((1, 2), (1200, 40), 8),
        "4 rows of 128": Geometry((1, 4), (128, 40), 8),
        "2 rows of 64": Geometry((1, 2), (64, 40), 8),
    },
}


def make_batch(geometry: Geometry, device: str) -> ForwardBatch:
    """A DECODE batch with random slots."""
    rows = geometry.num_rows
    seq_len = sum(geometry.lengths) + geometry.own
    paths = np.zeros((rows, seq_len), np.int64)
    segments, used, start, nodes = [], 1, 0, 1
    for branch, length in zip(geometry.branches, geometry.lengths, strict=True):
        nodes *= branch
        count = rows // nodes
        for node in range(nodes):
            paths[node * count : (node + 1) * count, start : start + length] = np.arange(used, used + length)
            used += length
            if count > 1:
                segments.append((start, length, node * count, count))
        start += length
    paths[:, start:] = np.arange(used, used + rows * geometry.own).reshape(rows, -1)
    used += rows * geometry.own
    places = np.concatenate([[0], np.random.default_rng(0).permutation(used - 1) + 1])
    slots = places[paths]
    req_to_token = np.zeros((rows + 1, seq_len), np.int32)
    req_to_token[1:] = slots
    seq_lens, ones = np.full(rows, seq_len, np.int32), np.ones(rows, np.int32)

    def tensor(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(device)

    return ForwardBatch(
        mode=ForwardMode.DECODE,
        input_ids=tensor(ones),
        positions=tensor(seq_lens - 1),
        req_pool_indices=tensor(np.arange(1, rows + 1)),
        seq_lens=tensor(seq_lens),
        out_cache_loc=tensor(slots[:, -1]),
        logits_index=tensor(np.arange(rows)),
        sample_rows=tensor(np.arange(1, rows + 1)),
        req_to_token=torch.from_numpy(req_to_token).to(device),
        seq_lens_cpu=seq_lens,
        extend_lens_cpu=ones,
        req_pool_indices_cpu=np.arange(1, rows + 1, dtype=np.int32),
        shared=SharedGroups(np.array(segments, np.int32), np.arange(rows, dtype=np.int32)),
    )


def without_sharing(batch: ForwardBatch) -> ForwardBatch:
    return ForwardBatch(**{**vars(batch), "shared": None})


def micros(run: Callable[[], object], seconds: float) -> float:
    """Median of the host's time for one call."""
    run()
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return median(found) * 1e6


def measure_cpu(shape: tuple[int, int, int], geometry: Geometry, seconds: float) -> list[str]:
    from radixrt.attention.cpu import CpuBackend, plan_step
    from radixrt.kernels.build import load_kernels
    from radixrt.kernels.threads import set_threads
    from radixrt.models.loading.source import cache_folder

    heads, kv_heads, dim = shape
    layer = AttentionLayer(0, heads, kv_heads, dim, dim**-0.5)
    batch = make_batch(geometry, "cpu")
    kv = KVCache([layer], int(batch.req_to_token.max()), 1, torch.bfloat16, torch.device("cpu"))
    kv.k[0].normal_()
    kv.v[0].normal_()
    set_threads(load_kernels(cache_folder() / "kernels"), torch.get_num_threads())
    backend = CpuBackend(kv, [layer], cache_folder() / "kernels")
    fused = torch.randn(geometry.num_rows, heads + 2 * kv_heads, dim).bfloat16()
    q, k, v = fused.split([heads, kv_heads, kv_heads], dim=1)
    found = []
    for each in (without_sharing(batch), batch):
        backend.prepare(each)
        result = backend.attend(layer, q, k, v, each)
        found.append((micros(lambda each=each: backend.attend(layer, q, k, v, each), seconds), result.float()))  # type: ignore[misc]
    (plain, expected), (shared, got) = found
    error = float((got - expected).norm() / expected.norm())

    def plan() -> None:
        plan_step(
            batch.seq_lens_cpu, batch.extend_lens_cpu, batch.shared, heads // kv_heads, kv_heads, max_queries=1,
            threads=torch.get_num_threads(),
        )  # fmt: skip

    planning = micros(plan, seconds / 5)
    return [f"{plain:.0f}", f"{shared:.0f}", f"{plain / shared:.2f}", f"{planning:.0f}", f"{error:.1e}"]


def measure_cuda(shape: tuple[int, int, int], geometry: Geometry, seconds: float) -> list[str]:
    from radixrt.attention.cascade import CascadeRunner

    heads, kv_heads, dim = shape
    batch = make_batch(geometry, "cuda")
    assert batch.shared is not None
    rows, idx = geometry.num_rows, np.arange(1, geometry.num_rows + 1, dtype=np.int32)
    scale, slots = dim**-0.5, int(batch.req_to_token.max()) + 1
    pool = torch.randn(2, slots, kv_heads, dim, device="cuda").bfloat16()
    q = torch.randn(rows, heads, dim, device="cuda").bfloat16()
    out = torch.empty(rows, heads * dim, dtype=torch.bfloat16, device="cuda")
    runner = CascadeRunner(
        num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, max_rows=rows, device=torch.device("cuda"),
        dtype=torch.bfloat16,
    )  # fmt: skip
    groups = batch.shared
    planning = micros(lambda: plan_cascade(groups, idx, runner.limits), seconds / 5)
    plan = runner.plan(groups, idx)
    if plan is None:
        raise SystemExit("the step does not fit into the runner's buffers")
    placed = runner.upload(plan)
    plain = _decode(batch, np.zeros(rows, np.int32), shape)
    suffix = _decode(batch, groups.ends(rows), shape)

    def prefix() -> None:
        runner.attend_shared(q, pool[0], pool[1], batch.req_to_token, scale, plan.tile, placed)

    def both() -> torch.Tensor:
        suffix_out, lse = suffix(q, pool)
        prefix()
        runner.merge(suffix_out, lse, out, placed)
        return out

    expected = plain(q, pool)[0].float().flatten(1)
    error = float((both().float() - expected).norm() / expected.norm())
    suffix_out, lse = suffix(q, pool)
    whole, parts = graph_us(lambda: plain(q, pool), calls=CALLS), graph_us(both, calls=CALLS)
    alone = [
        graph_us(run, calls=CALLS)
        for run in (lambda: suffix(q, pool), prefix, lambda: runner.merge(suffix_out, lse, out, placed))
    ]
    times = [f"{x:.1f}" for x in (whole, parts, *alone)]
    work = f"{plan.tile.block_m} x {plan.num_items}"
    return [*times, f"{whole / parts:.2f}", work, f"{planning:.0f}", f"{error:.1e}"]


def _decode(
    batch: ForwardBatch, starts: np.ndarray, shape: tuple[int, int, int]
) -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Attention to positions [starts[i], seq_len) of each row: (out [B, heads, dim], lse [B, heads])."""
    from radixrt.attention.decode_runner import DecodeRunner

    heads, kv_heads, dim = shape
    device, lens = torch.device("cuda"), batch.seq_lens_cpu
    runner = DecodeRunner(
        num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, max_rows=len(lens), kv_dtype=torch.bfloat16,
        device=device, dependent_launch=True,
    )  # fmt: skip
    rows = runner.listed(batch.req_pool_indices, starts, batch.seq_lens, lens, batch.req_to_token)

    def run(q: torch.Tensor, pool: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = torch.empty_like(q), torch.empty(q.shape[:2], device=device)
        runner.attend(q, (pool[0], pool[1]), rows, dim**-0.5, out, lse)
        return out, lse

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=None)
    parser.add_argument("--seconds", type=float, default=0.3, help="duration of each measurement on the host")
    args = parser.parse_args()
    facts = machine.facts() | {"torch": torch.__version__, "threads": torch.get_num_threads()}
    if args.device == "cuda":
        facts["device"] = torch.cuda.get_device_name()
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    shapes = args.shapes or (["smollm2"] if args.device == "cpu" else ["8b", "0.6b"])
    cpu = ["whole", "prefix and suffix", "times as fast", "planning", "error"]
    cuda = [
        "whole",
        "prefix and suffix",
        "suffix",
        "prefix",
        "merge",
        "times as fast",
        "tile x items",
        "planning",
        "relative error",
    ]
    measure = measure_cpu if args.device == "cpu" else measure_cuda
    rows = [
        [shape, name, *measure(SHAPES[shape], geometry, args.seconds)]
        for shape in shapes
        for name, geometry in GEOMETRIES[args.device].items()
    ]
    print(table(["microseconds", "", *(cpu if args.device == "cpu" else cuda)], rows))


if __name__ == "__main__":
    with torch.inference_mode():
        main()
