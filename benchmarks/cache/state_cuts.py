"""Table "States inside a chunk" of docs/hybrid.md: time to the first token with states inside the prompt and without.

A hybrid model leaves states of its recurrent layers to the cache at places inside a prompt
(`radixrt.parts.states.checkpoints`). The real scheduler and a ModelRunner with dummy weights, without the processes
around them, serve one request at a time, in turn with these places and without any. Medians of `--runs` such pairs,
each of requests with other tokens and an empty cache; "kept" is the number of places, "cost" the median of the pairs'
ratios.

    prompt            nothing of it is cached; one place, before its last token
    turn              the next one of a chat with 1,000 cached tokens: a message of 60 tokens and a generation prompt of
                      5; one place, at the message's end
    fork              the first branch, announced by its program: 1,000 tokens that its siblings share and 200 of its
                      own; two places, at the ends of both

Run: python -m benchmarks.cache.state_cuts [--shape lfm2-350m tiny-hybrid] [--runs 9] [--threads 2]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import numpy as np

from benchmarks.common import machine
from benchmarks.common.model_shapes import CONFIGS, shape_folder
from benchmarks.common.tables import table
from radixrt.channel import LocalChannel
from radixrt.config import SchedulerConfig
from radixrt.executor.uniproc_executor import UniProcExecutor
from radixrt.messages.parts import ProgramHint
from radixrt.messages.request import Request
from radixrt.messages.runner import FromRunner, RunnerReady, StepOutput
from radixrt.messages.wire import Int32Array, pack_i32, unpack_i32
from radixrt.models.loading.source import cache_folder
from radixrt.parts.simulated import make_scheduler
from radixrt.parts.states.checkpoints import MIN_GAP, Checkpoints
from radixrt.runner.model_runner import ModelRunner
from radixrt.runner.runner_config import RunnerConfig
from radixrt.runner.worker import Worker
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.scheduler import Scheduler

CONTEXT, ROWS, STATES = 4096, 4, 24
NOWHERE = CONTEXT
"""Distance between two states with which there is no place for any."""


@dataclass(frozen=True)
class Case:
    """A request whose first token is waited for.

    Attributes:
        cached: tokens of a request before it, which it goes on from.
        new: its own tokens behind these.
        header: those of them that stand behind the conversation's last message.
        shared: tokens of its prompt that sibling branches share; 0 for a request that is none.
    """

    name: str
    cached: int
    new: int
    header: int = 0
    shared: int = 0


CASES = (
    Case("prompt of 64", 0, 64),
    Case("prompt of 256", 0, 256),
    Case("prompt of 1,024", 0, 1024),
    Case("turn, 1,000 + 65", 1000, 65, header=5),
    Case("fork, 1,000 + 200", 0, 1200, shared=1000),
)


@dataclass(frozen=True)
class Served:
    """Seconds to the first token, prefill steps until then, and states that it left ahead of the prompt's end."""

    seconds: float
    steps: int
    kept: int


