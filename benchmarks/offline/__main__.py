"""Tables "Offline throughput on one NVIDIA H200" of docs/benchmarks.md and "Floors" of docs/cuda.md.

Throughput of the offline API on the shapes of public models, with dummy weights; two peers have figures for six of the
workloads.

    single     1 request, 64 tokens in, 256 out
    decode64   64 requests, 512 in, 256 out
    prefill    16 requests, 8192 in, 1 out; the figure is prompt tokens a second
    mixed256   256 requests, 100 to 1024 in, 100 to 1024 out (the benchmark of nano-vllm and mini-sglang)
    shared4k   256 requests, a shared prefix of 4096 tokens and 128 of their own, 64 out
    tree       512 requests: 8 roots of 1024, 8 branches of 256 each, 8 leaves of 64 each, shuffled; 32 out
    questions  512 requests, one document of 4096 tokens and 16 of their own, 1 out (a judge, an extractor); no peers
    fork8      128 requests, 8 for each of 16 prefixes of 4096 tokens, 200 of their own, shuffled; 64 out; no peers
    chat8      64 conversations of 8 turns: 300 tokens, then 60 in and 120 out at each turn; no peers

Token ids are uniform in 10..10000, all requests (of chat8, all of a turn) are submitted in one call, temperature 0.6,
the end token is ignored. Each workload runs once to warm up and then --runs times, with other tokens each time and an
empty prefix cache; the figure is the median. With --fresh each workload has an engine of its own, which eight small
requests warm up before, so that the first run is what the first users get. Start-up is the time until the engine
answers. With --filtered each workload also runs with top_p, and with top_p and top_k, in the same engine. Floors follow
from the rates of the device, measured before: a copy, and a GEMM of two 8192 x 8192 bf16 matrices.

Run: python -m benchmarks.offline --shape qwen3-0.6b --shape llama-3.1-8b --explain --json offline.json
     python -m benchmarks.offline --shape qwen3-0.6b --shape llama-3.1-8b --fresh
     python -m benchmarks.offline --shape qwen3-0.6b --shape llama-3.1-8b --workloads mixed256 --filtered
     python -m benchmarks.offline --shape tiny --scale 0.05 --set executor=uni       (on any machine)
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.device_rates import Device, measure_apart
from benchmarks.common.engine_options import parse_options
from benchmarks.common.machine import facts
from benchmarks.common.model_shapes import CONFIGS, Shape, shape_folder, shape_of
from benchmarks.common.tables import table
from benchmarks.offline.workloads import DEFAULT, MAKERS, Floor, Workload, floor_of, make_workload, uncached_floor_of

PEERS: dict[str, dict[str, tuple[float, float, float]]] = {
    "qwen3-0.6b": {
        "single": (610, 568, 900),
        "decode64": (19_240, 19_900, 24_000),
        "prefill": (278_500, 205_600, 300_000),
        "mixed256": (24_200, 22_050, 29_000),
        "shared4k": (9_810, 7_175, 30_000),
        "tree": (17_780, 16_590, 30_000),
    },
    "llama-3.1-8b": {
        "single": (200, 200, 235),
        "decode64": (6_690, 6_640, 7_300),
        "prefill": (39_100, 35_500, 41_000),
        "mixed256": (10_115, 9_970, 11_500),
        "shared4k": (5_440, 4_650, 10_500),
        "tree": (6_630, 5_460, 8_500),
    },
}
"""vLLM 0.26.0, mini-sglang with FlashInfer, and our goals, in tokens a second. The peers' figures were measured on
one H200 in bf16 with dummy weights through their offline APIs, warm, on 2026-11-21."""

PEER_STARTUP_S = {"qwen3-0.6b": (45, 6.5), "llama-3.1-8b": (39, 6.5)}
"""Seconds until vLLM and mini-sglang (kernels cached) were ready there."""

CUDA_OPTIONS: dict[str, Any] = {
    "max_running_requests": 512,
    "chunked_prefill_size": 16_384,
    "context_length": 16_384,
}
"""Options for the shapes that are meant for a GPU, which --set overrides."""
TINY_OPTIONS: dict[str, Any] = {"kv_cache_tokens": 65_536, "max_running_requests": 512, "dtype": "float32"}

TEMPERATURE = 0.6
FILTERS: dict[str, dict[str, float]] = {"": {}, " + top_p": {"top_p": 0.95}, " + both": {"top_p": 0.95, "top_k": 50}}
"""Filters of the sampled tokens, by what they append to the workload's name."""

