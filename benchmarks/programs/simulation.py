"""Recorded programs on the real scheduler, with a simulated device and clock: the same figures on every machine.

`Simulation.run` sends each call when the calls before it have been answered, as the programs' own runtime or a client
would, and returns the tokens that were computed and the time of each program.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from benchmarks.programs.optimal_cache import Traced
from benchmarks.programs.recorded import RecordedCall
from radixrt.config import SchedulerConfig
from radixrt.messages.parts import ProgramHint
from radixrt.messages.request import Request
from radixrt.messages.runner import ForwardStep
from radixrt.messages.scheduler_stats import StepTimes
from radixrt.messages.wire import pack_i32
from radixrt.parts.programs.scheduler import Programs
from radixrt.parts.simulated import SimulatedRunner, make_scheduler
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.req import Req
from radixrt.scheduler.schedule_batch import ScheduleBatch

CPU = StepTimes(step=8.5e-3, row=4.5e-4, context=5.9e-7, extend=1.2e-3, token=2.7e-4, pair=2.6e-7)
"""SmolLM2-135M in float32 on two cores of an AMD EPYC, as `benchmarks.programs.step_costs` measures it."""
GPU = StepTimes(step=5e-3, row=2e-5, context=4e-8, extend=0.0, token=2.5e-5, pair=1e-9)
"""About an 8B model on one H200."""

ROUND_TRIP_S = 0.004
"""Time from the end of an answer to the arrival of the call that it was waited for by."""
CONTEXT = 8192


class _Event(NamedTuple):
    """A call that arrives, or one after which its branch is released. Events of one time are in order of branches."""

    at: float
    run: int
    branch: tuple[int, ...]
    releases: bool
    call: int


@dataclass
class Result:
    """Figures of one simulation.

    Attributes:
        seconds: time of each program, in order of their ends.
        wall: time until the last has ended.
        prompt, cached, generated: tokens.
        trace: the calls in order of admission.
    """

    wall: float = 0.0
    seconds: list[float] = field(default_factory=list)
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    steps: int = 0
    retractions: int = 0
    trace: list[Traced] = field(default_factory=list)

    @property
    def computed(self) -> int:
        return self.prompt - self.cached + self.generated


@dataclass
class _Branch:
    """A branch of a run: the index of its own last call, and the number of open calls in it and below it."""

    last: int = 0
    open: int = 0


def _branches(calls: Sequence[RecordedCall]) -> dict[str, _Branch]:
    branches = {call.hint.branch: _Branch() for call in calls}
    for index, call in enumerate(calls):
        branches[call.hint.branch].last = index
        name = call.hint.branch
        while name:
            if name in branches:
                branches[name].open += 1
            name = name.rpartition("/")[0]
    return branches


class Simulation:
    """One engine with an empty cache.

    Args:
        runs: calls of each program.
        hints: send the programs' hints; otherwise the calls are plain.
        concurrency: number of programs at once.
        steps: becomes the steps that are decided.
    """

    def __init__(
        self, runs: Sequence[Sequence[RecordedCall]], *, slots: int, times: StepTimes, hints: bool, concurrency: int,
        steps: list[ForwardStep] | None = None, **options: object,
    ) -> None:  # fmt: skip
        config = SchedulerConfig(**{"max_running_requests": 64, "chunked_prefill_size": 1024, **options})  # type: ignore[arg-type]
        self.scheduler = make_scheduler(config, slots, context_length=CONTEXT, eos_ids=[0], vocab_size=1000)
        self._runner = SimulatedRunner(self.scheduler, self._seconds, self._sample)
        self._runs, self._times, self._hints, self._steps = runs, times, hints, steps
        self._now = 0.0
        self._events: list[_Event] = []
        self._waits = [[len(call.after) for call in run] for run in runs]
        self._open = [len(run) for run in runs]
        self._branches = [_branches(run) for run in runs]
        self._begun: dict[int, float] = {}
        self._queue = deque(range(len(runs)))
        self.result = Result()
        for _ in range(min(concurrency, len(runs))):
            self._begin()

    def run(self) -> Result:
        """Run all programs to their end."""
        while self._events or not self.scheduler.is_idle:
            if self._runner.advance(self._now, before=self._events[0].at if self._events else math.inf):
                self._now = self._runner.now
            elif self._events:
                event = heapq.heappop(self._events)
                self._now = max(self._now, event.at)
                if event.releases:
                    self._release(event.run, event.call)
                else:
                    self._arrive(event.run, event.call)
            else:
                self._now += 0.01  # nothing fits before a time has passed
            self._take()
        self.result.wall, self.result.steps = self._now, self._runner.steps
        self.result.retractions = self.scheduler.counters.retractions
        return self.result

    def _begin(self) -> None:
        if not self._queue:
            return
        run = self._queue.popleft()
        self._begun[run] = self._now
        for call, waits in enumerate(self._waits[run]):
            if not waits:
                self._later(self._runs[run][call].pause_s, run, call)

    def _later(self, seconds: float, run: int, call: int, *, releases: bool = False) -> None:
        branch = tuple(map(int, self._runs[run][call].hint.branch.split("/")))
        heapq.heappush(self._events, _Event(self._now + ROUND_TRIP_S + seconds, run, branch, releases, call))

    def _arrive(self, run: int, call: int) -> None:
        recorded = self._runs[run][call]
        sampling = SamplingParams(max_tokens=len(recorded.output), temperature=0.0, ignore_eos=True)
        hint = recorded.hint if self._hints else None
        prompt = pack_i32(np.array(recorded.prompt, np.int32))
        self.scheduler.intake.add(Request.generate(f"{run}.{call}", prompt, sampling, program=hint), self._now)

    def _ends(self, run: int, name: str) -> Iterator[int]:
        """Count an answer in this branch, and yield the last calls of the branches that the program releases: those
        that have announced another call, and from which nothing goes on any more."""
        branches = self._branches[run]
        while name:
            branch = branches.get(name)
            if branch is not None:
                branch.open -= 1
                if not branch.open and (not self._open[run] or self._runs[run][branch.last].hint.will_continue):
                    yield branch.last
            name = name.rpartition("/")[0]

    def _release(self, run: int, call: int) -> None:
        hint: ProgramHint = self._runs[run][call].hint
        self.scheduler.part(Programs).release(hint.program, hint.branch if self._open[run] else None)

    def _seconds(self, batch: ScheduleBatch) -> float:
        if self._steps is not None:
            self._steps.append(batch.step)
        return self._times.seconds(*batch.shape)

    def _sample(self, req: Req) -> int:
        run, call = map(int, req.rid.split("."))
        return self._runs[run][call].output[req.num_output]

    def _take(self) -> None:
        taken = self.scheduler.take_deltas()
        for delta in taken.deltas if taken is not None else ():
            if delta.finish is None:
                continue
            assert delta.finish.error is None, delta.finish.error
            assert delta.usage is not None
            self._ended(delta.rid)
            self.result.prompt += delta.usage.prompt_tokens
            self.result.cached += delta.usage.cached_tokens
            self.result.generated += delta.usage.completion_tokens

    def _ended(self, rid: str) -> None:
        run, call = map(int, rid.split("."))
        recorded = self._runs[run][call]
        self.result.trace.append(Traced(recorded.prompt, recorded.output))
        self._open[run] -= 1
        for after, other in enumerate(self._runs[run]):
            if call in other.after:
                self._waits[run][after] -= 1
                if not self._waits[run][after]:
                    self._later(other.pause_s, run, after)
        if self._hints:
            for last in self._ends(run, recorded.hint.branch):
                self._later(0.0, run, last, releases=True)
        if not self._open[run]:
            self.result.seconds.append(self._now - self._begun[run])
            self._begin()
