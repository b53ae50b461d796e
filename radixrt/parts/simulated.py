"""The real scheduler on a simulated device: no model, no sockets, no threads, no torch, and deterministic results.

`make_scheduler` assembles a scheduler over empty pools. `SimulatedRunner` takes the place of executor and ModelRunner:
functions of the caller give the seconds of each step and the sampled tokens, and the caller owns the clock. `StepRows`
decodes the rows of a step for callers that compute something from them.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from radixrt.config import SchedulerConfig
from radixrt.mem_cache.pools import make_pools
from radixrt.messages.parts import LogprobColumns, ReadValues
from radixrt.messages.runner import ForwardStep, StepOutput
from radixrt.messages.scheduler_stats import SchedulerStats, StepTimes
from radixrt.messages.sections import READS, ReadSection, decode
from radixrt.messages.step_shape import StepShape
from radixrt.messages.wire import Int32Array, pack_i32, unpack_i32
from radixrt.parts.assembly import assemble
from radixrt.scheduler.req import Req
from radixrt.scheduler.schedule_batch import DECODE, ScheduleBatch
from radixrt.scheduler.scheduler import Scheduler
from radixrt.scheduler.stats import scheduler_stats


def make_scheduler(
    config: SchedulerConfig,
    num_slots: int,
    *,
    context_length: int,
    eos_ids: Iterable[int],
    vocab_size: int,
    page_size: int = 1,
    eviction: str = "lru",
    prefix_cache: bool = True,
    num_states: int = 0,
    **options: Any,
) -> Scheduler:
    """Return a scheduler over empty pools of these sizes, as the engine assembles it.

    Args:
        num_slots: tokens that the KV pool holds.
        num_states: state slots of recurrent layers, the two reserved ones included; 0 for a model without such layers.
        options: further arguments of `assemble`.
    """
    cache, allocator, rows = make_pools(
        num_slots,
        page_size,
        num_states,
        config.max_running_requests,
        min(context_length, num_slots),
        eviction=eviction,
        prefix_cache=prefix_cache,
    )
    return assemble(
        config,
        cache,
        allocator,
        rows,
        context_length=context_length,
        eos_ids=eos_ids,
        vocab_size=vocab_size,
        **options,
    )


@dataclass(frozen=True)
class StepRows:
    """The B rows of a step with their T new tokens, in either mode.

    Attributes:
        req_pool_idx: int32[B], row of each request in req_to_token.
        seq_lens: int32[B], length of each sequence, new tokens included.
        extend_lens: int32[B], number of new tokens of each row.
        input_ids: int32[T], new tokens; -1 for a token that an earlier step samples.
        out_cache_loc: int32[T], KV slots of the new tokens.
        samples: bool[B], whether the row samples a token.
    """

    req_pool_idx: Int32Array
    seq_lens: Int32Array
    extend_lens: Int32Array
    input_ids: Int32Array
    out_cache_loc: Int32Array
    samples: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, step: ForwardStep) -> StepRows:
        """Read a step."""
        rows, lengths, slots = map(unpack_i32, (step.req_pool_idx, step.seq_lens, step.out_cache_loc))
        if step.mode == DECODE:
            ids = unpack_i32(step.input_ids) if step.input_ids else np.full(len(rows), -1, np.int32)
            return cls(rows, lengths, np.ones(len(rows), np.int32), ids, slots, np.ones(len(rows), np.bool_))
        samples = np.frombuffer(step.samples, np.bool_)
        return cls(rows, lengths, unpack_i32(step.extend_lens), unpack_i32(step.input_ids), slots, samples)


def num_sampled(step: ForwardStep) -> int:
    """Return the number of tokens that a step samples."""
    return step.samples.count(1) if step.samples else len(step.req_pool_idx) // 4


def zeros_read(step: ForwardStep) -> ReadValues | None:
    """Return zeros for the values that a step reads, with hidden states of one number; None if the step reads none."""
    section = decode(step.sections, READS, ReadSection)
    if section is None:
        return None
    counts = unpack_i32(section.counts).reshape(-1, 2).tolist()
    columns = [
        LogprobColumns(bytes(4 * count), bytes(4 * count * top), bytes(4 * count * top), top) for count, top in counts
    ]
    return ReadValues(columns, bytes(len(section.spans) // 2))


class NoisyTimes:
    """Seconds of steps by a model of step times, with noise.

    Args:
        noise: standard deviation of the logarithm of a step's time.
        slow_share, slow_factor: share of the steps that take longer, and the factor of their times.
    """

    def __init__(
        self, times: StepTimes, *, noise: float = 0.0, slow_share: float = 0.0, slow_factor: float = 1.0, seed: int = 0
    ) -> None:
        self._times = times
        self._noise, self._slow_share, self._slow_factor = noise, slow_share, slow_factor
        self._random = random.Random(seed)

    def seconds(self, shape: StepShape) -> float:
        """Draw the time of the next step."""
        seconds = self._times.seconds(*shape)
        if self._noise:
            seconds *= self._random.lognormvariate(0, self._noise)
        if self._slow_share and self._random.random() < self._slow_share:
            seconds *= self._slow_factor
        return seconds


class SimulatedRunner:
    """Runs the steps of a scheduler one after another. Times are the caller's, in seconds.

    Args:
        step_s: returns the seconds that a step takes; called once for each step, when it is submitted.
        token: returns the next token of a request, which gets index `Req.num_output` of the output.
        depth: maximum number of steps in flight.

    Attributes:
        now: time of the last call.
        steps: number of steps that were submitted.
        free_at: time at which the last submitted step ends.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        step_s: Callable[[ScheduleBatch], float],
        token: Callable[[Req], int],
        *,
        depth: int = 2,
    ) -> None:
        self.scheduler = scheduler
        self.now = 0.0
        self.steps = 0
        self._step_s = step_s
        self._token = token
        self._depth = depth
        self._inflight: deque[tuple[ScheduleBatch, float]] = deque()  # with the time at which the step ends
        self.free_at = 0.0

    @property
    def ends_at(self) -> float:
        """Time at which the oldest step in flight ends; infinite without one."""
        return self._inflight[0][1] if self._inflight else math.inf

    def submit(self, now: float) -> bool:
        """Submit steps up to the depth of the pipeline; return whether there were any."""
        self.now = now
        before = self.steps
        while len(self._inflight) < self._depth and (batch := self.next_batch(now)) is not None:
            seconds = self._step_s(batch)
            self.free_at = max(now, self.free_at) + seconds
            self._inflight.append((batch, self.free_at))
            self.steps += 1
        return self.steps > before

    def next_batch(self, now: float) -> ScheduleBatch | None:
        """Decide the next step. A subclass that simulates ends of parts executes the orders before the step here."""
        return self.scheduler.next_batch(now)

    def answer(self, now: float) -> ScheduleBatch:
        """Commit the oldest step in flight, and return it."""
        self.now = now
        batch, _ = self._inflight.popleft()
        tokens = [0 if req.finish is not None else self._token(req) for req in batch.sampled]
        output = StepOutput(batch.step_id, pack_i32(tokens), values=zeros_read(batch.step))
        self.scheduler.commit(batch, output, now)
        return batch

    def advance(self, now: float, before: float = math.inf) -> bool:
        """Submit steps, and commit the oldest one if it ends earlier than `before`; return whether it did."""
        self.submit(now)
        if self.ends_at >= before:
            return False
        self.answer(self.ends_at)
        return True

    def stats(self, now: float) -> SchedulerStats:
        """Return the snapshot that the scheduler's loop would send."""
        return scheduler_stats(self.scheduler, now)
