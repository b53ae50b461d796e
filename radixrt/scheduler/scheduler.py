"""`Scheduler`: decides every step. Sans-io: no sockets, no clock, no torch; callers pass `now` in seconds.

A step takes three verbs: `Scheduler.next_batch` decides a step and allocates its slots, the executor's `submit` sends
the step to the runner, and `Scheduler.commit` (or `fail`) processes the answer. Steps are committed in the order of
their decisions. After `runner_lost`, `next_batch` decides no step until `runner_ready`. `intake.add` opens a request
and `abort` ends a request. Output accumulates until `take_deltas`.

Each object of the core is the only writer of its state: `RequestTable` (open requests and their transitions), `Intake`
(new requests), `Admission` (prefill chunks of a step), `KVManager` (slots), `Pacing` (rows of a step), `StepTimeFit`
(times of steps), `DeltaWriter` (output). Every other feature is a part (`radixrt.scheduler.part`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from radixrt.config import SchedulerConfig
from radixrt.messages.parts import FINISH_ERROR, FINISH_TIMEOUT, Finish, FinishError, deadline_passed
from radixrt.messages.runner import PartOrder, PartReport, StepOutput
from radixrt.messages.scheduler import TokenBatch, is_forgotten
from radixrt.messages.wire import unpack_i32
from radixrt.scheduler.admission import Admission
from radixrt.scheduler.counters import Counters
from radixrt.scheduler.deltas import DeltaWriter
from radixrt.scheduler.intake import Intake
from radixrt.scheduler.kv_manager import DecodeRows, KVManager
from radixrt.scheduler.pacing import Pacing
from radixrt.scheduler.part import Core, Part, Parts, Selection
from radixrt.scheduler.req import Req, ReqState
from radixrt.scheduler.request_table import RequestTable
from radixrt.scheduler.schedule_batch import NO_CHUNKS, Chunk, ScheduleBatch, by_kind, make_batch
from radixrt.scheduler.step_time import StepTimeFit

P = TypeVar("P", bound=Part)

RUNNING = ReqState.RUNNING
RESET_BY_STEP, RESET_BY_RUNNER, RESET_BY_ROUTER = "step_failed", "runner_restarted", "fenced"
"""Reasons for a reset of the prefix cache; keys of `Counters.cache_resets`."""
EXPIRY_CHECK_S = 0.05
"""Shortest interval between two checks of deadlines, and between two calls of `Part.tick`."""


class Left(NamedTuple):
    """Rest of a namespace that was dropped.

    Attributes:
        tokens: cached tokens that stay, because requests use them.
        requests: open requests, whose tokens stay or will be cached again.
    """

    tokens: int
    requests: int


class Scheduler:
    """See the module's docstring.

    Args:
        config: policy, limits and budgets.
        kv: owner of all slots and rows.
        context_length: longest sequence of the model, prompt and output together, in tokens.
        eos_ids: the model's own end tokens.
        random_seed: seed of the generator that gives a seed to each request without a seed.
        parts: parts in the order of their calls (`radixrt.parts.assembly`).
        pacing: chooses the decode rows and the number of prompt tokens of each step; default: all rows in each step.

    Attributes:
        orders: orders of parts that the caller must send to the ranks before the next step, and must remove.
        has_runner: False between `runner_lost` and `runner_ready`.
        core: the objects of the core, for parts.
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
        self.orders: list[PartOrder] = []
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
        """Return the part of a class.

        Raises:
            KeyError: the scheduler has no such part.
        """
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
        """End a request in any state. An unknown rid has no effect."""
        self._requests.abort(rid, now)

    def take_deltas(self) -> TokenBatch | None:
        """Return the output of all requests since the last call; None without output."""
        return self._writer.take()

    def flush_cache(self) -> None:
        """Evict all tokens from the cache that no active request has locked."""
        for flushing in self.parts.flushing:
            flushing()
        self._kv.flush()
        self.counters.cache_resets["flushed"] += 1

    def forget_namespace(self, namespace: str, *, whole_owner: bool) -> Left:
        """Drop the cached tokens of a namespace that no active request has locked, from all memory.

        Args:
            namespace: the namespace, or, with `whole_owner`, the beginning of all namespaces to drop.
        """
        is_wanted = partial(is_forgotten, namespace=namespace, whole_owner=whole_owner)
        for forgetting in self.parts.forgetting:
            forgetting(namespace, whole_owner=whole_owner)
        tokens = self._kv.forget_namespace(is_wanted)
        rows = [req for req in self._requests.by_rid.values() if is_wanted(req.namespace)]
        open_rids = {req.rid if req.member is None else req.member.group for req in rows}
        open_rids |= {each.rid for each in self.parts.taker.preparing() if is_wanted(each.envelope.cache_salt)}
        return Left(tokens, len(open_rids))

    def _expire(self, now: float) -> None:
        if now < self._next_expiry_check:
            return
        self._next_expiry_check = now + EXPIRY_CHECK_S
        for tick in self.parts.tick:
            tick(now)
        for req in [r for r in self._requests.by_rid.values() if r.stats.deadline <= now]:
            if req.finish is not None:
                continue  # a row of a group that an earlier iteration has ended
            # An output that has begun is the answer. A taker may complete it, for example by a shortest completion.
            if req.taker is not None:
                finish = req.taker.expire(req)
            else:
                finish = Finish(FINISH_TIMEOUT) if req.num_output else None
            if finish is None:
                finish = Finish(FINISH_ERROR, error=deadline_passed(now - req.stats.arrived_at))
            self._requests.end(req, finish, now)

    # --- next_batch ---

    def next_batch(self, now: float) -> ScheduleBatch | None:
        """Decide the next step and allocate its slots.

        Returns:
            The step; None if there is nothing to compute, or nothing before a step in flight is committed.
        """
        self._expire(now)
        if not self.can_step:
            return None
        # After a crash, a request that may have killed the runner is alone in its steps.
        choices = next((found for only in self.parts.only if (found := only(now))), None)
        if choices is None:
            return self._decide(None, now)
        if self._num_inflight:
            return None
        return next((batch for chosen in choices if (batch := self._decide(chosen, now)) is not None), None)

    def _decide(self, chosen: Selection | None, now: float) -> ScheduleBatch | None:
        """Decide a step.

        Args:
            chosen: requests that may be in the step; None for all.
        """
        # A request that gives its row to another one has no token in flight, as one that is retracted.
        for gives_way in self.parts.gives_way:
            req = gives_way(at_once=not self._num_inflight) if chosen is None else None
            if req is not None:
                if self._num_inflight:
                    return None
                self._requests.set_aside(req)
        # Each iteration tries one set of active requests. A retraction makes the set smaller.
        while True:
            # Decode rows come first: a running request does not wait for slots that the prompt of another request
            # takes. Requests whose last token is in flight already are excluded.
            active = self._requests.active
            growing = [r for r in active if r.state is RUNNING and r.known_len + r.num_pending < r.max_len]
            if chosen is not None:
                growing = [r for r in growing if chosen.has(r)]
            decode = self.pacing.rows(growing)
            # Attention kernels start with the first row. If the longest row starts first, it does not finish last.
            decode.sort(key=lambda req: req.kv.length, reverse=True)
            if self._num_inflight and not all(may_step(decode) for may_step in self.parts.may_step):
                return None
            # Prefill chunks take only slots that the decode rows leave. A step needs a row of either kind. Without
            # one, a prompt under way means that slots are missing; otherwise there is nothing to do.
            rows = self._kv.extend_decode(decode)
            if rows is not None:
                chunks = self.admission.plan_chunks(now, chosen)
                if chunks or decode:
                    return self._batch(chunks, rows, now)
                if not self._lacks_slots(chosen):
                    return None
                # A prompt whose inputs are lost needs no slots, and ends.
                if self._end_lost(now):
                    continue
            # Slots are missing. Requests of the steps in flight may finish and free some, so requests are retracted
            # only when no step is in flight.
            if self._num_inflight or not self._retract_one(chosen):
                return None

    @property
    def can_step(self) -> bool:
        """False while the steps in flight are void (`recovering`), and while there is no runner."""
        return self.has_runner and not self._requests.recovering

    def _batch(self, chunks: list[Chunk], decode: DecodeRows, now: float) -> ScheduleBatch:
        """Make the step of these rows, and bring the state of requests and cache to the end of the step."""
        kinds, writes = by_kind(chunks) if chunks else NO_CHUNKS, self._kv.take_row_writes()
        batch = make_batch(self._next_step, now, kinds, decode, writes, self.parts, gives_ids=self.pacing.gives_ids)
        # With s stages each row is in every s-th step, so a step counts as 1 / s of a decode step.
        if chunks:
            self.counters.extend_steps += 1
        else:
            self.counters.decode_steps += 1
            self.admission.ratio.decoded(1 / self.pacing.stages)
        # The next step is decided before this one is answered: a sampled token counts as pending until `commit`.
        for req in batch.requests:
            req.sampling_row_due = False
        for req in batch.sampled:
            req.num_pending += 1
            req.last_step = batch.step_id
        self._kv.end_step()
        # A chunk is published before it is computed. Other requests can match its tokens from the next step on: steps
        # run in order on one stream, so the chunk's keys and values are written before a later step reads them.
        for chunk in chunks:
            req = chunk.req
            if chunk.is_last:
                req.state = RUNNING  # also a row of a group, which samples nothing
            if chunk.start >= req.prompt_len and chunk.states is None:
                continue  # forced output tokens: output is published when the request ends
            self._kv.publish(req)
            self._kv.chunk_published(req, chunk.states)
        self.counters.step_tokens.observe(batch.num_tokens)
        self._next_step += 1
        self._num_inflight += 1
        return batch

    def _end_lost(self, now: float) -> bool:
        """Let parts end the requests whose inputs are lost; return whether any ended. Rows of tokens lose nothing."""
        active = self._requests.active
        if all(req.inputs is None for req in active):
            return False
        before = len(active)
        for tick in self.parts.tick:
            tick(now)
        return len(self._requests.active) < before

    def _lacks_slots(self, chosen: Selection | None) -> bool:
        """Return True if a step without rows has none because slots are missing, or rows for the only request that may
        be in the step."""
        active = self._requests.active
        if chosen is None:
            return any(req.state is ReqState.PREFILL for req in active)
        if chosen.alone is None:
            return False
        waits = chosen.alone.state is ReqState.PREFILL or chosen.alone in self._requests.waiting
        return waits and any(req is not chosen.alone for req in active)

    def _retract_one(self, chosen: Selection | None) -> bool:
        """Retract the active request of lowest priority, among equals the latest arrival. The only active request is
        never retracted, and neither is the only request that may be in the step.

        Returns:
            False if no request was retracted.
        """
        active = self._requests.active
        if len(active) < 2:
            return False
        alone = None if chosen is None else chosen.alone
        last = min((req for req in active if req is not alone), key=lambda req: (req.priority, -req.seq))
        if alone is not None:
            self._requests.set_aside(last)
        else:
            self._requests.retract(last)
            self.admission.ratio.retracted(active)
        return True

    # --- commit ---

    def commit(self, batch: ScheduleBatch, output: StepOutput, now: float) -> None:
        """Process the answer of the oldest step in flight: append the sampled tokens, and end finished requests."""
        self._num_inflight -= 1
        self.step_time.answered(batch.shape, batch.decided_at, output.forward_s, now, is_typical=not batch.added_s)
        # After a failed step the answers of the later steps in flight are void. The last of them starts the recovery.
        if self._requests.recovering:
            if self._num_inflight == 0:
                self._requests.recover(RESET_BY_STEP)
            return
        # Parts read the answer before tokens are appended: the values that a request reads are sent with its token.
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
            # Time between two tokens of a request. Nearly all rows got their last token from the last committed step;
            # their gap is the same number, and the histogram counts them by one call after the loop.
            taken += 1
            stats = req.stats
            if stats.first_token_at is None:
                stats.first_token_at = now
            elif stats.last_token_at == last_commit:
                steady += 1
            else:
                self.counters.token_gaps.observe(now - stats.last_token_at)
            stats.last_token_at = now
            # A taker (a grammar) appends and writes the token itself, and may append forced tokens after it.
            if taker is None:
                finish = req.take(token)
                write_token(req, token, columns)
            else:
                finish = taker.take(req, token, columns)
            if finish is not None:
                self._requests.end(req, finish, now)
        if steady:
            self.counters.token_gaps.observe(now - last_commit, steady)
        self._last_commit = now
        self.counters.generated_tokens += taken
        for committed in self.parts.committed:
            committed(batch)

    def reported(self, report: PartReport, now: float) -> None:
        """Pass a report of a part's end in a rank to the part."""
        self.parts.reported[report.part](report.rank, report.data, now)

    def fail(self, batch: ScheduleBatch, error: str, now: float, *, lost_input: int = 0) -> list[Req]:
        """End the requests of the oldest step in flight, which raised, and recompute all other requests from their
        known tokens.

        The failed step has not written its slots, and later steps in flight may have read these slots. So the answers
        of the later steps are dropped, and the cache is reset.

        Args:
            lost_input: see `StepFailed`. If it is not 0, only the active requests that need this input end: the step
                may have had work for a request of which it has no token.

        Returns:
            The requests that ended.
        """
        self._num_inflight -= 1
        self._requests.recovering = True
        failed = FinishError(f"the step failed: {error}")
        ended = []
        for req in list(self._requests.active) if lost_input else batch.requests:
            lost = req.inputs.lost(lost_input) if req.inputs is not None and lost_input else None
            if req.finish is None and (lost is not None or not lost_input):
                self._requests.end(req, Finish(FINISH_ERROR, error=lost or failed), now)
                ended.append(req)
        if self._num_inflight == 0:
            self._requests.recover(RESET_BY_STEP)
        return ended

    def runner_lost(self, lost: Iterable[ScheduleBatch], reason: str, now: float) -> None:
        """Drop all steps in flight because the ModelRunner is dead, and queue all active requests again.

        `next_batch` decides no step until `runner_ready`; all other methods work as before.

        Args:
            lost: all steps in flight.
        """
        self._num_inflight = 0
        self.has_runner = False
        self._requests.recovering = True
        batches = list(lost)
        for part_lost in self.parts.lost:
            part_lost(batches, reason, now)
        self.orders.clear()
        self._requests.recover(RESET_BY_RUNNER)

    def runner_ready(self) -> None:
        """Continue with a new ModelRunner. The caller has checked that its pools have the same sizes."""
        self.has_runner = True
        self.counters.runner_restarts += 1

    def forget(self, now: float, *, keeps_cache: bool) -> None:
        """Drop all requests without an answer: their router has moved them to other replicas, or a new router begins.

        Args:
            keeps_cache: False to reset the prefix cache too.
        """
        for forgotten in self.parts.forgotten:
            forgotten()
        self._requests.forget(now, None if keeps_cache else RESET_BY_ROUTER)