WARM_UP = (8, 64, 16)
"""Requests with --fresh before the first run, and the tokens of each prompt and of each output."""


@dataclass(frozen=True)
class Result:
    """One workload on one shape: tokens and seconds of each run, the rate of the first and the median of all, and what
    the scheduler counted over all of them, of `SchedulerStats`. `first_tokens` are seconds from the call to the first
    token of each request of all runs. The floors are those of the last run, with and without sharing."""

    shape: str
    workload: str
    requests: int
    tokens: list[int]
    seconds: list[float]
    first: float
    rate: float
    scheduler: dict[str, float]
    first_tokens: list[float]
    floors: tuple[Floor, Floor] | None = None


COUNTED = ("extend_steps", "decode_steps", "retractions", "cached_tokens", "schedule_s", "runner_s", "commit_s")


def run_once(
    engine: Any, workload: Workload, filters: dict[str, float], first_tokens: list[float] | None = None
) -> float:
    """Seconds from the call with all prompts to its return, of all turns.

    Args:
        filters: more parameters of sampling.
        first_tokens: becomes longer by the seconds from the call to the first token of each request.

    Raises:
        RuntimeError: a request did not get all its tokens.
    """
    prompts = workload.prompts()
    common: dict[str, Any] = {"temperature": TEMPERATURE, "ignore_eos": True, "detokenize": False, **filters}
    sampling = [{**common, "max_tokens": n} for n in workload.outputs]
    seconds = 0.0
    answers: list[list[int]] = []
    for turn in range(1 + len(workload.turns)):
        if turn:
            prompts = workload.next_prompts(turn, prompts, answers)
        called, started = time.monotonic(), time.perf_counter()  # the scheduler's clock is the monotonic one
        outputs = engine.generate(prompts, sampling, progress=False)
        seconds += time.perf_counter() - started
        if first_tokens is not None:
            times = [output.timings for output in outputs]
            first_tokens += [each.arrived_at + each.queue_s + each.prefill_s - called for each in times]
        answers = [output.token_ids for output in outputs]
        got = [len(answer) for answer in answers]
        if got != workload.outputs:
            wrong = next(i for i, (a, b) in enumerate(zip(got, workload.outputs, strict=True)) if a != b)
            raise RuntimeError(f"{workload.name}: request {wrong} has {got[wrong]} of {workload.outputs[wrong]} tokens")
    return seconds


def warm_up(engine: Any) -> None:
    """Run the few small requests of `WARM_UP`."""
    requests, tokens, output = WARM_UP
    prompts = [[10 + (i * tokens + j) % 9_990 for j in range(tokens)] for i in range(requests)]
    engine.generate(prompts, {"temperature": TEMPERATURE, "max_tokens": output, "ignore_eos": True}, progress=False)


