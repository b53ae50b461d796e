"""Model of step times of this machine, for `benchmarks.programs.simulation`: processor time of the benchmark's steps.

    python -m benchmarks.programs.step_costs

The steps that the scheduler decides for the workloads are computed by a real ModelRunner with the embedded model, one
after another. Their processor time, divided by the number of cores that they use, is what they take on an idle machine,
whatever else runs on it; the six coefficients of `StepTimes` are fitted to it, with relative errors.
"""

import sys
import time
from statistics import fmean

import msgspec

from benchmarks.common import machine
from benchmarks.fleet.device import TracedStep, least_squares
from benchmarks.programs import simulation
from benchmarks.programs.recorded import record
from benchmarks.programs.workloads import CONCURRENCY, NAMES, POOL, RUNS, workloads
from radixrt.channel import LocalChannel
from radixrt.config import make_config
from radixrt.engine import assembly
from radixrt.engine.settings import resolve_settings
from radixrt.messages.runner import ForwardStep, FromRunner
from radixrt.messages.step_shape import step_shape
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.runner.worker import Worker

COEFFICIENTS = ("step", "row", "context", "extend", "token", "pair")


def decided(name: str) -> list[ForwardStep]:
    """The steps of a workload in the language."""
    steps: list[ForwardStep] = []
    (workload,) = workloads([name], RUNS, CONCURRENCY, seed=1)
    run = simulation.Simulation(
        record(workload).language, slots=POOL, times=simulation.CPU, hints=True, concurrency=CONCURRENCY, steps=steps
    )
    run.run()
    return steps


def computed(worker: Worker, answers: LocalChannel[FromRunner], step: ForwardStep, vocab_size: int) -> float:
    """Processor seconds of a step, whose recorded token ids are brought into the vocabulary."""
    if step.input_ids:
        ids = unpack_i32(step.input_ids).copy()
        ids[ids >= 0] %= vocab_size
        step = msgspec.structs.replace(step, input_ids=pack_i32(ids))
    begin = time.process_time()
    worker.handle(step)
    worker.answer_ready(wait=True)
    answers.recv()
    return time.process_time() - begin


def main() -> int:
    facts = machine.facts()
    print("; ".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
    config, settings = resolve_settings(make_config(kv_cache_tokens=POOL, executor="uni"), show_progress=False)
    answers: LocalChannel[FromRunner] = LocalChannel(None)
    worker = assembly.make_runner_worker(config, settings, answers)
    worker.start()
    answers.recv()
    steps: list[TracedStep] = []
    for name in NAMES:
        for step in decided(name):
            seconds = computed(worker, answers, step, settings.vocab_size) / int(facts["cores"])
            steps.append(TracedStep(step_shape(step), seconds))
    times = least_squares(steps)
    error = fmean(abs(times.seconds(*step.shape) - step.seconds) / step.seconds for step in steps)
    model = ", ".join(f"{name}={getattr(times, name):.2e}" for name in COEFFICIENTS)
    print(f"StepTimes({model}), mean error {error:.1%} of {len(steps)} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
