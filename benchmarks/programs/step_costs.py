"""Model of step times of this machine, for `benchmarks.programs.simulation`: processor time of the benchmark's steps.

    python -m benchmarks.programs.step_costs

The steps that the scheduler decides for the workloads are computed by a real ModelRunner with the embedded model, one
after another. Their processor time, divided by the number of cores that they use, is what they take on an idle machine,
whatever else runs on it; the six coefficients of `StepTimes` are fitted to it, with relative errors.
"""

import sys
import time

import msgspec
import numpy as np

from benchmarks.common import machine
from benchmarks.programs import simulation
from benchmarks.programs.recorded import record
from benchmarks.programs.workloads import CONCURRENCY, NAMES, POOL, RUNS, workloads
from radixrt.channel import LocalChannel
from radixrt.config import make_config
from radixrt.engine import assembly
from radixrt.engine.settings import resolve_settings
from radixrt.messages.runner import ForwardStep, FromRunner
from radixrt.messages.scheduler_stats import StepTimes
from radixrt.messages.step_shape import StepShape, step_shape
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


def fitted(shapes: list[StepShape], seconds: list[float]) -> StepTimes:
    """The coefficients with the least squares of relative errors, none of them negative."""
    x = np.array([[1.0, s.rows, s.context, s.tokens > 0, s.tokens, s.pairs] for s in shapes])
    y = np.array(seconds)
    free, found = list(range(6)), np.zeros(6)
    while True:
        solution = np.linalg.lstsq(x[:, free] / y[:, None], np.ones(len(y)), rcond=None)[0]
        if solution.min() >= 0.0:
            found[free] = solution
            return StepTimes(*found.tolist())
        free.pop(int(np.argmin(solution * x[:, free].mean(0))))


def main() -> int:
    facts = machine.facts()
    print("; ".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
    config, settings = resolve_settings(make_config(kv_cache_tokens=POOL, executor="uni"), show_progress=False)
    answers: LocalChannel[FromRunner] = LocalChannel(None)
    worker = assembly.make_runner_worker(config, settings, answers)
    worker.start()
    answers.recv()
    shapes: list[StepShape] = []
    seconds: list[float] = []
    for name in NAMES:
        for step in decided(name):
            seconds.append(computed(worker, answers, step, settings.vocab_size) / int(facts["cores"]))
            shapes.append(step_shape(step))
    times = fitted(shapes, seconds)
    error = np.mean([abs(times.seconds(*s) - y) / y for s, y in zip(shapes, seconds, strict=True)])
    model = ", ".join(f"{name}={getattr(times, name):.2e}" for name in COEFFICIENTS)
    print(f"StepTimes({model}), mean error {error:.1%} of {len(seconds)} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
