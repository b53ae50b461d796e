"""Tables of docs/scale.md: which layout of the GPUs of a machine to choose for which workload.

Runs the six workloads of `benchmarks.offline` that have peers, with its options and dummy weights, in every layout of
the GPUs that there are: tensor-parallel ranks (tp), pipeline stages (pp), replicas behind the router (r), and products,
e.g. tp2-pp2-r2 on eight GPUs. One GPU always runs too, to be compared with. Layouts that the model does not fit are
listed with the reason.

    weights   GiB on each GPU
    KV room   tokens that the KV pools of all replicas hold
    TTFT      time to first token: from the call with all requests to a request's first token; p50 and p99
    floor     the least time by the rates of a GPU, which are measured before: a copy and a GEMM; see `layout_floors`.
              What goes between GPUs takes no time in it. --plan where there is no GPU takes the rates of an H200
    times     tokens a second, relative to one GPU

With --copies N, N of each workload run at once, on one GPU too: so many replicas then have as much work each as one GPU
has without. --plan starts nothing, and prints what fits and the floors as tokens a second.

Run: python -m benchmarks.offline.layouts --shape llama-3.1-8b llama-3.1-70b --json layouts.json    (all GPUs)
     python -m benchmarks.offline.layouts --shape llama-3.1-8b --gpus 2 4 8 --workloads decode64 tree
     python -m benchmarks.offline.layouts --shape llama-3.1-8b --layouts one r4 --copies 4 --workloads shared4k tree
     python -m benchmarks.offline.layouts --shape llama-3.1-70b --plan --gpus 8 --memory-gib 140    (any machine)
     python -m benchmarks.offline.layouts --shape tiny --device cpu --gpus 2 --scale 0.05    (any machine; ranks share
                                                                                              its cores)
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.device_rates import H200, Device, measure_apart
from benchmarks.common.engine_options import parse_options
from benchmarks.common.model_shapes import CONFIGS, shape_folder
from benchmarks.offline.__main__ import CUDA_OPTIONS, TINY_OPTIONS, machine_facts, measure
from benchmarks.offline.layout_floors import layout_floor
from benchmarks.offline.layout_plan import GIB, Fit, Layout, fit_of, layouts_for, parse_layout
from benchmarks.offline.layout_tables import (
    Cell,
    Started,
    choices,
    choices_table,
    plan_table,
    results_table,
    started_table,
)
from benchmarks.offline.workloads import make_workload
from radixrt.bench.result import percentile
from radixrt.errors import ConfigError, EngineError, ModelLoadError, RequestError

WORKLOADS = ("single", "decode64", "prefill", "mixed256", "shared4k", "tree")


def run_layout(shape: str, layout: Layout, fit: Fit, args: argparse.Namespace) -> tuple[Started, list[Cell]]:
    """Start an engine in a layout and run every workload on it; an engine or a workload that fails is the reason for
    which it has no more results."""
    from radixrt import Engine

    cells: list[Cell] = []
    started = Started(layout, fit.weight_gib, problem=fit.problem)
    if fit.problem:
        return started, cells
    begun = time.perf_counter()
    try:
        with Engine(str(shape_folder(shape)), show_progress=False, **options_of(shape, args), **layout.options) as made:
            info = made.client.info
            assert info is not None
            seconds = time.perf_counter() - begun
            room = info.num_slots * layout.replicas  # of replicas, the announced pool is the smallest one
            started = dataclasses.replace(started, kv_tokens=room, startup_s=seconds)
            for name in args.workloads:
                cells.append(run_workload(made, shape, layout, name, args))
                print(f"{shape}, {layout.name}, {name}: {cells[-1].rate:,.0f} tok/s", flush=True)
    except (ConfigError, EngineError, ModelLoadError, RequestError, RuntimeError) as error:
        started = dataclasses.replace(started, problem=" ".join(str(error).split()))
        print(f"{shape}, {layout.name}: {started.problem}", flush=True)
    return started, cells


def run_workload(engine: Any, shape: str, layout: Layout, name: str, args: argparse.Namespace) -> Cell:
    """Warm up, then measure every run; its floor is that of the very requests that it had."""
    sizes = {"scale": args.scale, "copies": args.copies}
    result = measure(engine, shape, name, runs=args.runs, seed=args.seed, **sizes)
    workloads = [make_workload(name, seed=args.seed + run + 1, **sizes) for run in range(args.runs)]
    floors = [layout_floor(workload, shape, layout, args.rates) for workload in workloads]
    return Cell(
        layout,
        name,
        rates=[tokens / seconds for tokens, seconds in zip(result.tokens, result.seconds, strict=True)],
        ttft_p50=percentile(result.first_tokens, 50),
        ttft_p99=percentile(result.first_tokens, 99),
        floor_share=median(floor / seconds for floor, seconds in zip(floors, result.seconds, strict=True)),
    )


def options_of(shape: str, args: argparse.Namespace) -> dict[str, Any]:
    """Options of the engine in every layout."""
    options = TINY_OPTIONS if shape.startswith("tiny") else CUDA_OPTIONS
    common = {"load_format": "dummy", "log_level": "warning", "device": args.device}
    return {**options, **common, **parse_options(args.set)}


def fits_of(shape: str, layouts: Sequence[Layout], memory: int, args: argparse.Namespace) -> dict[Layout, Fit]:
    """Return whether each layout fits the machine, by sizes alone."""
    options = options_of(shape, args)
    context = options.get("context_length") or 1  # pools of a given size may be smaller than the longest request
    folder = str(shape_folder(shape))
    kind = {"device": args.device, "dtype": options.get("dtype", "auto"), "context_length": context}
    return {layout: fit_of(layout, folder, memory=memory, **kind) for layout in layouts}


def machine_of(args: argparse.Namespace) -> tuple[str, int, int]:
    """Return the device (cuda or cpu), the number of GPUs, and the bytes of the one with the least memory; of a CPU,
    as many ranks as are asked for, and the memory of all."""
    import torch

    asked = max(args.gpus or [1])
    given = args.memory_gib and int(args.memory_gib * GIB)
    if args.plan and given:
        return "cuda" if args.device == "auto" else args.device, asked, given
    if args.device == "cpu" or (args.device == "auto" and not torch.cuda.is_available()):
        pages = Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]
        return "cpu", max(asked, *(layout.gpus for layout in args.layouts or [Layout()])), given or int(pages) * 1024
    if not torch.cuda.is_available():
        raise SystemExit("--device cuda: this machine shows no GPU; use --device cpu, or --plan with --memory-gib")
    return "cuda", torch.cuda.device_count(), given or _least_gpu_bytes()


def rates_of(args: argparse.Namespace) -> Device:
    """Measure a GPU, or the CPU; a plan for GPUs that are elsewhere has the rates of an H200."""
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        return H200
    return measure_apart(args.device)


def compile_kernels(shape: str, layout: Layout, args: argparse.Namespace) -> None:
    """Start an engine that waits for FlashInfer's kernels, and close it: otherwise those that this machine lacks would
    be compiled while the first layout is measured, and its prompts computed by slower ones."""
    from radixrt import Engine

    options = {"attention_backend": "flashinfer", **options_of(shape, args)}
    begun = time.perf_counter()
    try:
        with Engine(str(shape_folder(shape)), show_progress=False, **options, **layout.options):
            print(f"{shape}: kernels are compiled and loaded, {time.perf_counter() - begun:.0f} s", flush=True)
    except (ConfigError, EngineError, ModelLoadError) as error:
        print(f"{shape}: kernels are not compiled beforehand: {' '.join(str(error).split())}", flush=True)


def _least_gpu_bytes() -> int:
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SystemExit(f"nvidia-smi does not tell the GPUs' memory ({error}); give it by --memory-gib") from None
    return min(int(line) for line in told.split()) << 20


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=sorted(CONFIGS), default=["tiny"])
    parser.add_argument("--gpus", nargs="+", type=int, help="numbers of GPUs to be laid out; default: all")
    parser.add_argument("--layouts", nargs="+", type=_layout, help="these alone, e.g. one tp2 tp2-pp2 r4")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--memory-gib", type=float, help="of each GPU; default: what nvidia-smi tells")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--copies", type=int, default=1, help="so many of each workload at once")
    parser.add_argument("--scale", type=float, default=1.0, help="shrinks numbers of requests and lengths")
    parser.add_argument("--runs", type=int, default=2, help="measured runs of each workload, after a warm-up")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="an option of all engines")
    parser.add_argument("--plan", action="store_true", help="start nothing; print what fits, and the floors")
    parser.add_argument("--json", type=Path, help="write everything there too, after each layout")
    args = parser.parse_args(argv)
    if min(args.runs, args.copies, *(args.gpus or [1])) < 1 or not args.scale > 0:
        parser.error("--runs, --copies and --gpus must be at least 1, and --scale above 0")
    if args.memory_gib is not None and not args.memory_gib > 0:
        parser.error("--memory-gib must be above 0")
    for name in ("tp", "pp", "replicas", "device"):
        if name in parse_options(args.set):
            parser.error(f"--set {name}: layouts have it; use --layouts or --device")
    args.device, gpus, args.memory = machine_of(args)
    args.layouts = list(dict.fromkeys(args.layouts or layouts_for(args.gpus or [gpus])))
    most = max([*(args.gpus or [1]), *(layout.gpus for layout in args.layouts)])
    if not args.plan and most > gpus:
        parser.error(f"{most} GPUs are asked for, and this machine shows {gpus}; --plan needs none")
    return args


def _layout(name: str) -> Layout:
    try:
        return parse_layout(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run_shape(shape: str, args: argparse.Namespace, written: dict[str, Any]) -> None:
    """Run a shape in all layouts, print its tables, and keep all in `written`, which --json gets after each layout."""
    fits = fits_of(shape, args.layouts, args.memory, args)
    started: list[Started] = []
    cells: list[Cell] = []
    fitting = [layout for layout in args.layouts if not fits[layout].problem]
    if args.device == "cuda" and fitting:
        compile_kernels(shape, fitting[0], args)
    for layout in args.layouts:
        start, found = run_layout(shape, layout, fits[layout], args)
        started.append(start)
        cells += found
        written["shapes"][shape] = {
            "layouts": [{"name": each.layout.name, **dataclasses.asdict(each)} for each in started],
            "results": [{"name": each.layout.name, **dataclasses.asdict(each)} for each in cells],
            "choices": [dataclasses.asdict(each) for each in choices(cells)],
        }
        write(args.json, written)
    print(f"\n## {shape}\n\n{started_table(started)}")
    if cells:
        print(f"\n{results_table(cells)}\n\n{choices_table(cells)}")
    sys.stdout.flush()


def write(path: Path | None, written: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(written, indent=1))


def plan_shape(shape: str, args: argparse.Namespace, written: dict[str, Any]) -> None:
    """Print what fits, and the floors as tokens a second."""
    fits = fits_of(shape, args.layouts, args.memory, args)
    made = [make_workload(name, seed=args.seed, scale=args.scale, copies=args.copies) for name in args.workloads]
    rates = {
        layout: {work.name: work.counted_tokens / layout_floor(work, shape, layout, args.rates) for work in made}
        for layout, fit in fits.items()
        if not fit.problem
    }
    print(f"\n## {shape}\n\n{plan_table(fits, rates, args.workloads)}", flush=True)
    written["shapes"][shape] = [
        {"name": layout.name, **dataclasses.asdict(fit), "floor_rates": rates.get(layout)}
        for layout, fit in fits.items()
    ]
    write(args.json, written)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_arguments(argv)
    args.rates = rates_of(args)
    machine = {**machine_facts(), "rates": str(args.rates)}
    print("\n".join(f"{name}: {value}" for name, value in machine.items()))
    names = [layout.name for layout in args.layouts]
    arguments = {**vars(args), "json": str(args.json), "layouts": names, "rates": dataclasses.asdict(args.rates)}
    written: dict[str, Any] = {"machine": machine, "arguments": arguments, "shapes": {}}
    for shape in args.shape:
        (plan_shape if args.plan else run_shape)(shape, args, written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
