"""Table "A decode step" of docs/cpu.md: where a recorded decode step on a CPU spends its time, kernel by kernel.

    python -m benchmarks.kernels.cpu_step [--step decode:1x192 ...] [--set dtype=bfloat16 ...] [--rounds 40]

The embedded model, or the model of `--set model=`, computes `decode:ROWSxCONTEXT` steps that are made by hand, without
scheduler and processes. A round computes the whole step, its parts, and then the recorded calls of its layers one by
one. Figures are minima and medians over the rounds in processor time of the calling thread, so that with one thread,
the default, other programs change them little. With more threads that time does not include other threads, and
includes spinning at the end of a loop.

A call from Python takes about a microsecond, which is measured beside each call and subtracted. The bytes are those of
the weights, and for attention those of keys and values.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.common.engine_options import parse_options
from benchmarks.common.machine import facts
from benchmarks.common.tables import table
from benchmarks.kernels.step_profile import make_step, run
from radixrt.config import make_config
from radixrt.engine import assembly
from radixrt.engine.settings import resolve_settings
from radixrt.kernels.compiled import Recording
from radixrt.layers.formats.cpu_codes import PanelLayout
from radixrt.messages.runner import ForwardStep
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.models.decoder import Decoder
from radixrt.runner.graphs.cpu_graph_runner import RECORD_AT_STEP
from radixrt.runner.model_runner import ModelRunner

POOL = 20_000
PARTS = ["kernel", "calls", "min µs a call", "median µs a call", "median ms a step", "GB/s"]
WHOLE = ["part of the step", "min ms", "median ms"]


def seconds(work: Callable[[], Any]) -> float:
    """Processor time of this thread in a call."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


def start_runner(options: dict[str, Any], threads: int) -> ModelRunner:
    """A runner with random numbers in its KV pool."""
    config, settings = resolve_settings(
        make_config(device="cpu", kv_cache_tokens=POOL, executor="uni", num_threads=threads, **options),
        show_progress=False,
    )
    runner = assembly.make_runner(config, settings)
    runner.initialize()
    for pool in (*runner.kv_cache.k, *runner.kv_cache.v):
        pool.normal_()
    return runner


def recorded_step(runner: ModelRunner, text: str) -> tuple[ForwardStep, Recording]:
    """A step to be repeated, and its recording.

    Raises:
        SystemExit: steps of this model are not recorded.
    """
    step = make_step(text)
    rows = len(unpack_i32(step.seq_lens))
    step = msgspec.structs.replace(step, input_ids=pack_i32(np.arange(1, rows + 1)))
    run(runner, step)
    kept = [field for field in step.__struct_fields__ if field not in ("row_writes", "sampling_rows")]
    again = ForwardStep(**{field: getattr(step, field) for field in kept})
    for _ in range(RECORD_AT_STEP):
        run(runner, again)
    graphs = runner._cpu_graphs
    graph = None if graphs is None else graphs._graphs.get(rows)
    if graph is None:
        raise SystemExit(f"{text}: steps of this model and of so many rows are not recorded")
    return again, graph._recording


def weight_of(name: str, args: Sequence[int], library: ctypes.CDLL) -> tuple[str, int]:
    """Return a kernel's name with the shape of its weight, and the bytes of the weight; 0 for other kernels."""
    if name == "radixrt_gemm":
        return f"{name} {args[4]} x {args[5]}", 2 * args[4] * args[5]
    if name == "radixrt_gemm_f32":
        return f"{name} {args[5]} x {args[6]}", 4 * args[5] * args[6]
    if name == "radixrt_codes_gemm":
        layout = PanelLayout.from_address(args[0])
        size = library.radixrt_codes_bytes
        size.restype, size.argtypes = ctypes.c_int64, [ctypes.c_void_p]
        return f"{name} {layout.rows} x {layout.columns}, {layout.bits} bits", size(args[0])
    return name, 0


def print_step(runner: ModelRunner, text: str, rounds: int) -> None:
    """Measure a step and print its two tables."""
    model = runner._model
    assert isinstance(model, Decoder)
    head = model.lm_head
    assert head is not None
    again, recording = recorded_step(runner, text)
    calls, width = len(recording.names), recording._calls.strides[0]
    first = recording._calls.ctypes.data
    parts: dict[str, list[float]] = {name: [] for name in ("whole step", "layers", "embedding", "output head")}
    singles: list[list[float]] = [[] for _ in range(calls)]
    nothing = []
    ids = torch.from_numpy(unpack_i32(again.input_ids).astype(np.int64))
    hidden = model.embed(ids).clone()
    for _ in range(rounds):
        parts["whole step"].append(seconds(lambda: run(runner, again)))
        parts["layers"].append(seconds(recording.replay))
        parts["embedding"].append(seconds(lambda: model.embed(ids)))
        parts["output head"].append(seconds(lambda: head(hidden)))
        for i, found in enumerate(singles):
            found.append(seconds(partial(recording._run, first + i * width, 1)))
            nothing.append(seconds(partial(recording._run, first, 0)))
    kv = runner.kv_cache.k[0][0].nbytes + runner.kv_cache.v[0][0].nbytes
    positions = int(unpack_i32(again.seq_lens).sum())
    kinds: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for i, name in enumerate(recording.names):
        kind, size = weight_of(name, recording.args[i].tolist(), runner._cpu_graphs._library)  # type: ignore[union-attr]
        kinds.setdefault(kind, []).append(i)
        sizes[kind] = kv * positions if "attend" in name else size
    rows = []
    for kind, members in kinds.items():
        times = [t - median(nothing) for i in members for t in singles[i]]
        least, middle = max(0.0, min(times)), max(0.0, median(times))
        rate = f"{sizes[kind] / middle / 1e9:.1f}" if sizes[kind] and middle else ""
        rows.append([kind, str(len(members)), f"{1e6 * least:.1f}", f"{1e6 * middle:.1f}",
                     f"{1e3 * middle * len(members):.2f}", rate])  # fmt: skip
    print(f"\n{text}")
    print(table(WHOLE, [[name, f"{1e3 * min(t):.2f}", f"{1e3 * median(t):.2f}"] for name, t in parts.items()]))
    print(table(PARTS, rows), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", action="append", metavar="decode:ROWSxCONTEXT")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="an engine option")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args(argv)
    if min(args.threads, args.rounds) < 1:
        parser.error("--threads and --rounds must be at least 1")
    steps = args.step or ["decode:1x192"]
    if wrong := [step for step in steps if not step.startswith("decode:")]:
        parser.error(f"--step {wrong[0]}: only steps decode:ROWSxCONTEXT are recorded")
    print("; ".join(f"{name}: {value}" for name, value in facts().items()), flush=True)
    with torch.inference_mode():
        runner = start_runner(parse_options(args.set), args.threads)
        for step in steps:
            print_step(runner, step, args.rounds)
    runner.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