class Device:
    """A ModelRunner in this process, which schedulers use one after another."""

    def __init__(self, executor: UniProcExecutor, ready: RunnerReady) -> None:
        self.executor, self.ready = executor, ready

    def serve(self, case: Case, min_gap: int, seed: int) -> Served:
        """Serve a request of the case by a new scheduler, after the one that it goes on from."""
        config = SchedulerConfig(max_running_requests=ROWS, chunked_prefill_size=CONTEXT)
        scheduler = make_scheduler(
            config, self.ready.num_slots, context_length=CONTEXT, eos_ids=[], vocab_size=self.ready.vocab_size,
            num_states=self.ready.num_states, checkpoints=Checkpoints(min_gap),
        )  # fmt: skip
        cache = scheduler.kv.cache
        ids = np.random.default_rng(seed).integers(10, 1000, case.cached + case.new).astype(np.int32)
        if case.cached:  # the state at the end of that request is one token before that of its answer
            answer = self._run(scheduler, Request.generate("before", pack_i32(ids[: case.cached]), _sampling(1)))[0]
            ids = np.concatenate([ids[: case.cached], answer, ids[case.cached :]])
        hint = ProgramHint("p", "b", fork_len=case.shared, siblings=2) if case.shared else None
        request = Request.generate("r", pack_i32(ids), _sampling(1), program=hint, turn_len=len(ids) - case.header)
        before = len(cache.node_states or ())
        started = time.perf_counter()
        _, steps = self._run(scheduler, request)
        return Served(time.perf_counter() - started, steps, len(cache.node_states or ()) - before)

    def _run(self, scheduler: Scheduler, request: Request) -> tuple[Int32Array, int]:
        """Serve a request to its end; return the last sampled token and the number of prefill steps."""
        before = scheduler.counters.extend_steps
        scheduler.intake.add(request, 0.0)
        sampled = b""
        while not scheduler.is_idle:
            batch = scheduler.next_batch(0.0)
            if batch is None:
                raise RuntimeError("the scheduler waits for nothing")
            self.executor.submit(batch.step)
            output = self.executor.take(1.0)
            if not isinstance(output, StepOutput):
                raise RuntimeError(f"the step failed: {output!r:.300}")
            scheduler.commit(batch, output, 0.0)
            sampled = output.token_ids
        scheduler.take_deltas()
        return unpack_i32(sampled), scheduler.counters.extend_steps - before


def _sampling(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)


@contextmanager
def device(shape: str, threads: int | None) -> Iterator[Device]:
    """A runner of one of the shapes, on this machine's device."""
    dtype = str(CONFIGS[shape]["torch_dtype"])
    config = RunnerConfig(
        folder=str(shape_folder(shape)), dtype=dtype, load_format="dummy", device="auto", attention_backend="auto",
        num_threads=threads, context_length=CONTEXT, max_running_requests=ROWS, page_size=1,
        kv_cache_tokens=2 * CONTEXT, memory_fraction=0.5, kv_cache_dtype="auto", max_step_tokens=CONTEXT,
        cuda_graph="auto", random_seed=0, kernel_cache=str(cache_folder() / "kernels"), num_states=STATES,
    )  # fmt: skip
    answers: LocalChannel[FromRunner] = LocalChannel(None)
    executor = UniProcExecutor(Worker(ModelRunner(config), answers, 0, alone=True), answers)
    try:
        yield Device(executor, executor.wait_ready(600.0))
    finally:
        executor.close()


def row(made: Device, shape: str, case: Case, runs: int) -> list[str]:
    """Row of the table: one case of one shape."""
    found: dict[int, list[Served]] = {NOWHERE: [], MIN_GAP: []}
    for seed in range(-1, runs):
        for min_gap, served in found.items():
            one = made.serve(case, min_gap, seed + 1)
            if seed >= 0:
                served.append(one)
    without, with_states = (1e3 * median(one.seconds for one in served) for served in found.values())
    pairs = zip(*([one.seconds for one in served] for served in found.values()), strict=True)
    cost = median(more / less - 1 for less, more in pairs)
    kept = found[MIN_GAP][0].kept - found[NOWHERE][0].kept
    return [
        shape, case.name, str(kept), str(found[NOWHERE][0].steps), str(found[MIN_GAP][0].steps), f"{without:.1f}",
        f"{with_states:.1f}", f"{100 * cost:+.1f} %",
    ]  # fmt: skip


HEADER = ["shape", "request", "kept", "steps without", "steps with", "ms without", "ms with", "cost"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=sorted(CONFIGS), default=["lfm2-350m", "tiny-hybrid"])
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--threads", type=int, help="default: all cores")
    args = parser.parse_args(argv)
    for name, value in machine.facts().items():
        print(f"{name}: {value}")
    rows = []
    for shape in args.shape:
        with device(shape, args.threads) as made:
            rows += [row(made, shape, case, args.runs) for case in CASES]
    print(table(HEADER, rows))


if __name__ == "__main__":
    main()