def measure(
    engine: Any, shape: str, name: str, *, runs: int, scale: float, seed: int, fresh: bool = False, filters: str = "",
    copies: int = 1, device: Device | None = None, costs: Shape | None = None,
) -> Result:  # fmt: skip
    """A warm-up run, unless the engine is to be `fresh`, and `runs` measured ones, the prefix cache empty before each;
    `filters` is a key of FILTERS, and `copies` of the workload run at once. Floors need the rates of a
    `device`, and the `costs` of the shape with the engine's options."""
    seconds: list[float] = []
    tokens: list[int] = []
    first_tokens: list[float] = []
    before: dict[str, float] = {}
    for run in range(0 if fresh else -1, runs):
        workload = make_workload(name, seed=seed + run + 1, scale=scale, copies=copies)
        engine.flush_cache()
        if run == 0:
            before = counters(engine)
        taken = run_once(engine, workload, FILTERS[filters], first_tokens if run >= 0 else None)
        if run >= 0:
            seconds.append(taken)
            tokens.append(workload.counted_tokens)  # lengths are drawn anew for each run
    engine.flush_cache()  # also brings the scheduler's counters up to date
    after = counters(engine)
    spent = {key: after[key] - before[key] for key in after}
    rates = [count / taken for count, taken in zip(tokens, seconds, strict=True)]
    floors = None
    if device is not None:
        costs = costs or shape_of(shape)
        floors = floor_of(workload, costs, device), uncached_floor_of(workload, costs, device)
    return Result(
        shape,
        name + filters,
        len(workload.paths),
        tokens,
        seconds,
        rates[0],
        median(rates),
        spent,
        first_tokens,
        floors,
    )


def counters(engine: Any) -> dict[str, float]:
    stats = engine.stats
    return {name: getattr(stats, name) if stats is not None else 0 for name in COUNTED}


def result_row(result: Result, *, scaled: bool) -> list[str]:
    """Row of the table: ours beside the peers', whose figures are omitted for scaled workloads."""
    spread = f"{min(result.seconds):.3f}-{max(result.seconds):.3f}"
    first = f"{result.first / result.rate:.2f}"
    row = [result.workload, f"{result.rate:,.0f}", first, f"{median(result.seconds):.3f}", spread]
    peers = PEERS.get(result.shape, {}).get(result.workload)
    if peers is None or scaled:
        return [*row, "-", "-", "-", "-"]
    vllm, sglang, goal = peers
    return [*row, f"{vllm:,.0f}", f"{sglang:,.0f}", f"{goal:,.0f}", f"{result.rate / max(vllm, sglang):.2f}"]


HEADER = [
    "workload",
    "tok/s",
    "first / median",
    "median s",
    "s, all runs",
    "vLLM 0.26",
    "mini-sglang",
    "goal",
    "ratio to the faster peer",
]


def explanation(results: Sequence[Result], runs: int) -> str:
    """Bytes and operations of each workload, the time that the device needs for them at least, how many times that is
    without a prefix cache, and what it took."""
    rows = []
    for result in results:
        assert result.floors is not None
        (floor, uncached), taken = result.floors, median(result.seconds)
        steps = (result.scheduler["extend_steps"] + result.scheduler["decode_steps"]) / runs
        rows.append([
            result.workload,
            f"{floor.new_tokens:,}",
            f"{floor.prefill_flops / 1e12:.1f}",
            f"{floor.prefill_s * 1e3:.1f}",
            f"{floor.decode_steps}",
            f"{floor.decode_bytes / 1e9:.1f}",
            f"{floor.decode_s * 1e3:.1f}",
            f"{floor.seconds * 1e3:.1f}",
            f"{uncached.seconds / floor.seconds:.2f}",
            f"{taken * 1e3:.1f}",
            f"{floor.seconds / taken:.0%}",
            f"{steps:.0f}",
        ])  # fmt: skip
    header = ["workload", "new prompt tok", "prefill TFLOP", "floor ms", "decode steps", "decode GB", "floor ms"]
    header += ["floor, all ms", "floor without cache / floor", "measured ms", "floor / measured", "steps run"]
    return table(header, rows)


