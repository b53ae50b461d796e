"""`RequestTable`: every open request, and the transitions between its states.

    queue            -> WAITING
    activate            WAITING -> PREFILL          takes a row and the cached prefix
    retract             PREFILL, RUNNING -> WAITING gives the row back, to be recomputed later
    set_aside           the same, to compute another one alone
    recover             the same for all of them, when the cache is lost
    end                 any -> FINISHED             the request's one finish

A request that samples nothing is a `RequestGroup` whose rows are requests of their own; it ends when its last row has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from radixrt.messages.cache_events import RequestAdmitted, RequestEnded
from radixrt.messages.parts import FINISH_ABORT, FINISH_ERROR, FINISH_LENGTH, FINISH_STOP, Finish, ReadValues
from radixrt.messages.wire import Int32Array
from radixrt.scheduler.counters import Counters
from radixrt.scheduler.deltas import DeltaWriter
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.output_lengths import OutputLengths
from radixrt.scheduler.programs import Programs
from radixrt.scheduler.req import Member, Reads, Req, ReqState
from radixrt.scheduler.request_group import RequestGroup

logger = logging.getLogger(__name__)


class RequestTable:
    """See the module's docstring.

    Attributes:
        by_rid: every open request, rows of groups included.
        groups: every open request that samples nothing.
        waiting: requests in WAITING.
        active: requests in PREFILL and RUNNING, in order of admission.
        recovering: a step failed, so no slot of an active request is known to hold what it should.
    """

    def __init__(
        self,
        kv: KVManager,
        programs: Programs,
        writer: DeltaWriter,
        counters: Counters,
        outputs: OutputLengths,
        answer_of: Callable[[Sequence[Reads | None]], ReadValues],
    ) -> None:
        self._kv = kv
        self._programs = programs
        self._writer = writer
        self._counters = counters
        self._outputs = outputs
        self._answer_of = answer_of
        self.by_rid: dict[str, Req] = {}
        self.groups: dict[str, RequestGroup] = {}
        self.waiting: list[Req] = []
        self.active: list[Req] = []
        self.recovering = False

    def __contains__(self, rid: str) -> bool:
        return rid in self.by_rid or rid in self.groups

    def queue(self, req: Req) -> None:
        self.by_rid[req.rid] = req
        self.waiting.append(req)

    def queue_group(self, group: RequestGroup) -> None:
        """Open a group and queue its first row."""
        self.groups[group.rid] = group
        self.queue_next_row(group.rid)

    def queue_next_row(self, rid: str) -> Req | None:
        """Queue the next row of a group, if it has one left."""
        req = self.groups[rid].next_row()
        if req is not None:
            self.queue(req)
        return req

    def activate(self, req: Req, prefix: Int32Array, now: float) -> None:
        """Admit a waiting request whose cached prefix is locked in the slots `prefix`."""
        self._kv.take_row(req, prefix)
        self.waiting.remove(req)
        self.active.append(req)
        req.state = ReqState.PREFILL
        req.sampling_row_due = req.member is None
        if req.stats.cached_tokens < 0:
            self._count_admission(req, self._kv.computed_len(req), len(prefix), now)

    def _count_admission(self, req: Req, cached: int, matched: int, now: float) -> None:
        stats, counters = req.stats, self._counters
        stats.cached_tokens = min(cached, req.prompt_len)  # tokens that a grammar forced can be cached too
        stats.matched_tokens = min(matched, req.prompt_len)
        if matched > cached:
            counters.recomputed_tokens += stats.matched_tokens - stats.cached_tokens
            logger.debug("request %s: KV matched %d, nearest state at %d", req.rid, matched, cached)
        stats.admitted_at = now
        for journal in self._kv.cache.journals:
            if journal.records_requests:
                event = RequestAdmitted(
                    req.rid,
                    journal.number(req.kv.last_node) if matched else 0,
                    req.prompt_len,
                    stats.cached_tokens,
                    stats.matched_tokens,
                    min(len(req.reusable_ids), req.prompt_len),
                    *req.hint_names,
                )
                journal.events.append(event)
        shared = 0 if req.member is None else req.member.shared_len
        prompt_tokens, cached_tokens = req.prompt_len - shared, max(stats.cached_tokens - shared, 0)
        counters.prompt_tokens += prompt_tokens
        counters.cached_tokens += cached_tokens
        if req.call is not None and req.call.hint is not None:
            counters.hinted_prompt_tokens += prompt_tokens
            counters.hinted_cached_tokens += cached_tokens
        if req.member is not None:
            self.groups[req.member.group].admitted(prompt_tokens, cached_tokens, now)

    def retract(self, req: Req) -> None:
        """Put an active request back to waiting for lack of slots; what it computed stays in the cache."""
        self._requeue(req, keep=True)
        req.stats.retractions += 1
        self._counters.retractions += 1
        if req.member is not None:
            self.groups[req.member.group].retractions += 1

    def set_aside(self, req: Req) -> None:
        """Put an active request back to waiting, so that another one is computed alone."""
        self._requeue(req, keep=True)

    def _requeue(self, req: Req, *, keep: bool) -> None:
        self._kv.release(req, keep=keep)
        self.active.remove(req)
        req.num_pending = 0
        if req.constraint is not None:
            req.constraint.stale_samples = 0
        req.state = ReqState.WAITING
        self.waiting.insert(0, req)

    def recover(self, reason: str) -> None:
        """Recompute every active request from its known tokens, on an empty cache. No step may be in flight.

        A request needs nothing else to go on as if nothing had happened: its grammar's state belongs to its known
        tokens, penalties are counted from them, and a random number belongs to a seed and a position.

        Args:
            reason: key of the counter of cache resets.
        """
        for req in reversed(list(self.active)):
            self._requeue(req, keep=False)
            self._counters.resumed += 1
        self._kv.cache.reset()
        self._counters.cache_resets[reason] += 1
        self._programs.clear()
        self.recovering = False

    # --- ends ---

    def abort(self, rid: str, now: float) -> None:
        """End a request in whatever state it is; an unknown rid does nothing."""
        req, group = self.by_rid.get(rid), self.groups.get(rid)
        if req is not None:
            self.end(req, Finish(FINISH_ABORT), now)
        elif group is not None:
            self._end_group(group, Finish(FINISH_ABORT), now)

    def forget(self, now: float, reason: str | None) -> None:
        """Drop every request without an answer, and the cache unless `reason`, the key of the counter of cache resets,
        is None. Steps may be in flight: a later write to a slot is in a later step."""
        for group in list(self.groups.values()):
            self._end_group(group, Finish(FINISH_ABORT), now)
        for req in list(self.by_rid.values()):
            self.end(req, Finish(FINISH_ABORT), now)
        self._writer.take()
        if reason is not None:
            self._kv.cache.reset()
            self._counters.cache_resets[reason] += 1
            self._programs.clear()

    def end(self, req: Req, finish: Finish, now: float) -> None:
        """End a request: release its row and its slots, and write its finish."""
        node = None
        if req.state is ReqState.WAITING:
            self.waiting.remove(req)
        else:
            self.active.remove(req)
            node = self._kv.release(req, keep=not self.recovering)
        if req.call is not None:
            end = node if finish.reason in (FINISH_STOP, FINISH_LENGTH) else None
            self._programs.end_call(req.call, end, req.stats.cached_tokens, now)
        req.state = ReqState.FINISHED
        req.finish = finish
        for journal in self._kv.cache.journals:
            if journal.records_requests:
                first = req.stats.first_token_at
                waited = None if first is None else first - req.stats.arrived_at
                journal.events.append(RequestEnded(req.rid, finish.reason, req.num_output, waited))
        del self.by_rid[req.rid]
        if req.member is not None:
            self._row_ended(req, req.member, finish, now)
            return
        self._counters.finished += 1
        if req.stats.admitted_at is not None and finish.reason != FINISH_ERROR:
            self._outputs.ended(req.max_len - req.prompt_len, req.num_output)
        self._writer.finish(req, finish, now)

    def _row_ended(self, req: Req, member: Member, finish: Finish, now: float) -> None:
        group = self.groups.get(member.group)
        if group is None:
            return  # the group ended first, and this row with it
        group.live.remove(req)
        if group.is_done or finish.reason != FINISH_STOP:
            self._end_group(group, finish, now)

    def _end_group(self, group: RequestGroup, finish: Finish, now: float) -> None:
        del self.groups[group.rid]
        for req in group.live:
            self.end(req, Finish(FINISH_ABORT), now)
        if group.call is not None:
            end = self._kv.cache.node_at(group.prompt, group.namespace) if group.is_done else None
            self._programs.end_call(group.call, end, group.cached_tokens, now)
        self._counters.finished += 1
        self._writer.answered(group, self._answer_of(group.reads) if group.is_done else None, finish, now)
