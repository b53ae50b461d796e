"""Tables "The host path alone" of docs/benchmarks.md: scheduler, tokenizer and main on one core, without a device.

The device answers at once, with random tokens.

    steps      rows that decode: microseconds of each part for one step, and for one row of it. "turnaround" is from
               taking an answer to the next submission, which is what a device may wait for
    workloads  the workloads of benchmarks.offline: seconds of each part from the call to the last token
    busy       the scheduler's loop in this process and a device in another that takes a fixed time for each step, over
               the real sockets: the part of the time that the device computes
    chain      from an answer to the next mask and the next step, for rows with and without a JSON schema: medians and
               90th percentiles of the parts (benchmarks.host.chain)
    first-steps
               rounds of 64 rows with schemas of `--schemas`, or some of its own: the scheduler's milliseconds until the
               next mask, and in all, of steps 1 to 5 and 6 to 25 of each round (benchmarks.host.first_steps)
    gaps       pauses of running streams while the tokenizer process encodes long prompts, at once or in its thread
               (benchmarks.host.gaps)
    chunks     the main process alone: microseconds for each streamed chunk of each route (benchmarks.host.chunks)

Run: python -m benchmarks.host [PART ...] [--rows 1 64 256 512] [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import pstats
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import zmq

from benchmarks.common.model_shapes import CONFIGS, shape_folder
from benchmarks.common.tables import table
from benchmarks.host.chain import PARTS, SCHEMA, SPANS, measure_chain
from benchmarks.host.chunks import BODIES, measure_chunks
from benchmarks.host.first_steps import SCHEMAS, measure_first_steps
from benchmarks.host.gaps import measure_gaps
from benchmarks.host.pipeline import Pipe, Wire, make_loop
from benchmarks.offline.workloads import DEFAULT, Workload, make_workload
from benchmarks.structure.rounds import mixed_schemas
from radixrt.bench.result import percentile
from radixrt.client.collector import OutputCollector
from radixrt.config import ModelConfig, SchedulerConfig
from radixrt.constrained.compile.grammar_manager import GrammarManager
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.executor.multiproc_executor import MultiprocExecutor, RankEndpoints
from radixrt.messages.client import ToTokenizer
from radixrt.messages.request import Request
from radixrt.messages.scheduler import ToScheduler
from radixrt.messages.wire import pack_i32
from radixrt.models.loading.source import prepare_model
from radixrt.parts.simulated import make_scheduler
from radixrt.sampling_params import SamplingParams
from radixrt.tasks.generate import Job, jobs

SHAPE = "qwen3-0.6b"
WORKLOADS = [name for name in DEFAULT if not make_workload(name, seed=0, scale=0.01).turns]
"""Those whose requests are all submitted at once."""
PROMPT_TOKENS = 64
FIRST_ROWS = 64
STEP_PARTS = ("next_batch", "submit", "turnaround", "commit", "deltas", "scheduler", "tokenizer out", "main out")
WORKLOAD_PARTS = (
    "main in", "tokenizer in", "scheduler", "next_batch", "submit", "commit", "deltas", "tokenizer out", "main out",
)  # fmt: skip
BUSY_STEPS_MS = {0.6: 1, 1.1: 1, 2.5: 64, 6.0: 512}
"""Step times with the rows that take about so long on an H200."""
PREPARE_MS = 0.5
"""Time that a runner there needs from a step's message to the beginning of its work on the device."""


