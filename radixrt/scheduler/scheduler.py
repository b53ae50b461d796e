"""`Scheduler`: decides every step. Sans-io: no sockets, no clock, no torch; callers pass `now` in seconds.

A step takes three verbs: `Scheduler.next_batch` decides it and allocates its slots, the executor's `submit` sends it to
the runner, and `Scheduler.commit` (or `fail`) takes its answer. Steps are committed in the order in which they were
decided; after `runner_lost` there are none until the runner is ready. `intake.add` and `abort` change which requests
are open. Deltas for the tokenizer accumulate until `take_deltas`.

The core consists of objects that each are the one writer of their state: `RequestTable` (open requests and their
transitions), `Intake` (new requests), `Admission` (prefill chunks of a step), `KVManager` (slots), `Pacing` (rows of a
step), `StepTimeFit` (times of steps), `DeltaWriter` (output). Everything else is a part (`radixrt.scheduler.part`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from radixrt.config import SchedulerConfig
from radixrt.messages.parts import FINISH_ERROR, Finish, FinishError
from radixrt.messages.runner import StepOutput
from radixrt.messages.scheduler import TokenBatch
from radixrt.messages.wire import unpack_i32
from radixrt.scheduler.admission import Admission
from radixrt.scheduler.counters import Counters
from radixrt.scheduler.deltas import DeltaWriter
from radixrt.scheduler.intake import Intake
from radixrt.scheduler.kv_manager import DecodeSlots, KVManager
from radixrt.scheduler.pacing import Pacing
from radixrt.scheduler.part import Core, Part, Parts
from radixrt.scheduler.req import Req, ReqState
from radixrt.scheduler.request_table import RequestTable
from radixrt.scheduler.schedule_batch import Chunk, ScheduleBatch, StepPlan, by_kind, make_batch
from radixrt.scheduler.step_time import StepTimeFit

P = TypeVar("P", bound=Part)

RUNNING = ReqState.RUNNING
RESET_BY_STEP, RESET_BY_RUNNER, RESET_BY_ROUTER = "step_failed", "runner_restarted", "fenced"
"""Reasons for which the prefix cache restarts empty."""
EXPIRY_CHECK_S = 0.05
"""Interval between checks of deadlines, which are not checked at every step."""


class Scheduler:
    """See the module's docstring.

    Args:
        config: policy, limits and budgets.
        kv: owner of all slots and rows.
        context_length: longest sequence, prompt and output together.
        eos_ids: the model's own end tokens.
        random_seed: seed of the seeds given to requests that bring none.
        parts: in the order in which they are asked (`radixrt.parts.assembly`).
        pacing: rows and prompt tokens of a step; default: all rows in each step.

    Attributes:
        has_runner: False between `runner_lost` and `runner_ready`.
        core: the objects above, for parts and for whoever watches.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVManager,
        *,
        context_length: int,
        eos_ids: Iterable[int],
        random_seed: int = 0,
        parts: Sequence[Part] = (),
        pacing: Pacing | None = None,
    ) -> None:
        self.config = config
        self.pacing = pacing or Pacing()
        self.parts = Parts(parts)
        self._kv = kv
        self._next_step = 0
        self._num_inflight = 0
        self._next_expiry_check = 0.0
        self._last_commit = 0.0
        self.has_runner = True
        self.counters = Counters()
        self.step_time = StepTimeFit(stages=self.pacing.stages)
        self._writer = DeltaWriter()
        self._requests = RequestTable(kv, self.parts, self._writer, self.counters)
        self.admission = Admission(config, kv, self._requests, self.parts, self.step_time, self.pacing)
        max_len = min(context_length, kv.allocator.num_slots)
        self.intake = Intake(
            config,
            self._requests,
            kv,
            self.parts,
            self._writer,
            max_len=max_len,
            eos_ids=eos_ids,
            random_seed=random_seed,
        )
        kv.published = self.parts.published
        self.core = Core(
            self,
            config,
            kv,
            self._requests,
            self.admission,
            self.intake,
            self._writer,
            self.counters,
            self.step_time,
            max_len,
        )
        for part in self.parts.all:
            part.attach(self.core)

    def part(self, kind: type[P]) -> P:
        """Return the part of a class; raises KeyError without one."""
        return self.parts.get(kind)

    @property
    def waiting(self) -> list[Req]:
        """Requests in the queue; read only."""
        return self._requests.waiting

    @property
    def active(self) -> list[Req]:
        """Requests that hold a row; read only."""
        return self._requests.active

    @property
    def kv(self) -> KVManager:
        return self._kv

    @property
    def is_idle(self) -> bool:
        return not self._requests.by_rid and not self._num_inflight

    # --- requests end ---

    def abort(self, rid: str, now: float) -> None:
        """End a request in whatever state it is; an unknown rid does nothing."""
        self._requests.abort(rid, now)

    def take_deltas(self) -> TokenBatch | None:
        """Output of the requests since the last call; None if there is none."""
        return self._writer.take()

    def flush_cache(self) -> None:
        """Drop everything from the cache that no active request holds."""
        self._kv.flush()
        self.counters.cache_resets["flushed"] += 1

    def _expire(self, now: float) -> None:
        if now < self._next_expiry_check:
            return
        self._next_expiry_check = now + EXPIRY_CHECK_S
        for tick in self.parts.tick:
            tick(now)
        for req in [r for r in self._requests.by_rid.values() if r.stats.deadline <= now]:
            if req.finish is not None:
                continue  # a row of a group that has just ended
            finish = None if req.taker is None else req.taker.expire(req)
            if finish is None:
                waited = now - req.stats.arrived_at
                error = FinishError(f"the request's deadline passed after {waited:.1f} s", code="timeout", status=408)
                finish = Finish(FINISH_ERROR, error=error)
            self._requests.end(req, finish, now)

    # --- next_batch ---

    def next_batch(self, now: float) -> ScheduleBatch | None:
        """The next step, its slots allocated; None if there is nothing to do before those in flight are committed."""
        self._expire(now)
        if not self.can_step:
            return None
        alone = next((req for only in self.parts.only if (req := only()) is not None), None)
        if alone is not None and self._num_inflight:
            return None
        while True:
            active = self._requests.active
            growing = [r for r in active if r.state is RUNNING and r.known_len + r.num_pending < r.max_len]
            decode = self.pacing.rows(growing)
            decode.sort(key=lambda req: req.kv.length, reverse=True)  # a GPU starts with the first, the longest
            if self._num_inflight and not all(may_step(decode) for may_step in self.parts.may_step):
                return None
            slots = self._kv.extend_decode(decode)
            if slots is not None:
                chunks = self.admission.plan_chunks(now, alone)
                if chunks or decode:
                    return self._batch(chunks, decode, slots, now)
                if not any(r.state is ReqState.PREFILL for r in active):
                    return None
            # Out of room. Steps in flight may free some; only a drained pipeline may retract.
            if self._num_inflight or not self._retract_one():
                return None

    @property
    def can_step(self) -> bool:
        """False while requests recover, or there is no runner."""
        return self.has_runner and not self._requests.recovering

    def _batch(self, chunks: list[Chunk], decode: list[Req], slots: DecodeSlots, now: float) -> ScheduleBatch:
        plan = StepPlan(by_kind(chunks), decode, slots)
        batch = make_batch(
            self._next_step, now, plan, self._kv.take_row_writes(), self.parts, gives_ids=self.pacing.gives_ids
        )
        if chunks:
            self.counters.extend_steps += 1
        else:
            self.counters.decode_steps += 1
            self.admission.ratio.decoded(1 / self.pacing.stages)
        for req in batch.requests:
            req.sampling_row_due = False
        for req in batch.sampled:
            req.num_pending += 1
            req.last_step = batch.step_id
        self._kv.end_step()
        for chunk in chunks:
            req = chunk.req
            if chunk.is_last:
                req.state = RUNNING  # also a row of a group, which samples nothing
            if chunk.start >= req.prompt_len and chunk.states is None:
                continue  # forced output tokens: output is published when the request ends
            # Visible to others from the next step on: steps run in order, so its keys are written before they are read.
            self._kv.publish(req)
            self._kv.chunk_published(req, chunk.states)
        self.counters.step_tokens.observe(batch.num_tokens)
        self._next_step += 1
        self._num_inflight += 1
        return batch

    def _retract_one(self) -> bool:
        """Retract the active request of the lowest priority, the latest arrival among equals; never the only one."""
        active = self._requests.active
        if len(active) < 2:
            return False
        self._requests.retract(min(active, key=lambda r: (r.priority, -r.seq)))
        self.admission.ratio.retracted(active)
        return True

    # --- commit ---

    def commit(self, batch: ScheduleBatch, output: StepOutput, now: float) -> None:
        """Take the answer of the oldest step in flight: append tokens, finish requests, free what they held."""
        self._num_inflight -= 1
        self.step_time.answered(batch.shape, batch.decided_at, output.forward_s, now)
        if self._requests.recovering:
            if self._num_inflight == 0:
                self._requests.recover(RESET_BY_STEP)
            return
        for part, kept in batch.kept:
            part.commit(batch, kept, output, now)
        errors = dict(output.row_errors)
        logprobs = iter(output.logprobs)
        write_token = self._writer.token
        taken, steady, last_commit = 0, 0, self._last_commit
        for i, (req, token) in enumerate(zip(batch.sampled, unpack_i32(output.token_ids).tolist(), strict=True)):
            columns = next(logprobs) if req.sampling.logprobs is not None else None
            if req.finish is not None:
                continue  # ended while the step was in flight
            taker = req.taker
            if taker is not None and taker.ignores():
                continue
            req.num_pending -= 1
            if i in errors:
                self._requests.end(req, Finish(FINISH_ERROR, error=FinishError(errors[i])), now)
                continue
            taken += 1
            stats = req.stats
            if stats.first_token_at is None:
                stats.first_token_at = now
            elif stats.last_token_at == last_commit:
                steady += 1
            else:
                self.counters.token_gaps.observe(now - stats.last_token_at)
            stats.last_token_at = now
            if taker is None:
                finish = req.take(token)
                write_token(req, token, columns)
            else:
                finish = taker.take(req, token, columns)
            if finish is not None:
                self._requests.end(req, finish, now)
        if steady:
            self.counters.token_gaps.observe(now - last_commit, steady)  # nearly all rows of a step, at once
        self._last_commit = now
        self.counters.generated_tokens += taken
        for committed in self.parts.committed:
            committed(batch)

    def fail(self, batch: ScheduleBatch, error: str, now: float) -> None:
        """End the requests of the oldest step in flight, which raised; recompute all others from their known tokens.

        The step's writes are missing from its slots, and later steps in flight may have read them, so their answers are
        dropped and the cache restarts empty.
        """
        self._num_inflight -= 1
        self._requests.recovering = True
        for req in batch.requests:
            if req.finish is None:
                self._requests.end(req, Finish(FINISH_ERROR, error=FinishError(f"the step failed: {error}")), now)
        if self._num_inflight == 0:
            self._requests.recover(RESET_BY_STEP)

    def runner_lost(self, lost: Iterable[ScheduleBatch], reason: str, now: float) -> None:
        """Drop all steps in flight, `lost`, because the ModelRunner is dead; recompute all active requests once there
        is a runner. `next_batch` decides nothing until `runner_ready`; everything else continues."""
        self._num_inflight = 0
        self.has_runner = False
        self._requests.recovering = True
        batches = list(lost)
        for part_lost in self.parts.lost:
            part_lost(batches, reason, now)
        self._requests.recover(RESET_BY_RUNNER)

    def runner_ready(self) -> None:
        """Continue with a new ModelRunner, whose pool is as large as its predecessor's."""
        self.has_runner = True
        self.counters.runner_restarts += 1

    def forget(self, now: float, *, keeps_cache: bool) -> None:
        """Drop all requests, without an answer, and the cache unless it is to be kept: a router has given them to other
        replicas, or is another router."""
        for forgotten in self.parts.forgotten:
            forgotten()
        self._requests.forget(now, None if keeps_cache else RESET_BY_ROUTER)
