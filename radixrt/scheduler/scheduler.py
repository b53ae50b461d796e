"""`Scheduler`: decides every step. Sans-io: no sockets, no clock, no torch; callers pass `now` in seconds.

A step takes three verbs: `Scheduler.next_batch` decides it and allocates its slots, the executor's `submit` sends it to
the runner, and `Scheduler.commit` (or `fail`) takes its answer. Steps are committed in the order in which they were
decided; after `runner_lost` there are none until the runner is ready. `intake.add` and `abort` change which requests
are open. Deltas for the tokenizer accumulate until `take_deltas`.

Parts of the scheduler, each the one writer of its state: `RequestTable` (open requests and their transitions), `Intake`
(new requests), `AdmissionControl` (refusals), `LoadPredictor` (predicted work), `Admission` (prefill chunks of a step),
`Checkpoints` (places of states in prompts), `KVManager` (KV slots), `StateManager` (state slots),
`ConstrainedRequests` (grammars), `Programs` (hints), `SharingPlanner` (shared prefixes), `StepTimeFit` (times of
steps), `DeltaWriter` (output), `Recovery` (dead runners).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from radixrt.config import SchedulerConfig
from radixrt.constrained.grammar import bitmask_words
from radixrt.messages.parts import FINISH_ERROR, FINISH_STOP, Finish, FinishError, ReadValues
from radixrt.messages.runner import CascadeCosts, StepOutput
from radixrt.messages.scheduler import TokenBatch
from radixrt.messages.wire import unpack_i32
from radixrt.parts.reads.messages import NAME, encode
from radixrt.parts.reads.scheduler import RowReads, StepReads, joined, reads_of, step_reads
from radixrt.scheduler.admission import Admission
from radixrt.scheduler.admission_control import AdmissionControl
from radixrt.scheduler.checkpoints import Checkpoints
from radixrt.scheduler.constrained import ConstrainedRequests, StepMasks, append_token
from radixrt.scheduler.counters import Counters
from radixrt.scheduler.deltas import DeltaWriter
from radixrt.scheduler.intake import Intake
from radixrt.scheduler.kv_manager import DecodeSlots, KVManager
from radixrt.scheduler.load import LoadPredictor
from radixrt.scheduler.output_lengths import OutputLengths
from radixrt.scheduler.pipeline_stages import rows_of_step
from radixrt.scheduler.programs import Programs
from radixrt.scheduler.recovery import Recovery
from radixrt.scheduler.req import Reads, Req, ReqState
from radixrt.scheduler.request_table import RequestTable
from radixrt.scheduler.schedule_batch import Chunk, ScheduleBatch, by_kind, decode_batch, extend_batch, shared_in_extend
from radixrt.scheduler.sharing import NOTHING, SharingPlanner
from radixrt.scheduler.step_time import StepTimeFit

RUNNING = ReqState.RUNNING
EXPIRY_CHECK_S = 0.05
"""Interval between checks of deadlines, which are not checked at every step."""


class Scheduler:
    """See the module's docstring.

    Args:
        config: policy, limits and budgets.
        kv: owner of all slots and rows.
        context_length: longest sequence, prompt and output together.
        eos_ids: the model's own end tokens.
        vocab_size: size of grammar masks, in tokens.
        random_seed: seed of the seeds given to requests that bring none.
        cascade: costs by which shared prefixes are computed once for several rows; None if they never are.
        checkpoints: decides where prompts leave states, for a model with recurrent layers; None: with its defaults.
        stages: pipeline stages of the model; see `radixrt.scheduler.pipeline_stages`.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVManager,
        *,
        context_length: int,
        eos_ids: Iterable[int],
        vocab_size: int,
        random_seed: int = 0,
        cascade: CascadeCosts | None = None,
        checkpoints: Checkpoints | None = None,
        stages: int = 1,
    ) -> None:
        self._config = config
        self.stages = stages
        self._kv = kv
        self._mask_words = bitmask_words(vocab_size)
        self._next_step = 0
        self._num_inflight = 0
        self._next_expiry_check = 0.0
        self._last_commit = 0.0
        self.counters = Counters()
        self.step_time = StepTimeFit(stages=stages)
        self.programs = Programs(kv.cache, self.counters)
        self._writer = DeltaWriter()
        outputs = OutputLengths()
        self._requests = RequestTable(kv, self.programs, self._writer, self.counters, outputs, _answer_of)
        self.recovery = Recovery(self._requests, self.counters)
        self.admission = Admission(config, kv, self._requests, self.programs, checkpoints, self.step_time, stages)
        self.load = LoadPredictor(config, kv, self._requests, self.admission.ratio, self.step_time, outputs)
        self._constrained = ConstrainedRequests(kv, self._writer, self.counters)
        self.intake = Intake(
            config,
            self._requests,
            AdmissionControl(config, self._requests, self.load, self.counters),
            self.admission,
            self._constrained,
            self.programs,
            self.recovery,
            self._writer,
            reads_of=reads_of,
            answer_of=_answer_of,
            max_len=min(context_length, kv.allocator.num_slots),
            eos_ids=eos_ids,
            random_seed=random_seed,
        )
        self._sharing = SharingPlanner(cascade) if cascade is not None and kv.cache.shares else None

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
    def mask_shape(self) -> tuple[int, int]:
        """Maximum number of masks in one step, and uint32 words of each."""
        return self._config.max_running_requests, self._mask_words

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
        self._kv.cache.evict(self._kv.cache.evictable_size)
        if self._kv.states is not None:
            self._kv.states.nodes.evict_all()
        self.counters.cache_resets["flushed"] += 1

    def _expire(self, now: float) -> None:
        if now < self._next_expiry_check:
            return
        self._next_expiry_check = now + EXPIRY_CHECK_S
        self.programs.expire(now)
        expired = [r for r in self._requests.by_rid.values() if r.stats.deadline <= now]
        for req in expired:
            if req.finish is not None:
                continue  # a row of a group that has just ended
            if req.constraint is not None and req.num_output > req.constraint.forced_tokens:
                self._requests.end(req, self._constrained.expire(req), now)  # its output so far becomes a valid answer
                continue
            waited = now - req.stats.arrived_at
            error = FinishError(f"the request's deadline passed after {waited:.1f} s", code="timeout", status=408)
            self._requests.end(req, Finish(FINISH_ERROR, error=error), now)

    # --- next_batch ---

    def next_batch(self, now: float) -> ScheduleBatch | None:
        """The next step, its slots allocated; None if there is nothing to do before those in flight are committed."""
        self._expire(now)
        if self.recovery.is_under_way:
            return None
        alone = self.recovery.on_trial()
        if alone is not None and self._num_inflight:
            return None
        while True:
            active = self._requests.active
            growing = [r for r in active if r.state is RUNNING and r.known_len + r.num_pending < r.max_len]
            decode = rows_of_step(growing, self.stages)
            decode.sort(key=lambda req: req.kv.length, reverse=True)  # a GPU starts with the first, the longest
            if self._num_inflight and self.stages == 1 and self._constrained.waits(decode):
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

    def _batch(self, chunks: list[Chunk], decode: list[Req], slots: DecodeSlots, now: float) -> ScheduleBatch:
        step_id, writes, gives_ids = self._next_step, self._kv.take_row_writes(), self.stages > 1
        if chunks:
            ordered = by_kind(chunks)
            shared = NOTHING if self._sharing is None else shared_in_extend(self._sharing, ordered, decode)
            reads = step_reads(ordered.chunks)
            batch = extend_batch(
                step_id,
                now,
                ordered.chunks,
                decode,
                slots,
                writes,
                shared,
                gives_ids=gives_ids,
                sections=None if reads is None else {NAME: encode(reads.section)},
                reads=reads,
            )
            self.counters.extend_steps += 1
        else:
            shared = NOTHING if self._sharing is None else self._sharing.columns(decode)
            batch = decode_batch(step_id, now, decode, slots, writes, shared, gives_ids=gives_ids)
            self.counters.decode_steps += 1
            self.admission.ratio.decoded(1 / self.stages)
        for req in batch.requests:
            req.sampling_row_due = False
        for req in batch.sampled:
            req.num_pending += 1
            req.last_step = batch.step_id
        if self._kv.states is not None:
            self._kv.states.end_step()
        for chunk in chunks:
            req = chunk.req
            if chunk.is_last:
                req.state = RUNNING  # also a row of a group, which samples nothing
            if chunk.start >= req.prompt_len and chunk.state is None:
                continue  # tokens that a grammar forced: outputs are published at their end
            # Visible to others from the next step on: steps run in order, so its keys are written before they are read.
            self._kv.publish(req)
            self._kv.checkpoint(req, chunk.state)
            if req.call is not None:
                self.programs.lease_fork(req.call, req.known_ids, req.namespace, req.kv.length)
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

    # --- between submit and commit: grammars ---

    def masks(self, batch: ScheduleBatch, now: float) -> StepMasks:
        """The masks of the oldest step in flight, which has constrained rows.

        A grammar that fails, or takes too long, ends its own request.
        """
        masks, failed = self._constrained.masks(batch)
        for req, finish in failed:
            self._requests.end(req, finish, now)
        return masks

    def settle(self, now: float) -> bool:
        """Do the deferred work of the grammars and of the step-time model, while the device computes. A grammar that
        fails ends its own request; returns whether one did."""
        self.step_time.learn()
        failed = self._constrained.settle(self._requests.active)
        for req, finish in failed:
            self._requests.end(req, finish, now)
        return bool(failed)

    def look_ahead(self) -> Iterator[None]:
        """Work out, while the device computes, what the next tokens of constrained requests may need; each value comes
        after a fraction of a millisecond, none if nothing is left to do."""
        return self._constrained.look_ahead(self._requests.active)

    # --- commit ---

    def commit(self, batch: ScheduleBatch, output: StepOutput, now: float) -> None:
        """Take the answer of the oldest step in flight: append tokens, finish requests, free what they held."""
        self._num_inflight -= 1
        self.step_time.answered(batch.shape, batch.decided_at, output.forward_s, now)
        if self._requests.recovering:
            if self._num_inflight == 0:
                self.recovery.recover()
            return
        if batch.reads is not None and output.values is not None:
            self._take_values(batch.reads, output.values, now)
        errors = dict(output.row_errors)
        logprobs = iter(output.logprobs)
        write_token = self._writer.token
        taken, steady, last_commit = 0, 0, self._last_commit
        for i, (req, token) in enumerate(zip(batch.sampled, unpack_i32(output.token_ids).tolist(), strict=True)):
            columns = next(logprobs) if req.sampling.logprobs is not None else None
            if req.finish is not None:
                continue  # ended while the step was in flight
            constraint = req.constraint
            if constraint is not None and constraint.stale_samples:
                constraint.stale_samples -= 1
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
            if constraint is None:
                finish = append_token(req, token)
                write_token(req, token, columns)
            else:
                finish = self._constrained.take(req, constraint, token, columns)
            if finish is not None:
                self._requests.end(req, finish, now)
        if steady:
            self.counters.token_gaps.observe(now - last_commit, steady)  # nearly all rows of a step, at once
        self._last_commit = now
        self.counters.generated_tokens += taken
        if self.recovery.num_suspects:
            self.recovery.committed(batch)

    def _take_values(self, reads: StepReads, values: ReadValues, now: float) -> None:
        """Give requests what the step has read for them."""
        for req, found, columns, sums in reads.values(values):
            if req.finish is not None:
                continue
            row = cast("RowReads", req.reads)
            row.take(found, columns, sums)
            if not row.is_done:
                continue
            if req.member is None:
                self._writer.values(req, row.answer())
            else:
                self._requests.end(req, Finish(FINISH_STOP), now)

    def fail(self, batch: ScheduleBatch, error: str, now: float) -> None:
        """End the requests of the oldest step in flight, which raised; recompute all others from their known tokens.

        What the step should have written is missing from its slots, and later steps in flight may have read them, so
        their answers are dropped and the cache restarts empty.
        """
        self._num_inflight -= 1
        self.recovery.step_failed(batch, error, now)
        if self._num_inflight == 0:
            self.recovery.recover()

    def runner_lost(self, lost: Iterable[ScheduleBatch], reason: str, now: float) -> None:
        """Drop all steps in flight, `lost`, because the ModelRunner is dead. `next_batch` decides nothing until
        `Recovery.runner_ready`; all else goes on."""
        self._num_inflight = 0
        self.recovery.runner_lost(lost, reason, now)


def _answer_of(rows: Sequence[Reads | None]) -> ReadValues:
    """Return the values of a request whose rows have read everything."""
    return joined([cast("RowReads", row).answer() for row in rows])