def plain_workload(rows: int, output: int, seed: int = 0) -> Workload:
    base = make_workload("decode64", seed=seed, scale=1.0)
    length = min(PROMPT_TOKENS, len(base.segments[0]))
    segments = [base.segments[i % 64][i // 64 * length : (i // 64 + 1) * length] for i in range(rows)]
    return Workload("plain", segments, [(i,) for i in range(rows)], [output] * rows)


def submit(pipe: Pipe, workload: Workload, *, detokenize: bool) -> list[tuple[Job, Any]]:
    """Submit as `Engine.generate` does; the time is "main in"."""
    prompts = workload.prompts()
    with pipe.times.of("main in"):
        params = [
            {"temperature": 0.6, "max_tokens": n, "ignore_eos": True, "detokenize": detokenize}
            for n in workload.outputs
        ]
        return [(job, pipe.client.stream(job.request)) for job in jobs(list(prompts), params, {})]


def collect(pipe: Pipe, streams: list[tuple[Job, Any]]) -> int:
    """Collect all requests, which have ended, and return their output tokens; the time is "main out"."""
    tokens = 0
    with pipe.times.of("main out"):
        for _, stream in streams:
            collector = OutputCollector()
            for output in stream:
                whole = collector.add(output)
            assert whole is not None
            tokens += len(whole.token_ids)
    return tokens


def measure_steps(folder: Path, rows: int, steps: int, *, detokenize: bool, profile: bool) -> dict[str, float]:
    """Microseconds of each part for one decode step of `rows`."""
    pipe = Pipe(folder)
    streams = submit(pipe, plain_workload(rows, steps + 40), detokenize=detokenize)
    while pipe.scheduler.waiting or pipe.device.tokens < 10 * rows:
        pipe.turn()
    _settle()
    pipe.turn()
    pipe.times.clear()
    first, profiler = pipe.device.steps, cProfile.Profile()
    if profile:
        profiler.enable()
    while pipe.device.steps < first + steps:
        pipe.turn()
    profiler.disable()
    measured = dict(pipe.times.seconds)
    while pipe.client.open_requests:
        pipe.turn()
    tokens = collect(pipe, streams)
    assert tokens == rows * (steps + 40), tokens
    pipe.close()
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(28)
    measured["scheduler"] = measured["loop"] - measured["device"]
    return {part: measured.get(part, 0.0) / steps * 1e6 for part in STEP_PARTS}


def measure_workload(folder: Path, name: str, *, detokenize: bool, profile: bool) -> dict[str, float]:
    """Seconds of each part for a whole workload, and the steps that it took."""
    pipe = Pipe(folder)
    workload = make_workload(name, seed=0)
    _settle()
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    streams = submit(pipe, workload, detokenize=detokenize)
    while pipe.client.open_requests:
        pipe.turn()
    tokens = collect(pipe, streams)
    profiler.disable()
    assert tokens == workload.output_tokens
    pipe.close()
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(28)
    times = pipe.times.seconds
    times["scheduler"] = times["loop"] - times["device"]
    return {**{part: times[part] for part in WORKLOAD_PARTS}, "steps": pipe.device.steps}


def measure_busy(
    rows: int, step_ms: float, steps: int, depth: int, folder: Path, shape: Mapping[str, Any],
    schema: dict[str, Any] | None = None,
) -> tuple[float, float]:  # fmt: skip
    """The device's busy share over `steps` decode steps, and the mean milliseconds between two steps.

    Args:
        schema: what the rows are constrained by; then the runner also takes `PREPARE_MS` to prepare each step, once the
            mask of the step before has come.
    """
    vocab_size, eos_id = shape["vocab_size"], shape["eos_token_id"]
    config = SchedulerConfig(max_running_requests=512, max_queued_requests=1024, chunked_prefill_size=8192)
    with tempfile.TemporaryDirectory(prefix="radixrt-host-") as scratch:
        context: zmq.Context[Any] = zmq.Context()
        endpoints = [f"ipc://{scratch}/{name}" for name in ("runner", "answers")]
        ranks = RankEndpoints(endpoints[:1], endpoints[1])
        masks, prepare_ms = f"{scratch}/masks", 0.0 if schema is None else PREPARE_MS
        command = [sys.executable, "-m", "benchmarks.host.device", *endpoints]
        command += [str(step_ms), str(prepare_ms), masks, str(vocab_size), str(eos_id)]
        device = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        executor = MultiprocExecutor(context, lambda epoch: ranks, mask_path=masks)
        try:
            executor.wait_ready(30.0)
            inbox: Wire[ToScheduler] = Wire(ToScheduler)
            to_tokenizer: Wire[ToTokenizer] = Wire(ToTokenizer)
            grammars = GrammarManager(lambda: Vocabulary.from_folder(folder, vocab_size, [eos_id]), inline=True)
            scheduler = make_scheduler(
                config, 1 << 20, context_length=16_384, eos_ids=[eos_id], vocab_size=vocab_size, grammars=grammars
            )
            loop = make_loop(scheduler, executor, inbox, to_tokenizer, depth=depth)
            workload = plain_workload(rows, steps + 1)
            given: dict[str, Any] = {} if schema is None else {"json_schema": schema}
            sampling = SamplingParams(temperature=0.6, max_tokens=steps + 1, ignore_eos=schema is None, **given)
            for i, prompt in enumerate(workload.prompts()):
                inbox.send(Request.generate(str(i), pack_i32(prompt), sampling))
            _settle()
            while not scheduler.counters.finished:
                loop.run_once(wait=True)
                to_tokenizer.clear()
            while loop.inflight:
                loop.run_once(wait=True)
            loop.close()
        finally:
            executor.close()
            context.destroy(linger=0)
        said, _ = device.communicate(timeout=30)
    busy, interval = map(float, said.split()[-2:])
    return busy, interval


def _spread(seconds: Sequence[float]) -> str:
    return f"{median(seconds) * 1e6:.0f} / {percentile(seconds, 90) * 1e6:.0f}" if seconds else "-"


def _settle() -> None:
    gc.collect()
    gc.freeze()


Table = tuple[str, Sequence[str], list[list[str]]]
"""Title, headings and rows."""


def _steps(args: argparse.Namespace, folder: Path) -> Table:
    rows = []
    for count in args.rows:
        part = measure_steps(folder, count, args.steps, detokenize=args.detokenize, profile=args.profile)
        rows.append([str(count), *(f"{part[p]:.0f} ({part[p] / count:.2f})" for p in STEP_PARTS)])
    return "microseconds for a step (for each of its rows)", ["rows", *STEP_PARTS], rows


def _workloads(args: argparse.Namespace, folder: Path) -> Table:
    rows = []
    for name in args.workloads:
        part = measure_workload(folder, name, detokenize=args.detokenize, profile=args.profile)
        rows.append([name, f"{part['steps']:.0f}", *(f"{part[p] * 1e3:.1f}" for p in WORKLOAD_PARTS)])
    return "milliseconds for a workload", ["workload", "steps", *WORKLOAD_PARTS], rows


def _chain(args: argparse.Namespace, folder: Path) -> Table:
    rows = []
    for count in args.rows:
        for name, schema in (("plain", None), ("constrained", SCHEMA)):
            found = measure_chain(folder, CONFIGS[SHAPE], count, args.steps, schema)
            rows.append([str(count), name, *(_spread(found[part]) for part in (*PARTS, *SPANS))])
    return "microseconds from an answer, median / 90th percentile", ["rows", "", *PARTS, *SPANS], rows


def _first_steps(args: argparse.Namespace, folder: Path) -> Table:
    schemas = SCHEMAS if args.schemas is None else mixed_schemas(args.schemas)
    profiler = cProfile.Profile() if args.profile else None
    rounds = measure_first_steps(folder, CONFIGS[SHAPE], FIRST_ROWS, args.rounds, schemas, profiler)
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(28)
    rows = [
        [str(i + 1), *(f"{seconds * 1e3:.1f}" for seconds in (each.admission, *each.sums())), str(each.tokens)]
        for i, each in enumerate(rounds)
    ]
    for name, each in (("1", rounds[0]), (str(len(rounds)), rounds[-1])):
        print(f"round {name}, ms to the mask of steps 1 to 30:", *(f"{1e3 * (s or 0):.1f}" for s in each.to_mask[:30]))
    parts = ["1-5 to mask", "1-5 in all", "6-25 to mask", "6-25 in all"]
    title = f"milliseconds of rounds of {FIRST_ROWS} rows with {len(schemas)} schemas"
    return title, ["round", "admission", *parts, "tokens"], rows


def _busy(args: argparse.Namespace, folder: Path) -> Table:
    rows = []
    for step_ms, count in BUSY_STEPS_MS.items():
        for name, schema in (("plain", None), ("constrained", SCHEMA)):
            busy, interval = measure_busy(count, step_ms, args.steps, args.depth, folder, CONFIGS[SHAPE], schema)
            rows.append([f"{step_ms} ms", f"{count} {name}", f"{busy:.1%}", f"{interval:.3f}"])
    title = f"the device's share of the time, {args.depth} steps in flight"
    return title, ["step", "rows", "busy", "ms from step to step"], rows


def _gaps(args: argparse.Namespace, folder: Path) -> Table:
    rows = []
    model = prepare_model(ModelConfig(), device="cpu", show_progress=False).folder
    for kind, chat in (("text", False), ("chat", True)):
        for where, threaded in (("at once", False), ("thread", True)):
            measured = measure_gaps(model, args.prompts, args.words, chat=chat, threaded=threaded)
            shown = (percentile(measured.gaps, 50), percentile(measured.gaps, 99), max(measured.gaps))
            rows.append([kind, where, *(f"{gap * 1e3:.0f}" for gap in shown), f"{measured.encoded_s:.1f}"])
    title = f"milliseconds between two tokens of a stream, while {args.prompts} prompts of {args.words} words come"
    return title, ["prompts", "encoded", "median", "99th percentile", "longest", "s for all"], rows


def _chunks(args: argparse.Namespace, folder: Path) -> Table:
    rows = []
    for route in BODIES:
        costs = measure_chunks(route, args.streams, args.steps)
        rows.append([route, f"{costs.loop * 1e6:.1f}", f"{costs.dispatch * 1e6:.1f}"])
    return f"microseconds for a chunk of one of {args.streams} streams", ["route", "event loop", "dispatch"], rows


TABLES = {
    "steps": _steps,
    "workloads": _workloads,
    "chain": _chain,
    "first-steps": _first_steps,
    "busy": _busy,
    "gaps": _gaps,
    "chunks": _chunks,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="PART", help=f"{', '.join(TABLES)}; default: steps")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256, 512])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--depth", type=int, default=2, choices=(1, 2))
    parser.add_argument("--detokenize", action="store_true", help="make texts too, not ids alone")
    parser.add_argument("--prompts", type=int, default=256, help="gaps: number of long prompts")
    parser.add_argument("--words", type=int, default=27_000, help="gaps: words of each, about 1.1 tokens a word")
    parser.add_argument("--streams", type=int, default=16, help="chunks: streams that are open at once")
    parser.add_argument("--rounds", type=int, default=6, help="first-steps: rounds, one after the other")
    parser.add_argument(
        "--schemas", type=Path, help="first-steps: JSON lines with a `schema` each, of which 20 are mixed"
    )
    parser.add_argument("--profile", action="store_true", help="where the time goes, by function")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.what if name not in TABLES]:
        parser.error(f"no part {unknown[0]!r}; choose from {', '.join(TABLES)}")
    folder = shape_folder(SHAPE)
    for name, measure in TABLES.items():
        if name in (args.what or ["steps"]):
            title, headings, rows = measure(args, folder)
            print(f"\n{title}\n")
            print(table(headings, rows), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