def machine_facts() -> dict[str, Any]:
    """Facts of `benchmarks.common.machine`, the GPUs, and the versions of the libraries that compute."""
    found: dict[str, Any] = dict(facts())
    found["gpus"] = _gpus()
    for package in ("torch", "triton", "flashinfer-python"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _gpus() -> str:
    if shutil.which("nvidia-smi") is None:
        return "none"
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {error}"


def run_shape(shape: str, device: Device, args: argparse.Namespace) -> tuple[float, list[Result]]:
    """Start the engine once, or with --fresh for each workload, run every workload, print as it goes; returns the
    seconds of the last start-up and the results."""
    options = TINY_OPTIONS if shape.startswith("tiny") else CUDA_OPTIONS
    options = {**options, "load_format": "dummy", "log_level": "warning"}
    options.update(parse_options(args.set))
    if not args.fresh:
        return run_workloads(shape, options, args.workloads, device, args)
    startup, results = 0.0, []
    for name in args.workloads:
        startup, found = run_workloads(shape, options, [name], device, args)
        results += found
    return startup, results


def run_workloads(
    shape: str, options: dict[str, Any], workloads: Sequence[str], device: Device, args: argparse.Namespace
) -> tuple[float, list[Result]]:
    """Run workloads on one engine; see `run_shape`."""
    from radixrt import Engine

    folder = shape_folder(shape)
    started = time.perf_counter()
    with Engine(str(folder), show_progress=False, **options) as engine:
        startup = time.perf_counter() - started
        info = engine.client.info
        assert info is not None
        print(
            f"\n## {shape}: ready after {startup:.1f} s on {info.device} in {info.dtype}, {info.num_slots:,} KV slots"
        )
        print(f"options: {', '.join(f'{k}={v}' for k, v in sorted(options.items()))}", flush=True)
        results = []
        if args.fresh:
            warm_up(engine)
        costs = shape_of(shape, options)
        options = {"runs": args.runs, "scale": args.scale, "seed": args.seed, "fresh": args.fresh}
        for name, filters in itertools.product(workloads, FILTERS if args.filtered else [""]):
            result = measure(engine, shape, name, filters=filters, device=device, costs=costs, **options)
            results.append(result)
            seconds = ", ".join(f"{s:.3f}" for s in result.seconds)
            print(f"{result.workload}: {result.rate:,.0f} tok/s, {seconds} s", flush=True)
    return startup, results


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", choices=sorted(CONFIGS), help="may be repeated; default: tiny")
    parser.add_argument("--workloads", nargs="+", choices=list(MAKERS), default=list(DEFAULT))
    parser.add_argument("--scale", type=float, default=1.0, help="shrinks numbers of requests and lengths")
    parser.add_argument("--runs", type=int, default=3, help="measured runs of each workload")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="an option of the engine")
    parser.add_argument("--fresh", action="store_true", help="a fresh engine for each workload, hardly warmed up")
    parser.add_argument("--filtered", action="store_true", help="each workload also with top_p, and with top_k too")
    parser.add_argument("--explain", action="store_true", help="also the least time that the device needs")
    parser.add_argument("--json", type=Path, help="write everything there too")
    args = parser.parse_args(argv)
    if args.runs < 1 or not args.scale > 0:
        parser.error("--runs must be at least 1 and --scale above 0")
    machine = machine_facts()
    on_cpu = machine["gpus"] == "none" or parse_options(args.set).get("device") == "cpu"
    device = measure_apart("cpu" if on_cpu else "cuda")
    machine["rates"] = str(device)
    print("\n".join(f"{name}: {value}" for name, value in machine.items()))
    written: dict[str, Any] = {"machine": machine, "arguments": {**vars(args), "json": str(args.json)}, "shapes": {}}
    for shape in args.shape or ["tiny"]:
        startup, results = run_shape(shape, device, args)
        print("\n" + table(HEADER, [result_row(result, scaled=args.scale != 1.0) for result in results]))
        if shape in PEER_STARTUP_S:
            vllm, sglang = PEER_STARTUP_S[shape]
            print(f"start-up: {startup:.1f} s (vLLM {vllm} s, mini-sglang {sglang} s with its kernels cached)")
        if args.explain:
            print("\n" + explanation(results, args.runs), flush=True)
        written["shapes"][shape] = {"startup_s": startup, "results": [dataclasses.asdict(r) for r in results]}
        if args.json is not None:
            args.json.write_text(json.dumps(written, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
