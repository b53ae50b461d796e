"""`Scheduler`: decides every step. Sans-io: no sockets, no clock, no torch; callers pass `now` in seconds.

Three verbs on two objects: `add` and `abort` change what is wanted, `next_batch` decides a step, `commit` takes its
answer. Deltas for the tokenizer gather until `take_deltas`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable

import numpy as np

from radixrt.config import SchedulerConfig
from radixrt.constrained.grammar import Grammar, bitmask_words
from radixrt.messages.parts import (
    FINISH_ABORT,
    FINISH_ERROR,
    FINISH_LENGTH,
    FINISH_STOP,
    ConstraintInfo,
    Finish,
    FinishError,
    ProgramHint,
)
from radixrt.messages.runner import CascadeCosts, StepOutput
from radixrt.messages.scheduler import TokenBatch, TokenizedReq, TokenizedScoreReq
from radixrt.messages.wire import Int32Array, unpack_i32
from radixrt.scheduler.admission import NewTokenRatio
from radixrt.scheduler.constrained import ConstrainedRequests, StepMasks, append_token
from radixrt.scheduler.counters import Counters
from radixrt.scheduler.deferral import ComputedPrefixes
from radixrt.scheduler.deltas import DeltaWriter
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.policy import arrange, is_overdue
from radixrt.scheduler.programs import Programs
from radixrt.scheduler.req import Req, ReqState, RowScores
from radixrt.scheduler.schedule_batch import (
    Chunk,
    ScheduleBatch,
    by_kind,
    decode_batch,
    extend_batch,
    shared_in_extend,
)
from radixrt.scheduler.scoring import ScoreGroup, longest_row
from radixrt.scheduler.sharing import NOTHING, SharingPlanner

RUNNING = ReqState.RUNNING
EXPIRY_CHECK_S = 0.05
"""Deadlines are looked at this often, not at every step."""


class Scheduler:
    """See the module's docstring.

    Args:
        config: policy, limits and budgets.
        kv: owner of all slots and rows.
        context_length: longest sequence, prompt and output together.
        eos_ids: the model's own end tokens.
        vocab_size: for grammar masks.
        random_seed: of the seeds given to requests that bring none.
        cascade: what it costs the runner to compute shared runs once; None if it never should.
    """

    def __init__(
        self, config: SchedulerConfig, kv: KVManager, *, context_length: int, eos_ids: Iterable[int], vocab_size: int,
        random_seed: int = 0, cascade: CascadeCosts | None = None,
    ) -> None:  # fmt: skip
        self._config = config
        self._kv = kv
        self._max_len = min(context_length, kv.allocator.num_slots)
        self._eos_ids = frozenset(eos_ids)
        self._mask_words = bitmask_words(vocab_size)
        self._seeds = random.Random(random_seed)
        self._ratio = NewTokenRatio(config.schedule_conservativeness)
        self._reqs: dict[str, Req] = {}
        self._groups: dict[str, ScoreGroup] = {}  # scoring requests, whose rows are in _reqs
        self._waiting: list[Req] = []
        self._active: list[Req] = []  # PREFILL and RUNNING, in order of admission
        self._next_seq = 0
        self._next_step = 0
        self._num_inflight = 0
        self._recovering = False
        self._next_expiry_check = 0.0
        self._writer = DeltaWriter()
        self.counters = Counters()
        self._constrained = ConstrainedRequests(kv, self._writer, self.counters)
        self.programs = Programs(kv, self.counters)
        self._sharing = SharingPlanner(cascade) if cascade is not None and kv.cache.shares else None

    # --- what is wanted ---

    def add(
        self, message: TokenizedReq, now: float, grammar: Grammar | None = None, info: ConstraintInfo | None = None
    ) -> None:
        """Queue a request. One that cannot be served gets its error finish instead; nothing is raised.

        Args:
            grammar: the state of the request's constraint, fresh, if it has one; `info` says how it was made.
        """
        ids = unpack_i32(message.input_ids)
        error = self._refusal(message.rid, len(ids))
        if error is None and grammar is not None:
            error = self._constrained.refusal(message, grammar, self._max_len - len(ids))
        if error is not None:
            self.refuse(message, error)
            return
        seed = message.sampling.seed
        req = Req(
            message,
            ids,
            seq=self._next_seq,
            seed=self._seeds.getrandbits(63) if seed is None else seed,
            eos_ids=self._eos_ids,
            max_len=self._max_len,
            now=now,
            timeout_s=self._config.request_timeout_s if message.timeout_s is None else message.timeout_s,
            grammar=grammar,
            constraint_info=info,
        )
        self._next_seq += 1
        self._reqs[req.rid] = req
        self._waiting.append(req)
        if req.hint is not None:
            req.program = self.programs.joined(req.hint, req.seq, now)
            req.lease_len = _lease_len(req.hint, req.prompt_len)
        finish = self._constrained.start(req)
        if finish is not None:
            self._end(req, finish, now)

    def add_score(self, message: TokenizedScoreReq, now: float) -> None:
        """Queue a scoring request; as `add`."""
        length = longest_row(message)
        error = self._refusal(message.rid, length)
        if error is not None:
            self._writer.refuse(message.rid, Finish(FINISH_ERROR, error=error), length)
            return
        timeout_s = self._config.request_timeout_s if message.timeout_s is None else message.timeout_s
        group = ScoreGroup(message, seq=self._next_seq, now=now, timeout_s=timeout_s)
        self._next_seq += 1
        self._groups[group.rid] = group
        if message.program is not None:
            group.program = self.programs.joined(message.program, group.seq, now)
        self._queue_row(group)

    def _queue_row(self, group: ScoreGroup) -> Req | None:
        """Put the next row of a scoring request into the queue, if it has one left."""
        req = group.next_row()
        if req is not None:
            self._reqs[req.rid] = req
            self._waiting.append(req)
        return req

    def refuse(self, message: TokenizedReq, error: FinishError) -> None:
        """The error end of a request that is not taken in."""
        self._writer.refuse(message.rid, Finish(FINISH_ERROR, error=error), len(message.input_ids) // 4)

    def abandon(self, rid: str) -> None:
        """The end of a request that was aborted before it was added."""
        self._writer.refuse(rid, Finish(FINISH_ABORT), 0)

    def _refusal(self, rid: str, length: int) -> FinishError | None:
        if rid in self._reqs or rid in self._groups:
            return FinishError(f"request id {rid!r} is in use", param="rid", status=400)
        if not 0 < length < self._max_len:
            return FinishError(
                f"the prompt has {length} tokens; this engine takes 1 to {self._max_len - 1} "
                "(the context and the KV pool bound it)",
                param="prompt", code="context_length_exceeded", status=400,
            )  # fmt: skip
        return self.queue_error()

    def queue_error(self, elsewhere: int = 0) -> FinishError | None:
        """Why no further request can be queued while `elsewhere` more are on their way; None if one can."""
        if len(self._waiting) + elsewhere < self._config.max_queued_requests:
            return None
        return FinishError(
            f"the queue is full ({self._config.max_queued_requests} requests wait); try again later",
            code="queue_full", status=429,
        )  # fmt: skip

    def abort(self, rid: str, now: float) -> None:
        """End a request wherever it stands; an unknown rid does nothing."""
        req, group = self._reqs.get(rid), self._groups.get(rid)
        if req is not None:
            self._end(req, Finish(FINISH_ABORT), now)
        elif group is not None:
            self._end_group(group, Finish(FINISH_ABORT), now)

    def take_deltas(self) -> TokenBatch | None:
        """What requests have got since the last time; None if that is nothing."""
        return self._writer.take()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def active(self) -> list[Req]:
        """Requests that hold a row; read only."""
        return self._active

    @property
    def kv(self) -> KVManager:
        return self._kv

    @property
    def is_idle(self) -> bool:
        return not self._reqs and not self._num_inflight

    # --- deciding a step ---

    def next_batch(self, now: float) -> ScheduleBatch | None:
        """The next step, its slots allocated; None if there is nothing to do before those in flight are committed."""
        self._expire(now)
        if self._recovering:
            return None
        while True:
            decode = [r for r in self._active if r.state is RUNNING and r.known_len + r.num_pending < r.max_len]
            decode.sort(key=_by_length)
            if self._num_inflight and self._constrained.waits(decode):
                return None
            decode_slots = self._decode_slots(decode) if decode else np.empty(0, np.int32)
            if decode_slots is not None:
                chunks = self._plan_chunks(now)
                if chunks or decode:
                    return self._batch(chunks, decode, decode_slots)
                if not any(r.state is ReqState.PREFILL for r in self._active):
                    return None
            # Out of room. Steps in flight may free some; only a drained pipeline may retract.
            if self._num_inflight or not self._retract_one():
                return None

    def _batch(self, chunks: list[Chunk], decode: list[Req], decode_slots: Int32Array) -> ScheduleBatch:
        writes = self._kv.take_row_writes()
        step_id = self._next_step
        if chunks:
            ordered = by_kind(chunks)
            shared = NOTHING if self._sharing is None else shared_in_extend(self._sharing, ordered, decode)
            batch = extend_batch(step_id, ordered.chunks, decode, decode_slots, writes, shared)
            self.counters.extend_steps += 1
        else:
            idx = np.array([r.req_pool_idx for r in decode], np.int32)
            shared = NOTHING if self._sharing is None else self._sharing.columns(decode)
            batch = decode_batch(step_id, decode, idx, decode_slots, writes, shared)
            self.counters.decode_steps += 1
            self._ratio.decoded()
        for req in batch.requests:
            req.sampling_row_due = False
        for req in batch.sampled:
            req.num_pending += 1
        for chunk in chunks:
            if chunk.is_last:
                chunk.req.state = ReqState.RUNNING  # also a scoring row, which samples nothing
            # Visible to others from the next step on: steps run in order, so its keys are written before they are read.
            self._kv.publish(chunk.req)
            self._lease_fork(chunk.req)
        self._next_step += 1
        self._num_inflight += 1
        return batch

    def _lease_fork(self, req: Req) -> None:
        if 0 < req.lease_len <= req.kv_len and req.program is not None:
            self.programs.lease_fork(req.program, req.known_ids, req.namespace, req.lease_len)
            req.lease_len = 0

    def _decode_slots(self, decode: list[Req]) -> Int32Array | None:
        idx = np.array([r.req_pool_idx for r in decode], np.int32)
        kv_lens = np.array([r.kv_len for r in decode], np.int32)
        slots = self._kv.extend_decode(idx, kv_lens)
        if slots is not None:
            for req in decode:
                req.kv_len += 1
        return slots

    def _plan_chunks(self, now: float) -> list[Chunk]:
        """Chunks of prompts for this step: those under way first, then newly admitted ones, within the token budget."""
        budget = self._config.chunked_prefill_size
        chunks: list[Chunk] = []
        for req in self._active:
            if req.state is ReqState.PREFILL and budget > 0:
                budget -= self._add_chunk(req, budget, chunks)
        if self._waiting and budget > 0 and len(self._active) < self._config.max_running_requests:
            self._admit(budget, chunks, now)
        return chunks

    def _add_chunk(self, req: Req, budget: int, chunks: list[Chunk]) -> int:
        """Append the request's next chunk; returns its tokens, 0 if there is no room for it."""
        start = req.kv_len
        num_new = min(req.known_len - start, budget)
        slots = self._kv.extend(req, num_new)
        if slots is None:
            return 0
        chunks.append(Chunk(req, start, slots, is_last=req.kv_len == req.known_len))
        return num_new

    def _admit(self, budget: int, chunks: list[Chunk], now: float) -> None:
        reserved = sum(self._ratio.reserve(r) for r in self._active)
        order = deque(arrange(self._config.schedule_policy, self._waiting, self._kv, now))
        computing = ComputedPrefixes(self._active, self._kv)
        while order:
            req = order.popleft()
            if budget <= 0 or len(self._active) >= self._config.max_running_requests:
                return
            if computing.covers(req):
                continue
            prefix = self._kv.lock_prefix(req)
            req.kv_len = len(prefix)
            need = self._ratio.reserve(req)
            req.kv_len = 0
            if self._active and reserved + need > self._kv.reachable_slots:
                self._kv.unlock_prefix(req)
                return
            if self._active and self._would_displace(req, reserved + need, now):
                self._kv.unlock_prefix(req)
                continue
            self._kv.take_row(req, prefix)
            self._waiting.remove(req)
            self._active.append(req)
            computing.add(req)
            self._admitted(req, len(prefix), now)
            if req.row is not None and (follower := self._queue_row(self._groups[req.row.rid])) is not None:
                order.appendleft(follower)
            used = self._add_chunk(req, budget, chunks)
            if used == 0:  # the estimate was too hopeful: it keeps its prefix and tries again at the next step
                return
            budget -= used
            reserved += self._ratio.reserve(req)

    def _would_displace(self, req: Req, wanted: int, now: float) -> bool:
        """Whether slots would go to this request that another program's next call is about to ask for."""
        room = self._kv.reachable_slots - wanted
        if room >= self.programs.held_tokens or is_overdue(req, now):
            return False
        return room < self.programs.expected(req.program, now)

    def _admitted(self, req: Req, cached: int, now: float) -> None:
        req.state = ReqState.PREFILL
        req.sampling_row_due = req.row is None
        if req.cached_tokens < 0:
            req.cached_tokens = min(cached, req.prompt_len)  # what a grammar forced can be cached too
            req.admitted_at = now
            shared = 0 if req.row is None else req.row.shared_len
            prompt_tokens, cached_tokens = req.prompt_len - shared, max(req.cached_tokens - shared, 0)
            self.counters.prompt_tokens += prompt_tokens
            self.counters.cached_tokens += cached_tokens
            if req.hint is not None:
                self.counters.hinted_prompt_tokens += prompt_tokens
                self.counters.hinted_cached_tokens += cached_tokens
            if req.row is not None:
                self._groups[req.row.rid].admitted(prompt_tokens, cached_tokens, now)

    def _retract_one(self) -> bool:
        """Put the least deserving active request back to waiting, if another can go on; its work stays cached."""
        if len(self._active) < 2:
            return False
        req = min(self._active, key=lambda r: (r.priority, -r.seq))
        self._retract(req, keep=True)
        self._ratio.retracted(self._active)
        return True

    def _retract(self, req: Req, *, keep: bool) -> None:
        self._kv.release(req, keep=keep)
        self._active.remove(req)
        req.num_pending = req.stale_samples = 0
        if req.num_output == 0:
            self._writer.drop_prompt_logprobs(req)  # they will be computed again
        req.state = ReqState.WAITING
        req.retractions += 1
        self.counters.retractions += 1
        if req.row is not None:
            self._groups[req.row.rid].retractions += 1
        self._waiting.insert(0, req)

    def _expire(self, now: float) -> None:
        if now < self._next_expiry_check:
            return
        self._next_expiry_check = now + EXPIRY_CHECK_S
        self.programs.expire(now)
        expired = [r for r in self._reqs.values() if r.deadline <= now]
        for req in expired:
            if req.finish is not None:
                continue  # a row of a scoring request that has just ended
            if req.grammar is not None and req.num_output > req.forced_tokens:
                self._end(req, self._constrained.expire(req), now)  # what there is becomes a valid answer
                continue
            waited = now - req.arrived_at
            error = FinishError(f"the request's deadline passed after {waited:.1f} s", code="timeout", status=408)
            self._end(req, Finish(FINISH_ERROR, error=error), now)

    # --- taking the answer ---

    def masks(self, batch: ScheduleBatch, now: float) -> StepMasks:
        """The masks of the oldest step in flight, which has constrained rows.

        A grammar that fails, or takes too long, ends its own request.
        """
        masks, failed = self._constrained.masks(batch)
        for req, finish in failed:
            self._end(req, finish, now)
        return masks

    def settle(self, now: float) -> bool:
        """Do what nobody waits for, while the device computes. A grammar that fails ends its own request; True if one
        did."""
        failed = self._constrained.settle(self._active)
        for req, finish in failed:
            self._end(req, finish, now)
        return bool(failed)

    @property
    def mask_words(self) -> int:
        """uint32 words of one row's mask."""
        return self._mask_words

    def commit(self, batch: ScheduleBatch, output: StepOutput, now: float) -> None:
        """Take the answer of the oldest step in flight: append tokens, finish requests, free what they held."""
        self._num_inflight -= 1
        if self._recovering:
            self._recover_when_drained()
            return
        self._writer.store_prompt_logprobs(batch.prompt_logprobs, output.prompt_logprobs)
        self._take_scores(batch, output.scores, now)
        errors = dict(output.row_errors)
        logprobs = iter(output.logprobs)
        taken = 0
        for i, (req, token) in enumerate(zip(batch.sampled, unpack_i32(output.token_ids).tolist(), strict=True)):
            columns = next(logprobs) if req.sampling.logprobs is not None else None
            if req.finish is not None:
                continue  # ended while the step was in flight
            if req.stale_samples:
                req.stale_samples -= 1
                continue
            req.num_pending -= 1
            if i in errors:
                self._end(req, Finish(FINISH_ERROR, error=FinishError(errors[i])), now)
                continue
            taken += 1
            if req.first_token_at is None:
                req.first_token_at = now
            req.last_token_at = now
            if req.grammar is None:
                finish = append_token(req, token)
                self._writer.token(req, token, columns)
            else:
                finish = self._constrained.take(req, token, columns)
            if finish is not None:
                self._end(req, finish, now)
        self.counters.generated_tokens += taken

    def _end(self, req: Req, finish: Finish, now: float) -> None:
        """The request's one end, from any state: give back what it holds and say so."""
        node = None
        if req.state is ReqState.WAITING:
            self._waiting.remove(req)
        else:
            self._active.remove(req)
            node = self._kv.release(req, keep=not self._recovering)
        if req.program is not None and req.hint is not None:
            end = node if finish.reason in (FINISH_STOP, FINISH_LENGTH) else None
            self.programs.ended(req.program, req.hint, end, req.cached_tokens, now)
        req.state = ReqState.FINISHED
        req.finish = finish
        del self._reqs[req.rid]
        if req.row is not None:
            self._row_ended(req, req.row, finish, now)
            return
        self.counters.finished += 1
        self._writer.finish(req, finish, now)

    # --- scoring requests ---

    def _take_scores(self, batch: ScheduleBatch, scores: bytes, now: float) -> None:
        taken = 0
        for req, count in batch.scored:
            values, taken = scores[taken : taken + 4 * count], taken + 4 * count
            if req.finish is None and req.row is not None:
                req.row.take(values)
                if req.row.is_done:
                    self._end(req, Finish(FINISH_STOP), now)

    def _row_ended(self, req: Req, row: RowScores, finish: Finish, now: float) -> None:
        group = self._groups.get(row.rid)
        if group is None:
            return  # the request ended first, and this row with it
        group.live.remove(req)
        if group.is_done or finish.reason != FINISH_STOP:
            self._end_group(group, finish, now)

    def _end_group(self, group: ScoreGroup, finish: Finish, now: float) -> None:
        del self._groups[group.rid]
        for req in group.live:
            self._end(req, Finish(FINISH_ABORT), now)
        if group.program is not None and group.hint is not None:
            end = self._kv.cache.node_at(group.prompt, group.namespace) if group.is_done else None
            self.programs.ended(group.program, group.hint, end, group.cached_tokens, now)
        self.counters.finished += 1
        self._writer.scored(group, finish, now)

    # --- failure of a step, flushing ---

    def fail(self, batch: ScheduleBatch, error: str, now: float) -> None:
        """The oldest step in flight raised: end its requests, then recompute all others from their known tokens.

        What the step should have written is missing from its slots, and later steps in flight may have read them, so
        their answers are dropped and the cache restarts empty.
        """
        self._num_inflight -= 1
        self._recovering = True
        for req in batch.requests:
            if req.finish is None:
                self._end(req, Finish(FINISH_ERROR, error=FinishError(f"the step failed: {error}")), now)
        self._recover_when_drained()

    def _recover_when_drained(self) -> None:
        if self._num_inflight == 0:
            for req in reversed(list(self._active)):
                self._retract(req, keep=False)
            self._kv.cache.reset()
            self.programs.clear()
            self._recovering = False

    def flush_cache(self) -> None:
        """Drop everything from the cache that no active request holds."""
        self._kv.cache.evict(self._kv.cache.evictable_size)


def _by_length(req: Req) -> int:
    """The longest first: on a GPU rows begin in this order, and what begins last should not be what ends last."""
    return -req.kv_len


def _lease_len(hint: ProgramHint, prompt_len: int) -> int:
    """Tokens to lease for a fork, of which more than one branch is still to call."""
    return min(max(hint.fork_len, 0), prompt_len) if hint.siblings > 1 else 0
