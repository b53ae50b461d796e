"""`RequestTable`: all open requests, and the transitions between their states.

    queue               -> WAITING
    activate            WAITING -> PREFILL           the request takes a row and its cached prefix
    retract             PREFILL, RUNNING -> WAITING  slots are missing; the request loses its row
    set_aside           PREFILL, RUNNING -> WAITING  another request is to be computed alone
    recover             PREFILL, RUNNING -> WAITING  all active requests, because the cache is lost
    end                 any -> FINISHED              the request gets its only finish

A request without sampling is a `RequestGroup`, whose rows are requests of their own. The group ends with its last row.
"""

from __future__ import annotations

import logging

from radixrt.messages.parts import FINISH_ABORT, FINISH_STOP, Finish, ReadValues
from radixrt.messages.request import Request, Row
from radixrt.messages.wire import Int32Array
from radixrt.scheduler.counters import Counters
from radixrt.scheduler.deltas import DeltaWriter
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.part import End, Parts
from radixrt.scheduler.req import Member, Req, ReqState
from radixrt.scheduler.request_group import RequestGroup

logger = logging.getLogger(__name__)


class RequestTable:
    """See the module's docstring.

    Attributes:
        by_rid: every open request, rows of groups included.
        groups: every open request that samples nothing.
        waiting: requests in WAITING.
        active: requests in PREFILL and RUNNING, in order of admission.
        recovering: a step has failed, so the slots of active requests may hold wrong keys and values.
    """

    def __init__(self, kv: KVManager, parts: Parts, writer: DeltaWriter, counters: Counters) -> None:
        self._kv = kv
        self._parts = parts
        self._writer = writer
        self._counters = counters
        self.by_rid: dict[str, Req] = {}
        self.groups: dict[str, RequestGroup] = {}
        self.waiting: list[Req] = []
        self.active: list[Req] = []
        self.recovering = False

    def __contains__(self, rid: str) -> bool:
        return rid in self.by_rid or rid in self.groups

    def queue(self, req: Req, row: Row, message: Request, now: float) -> None:
        """Put a request in the queue.

        Args:
            row: row of the message that the request computes.
        """
        for queued in self._parts.queued:
            queued(req, row, message, now)
        self.by_rid[req.rid] = req
        self.waiting.append(req)

    def queue_group(self, group: RequestGroup, now: float) -> None:
        """Open a group and queue its first row."""
        self.groups[group.rid] = group
        self.queue_next_row(group.rid, now)

    def queue_next_row(self, rid: str, now: float) -> Req | None:
        """Queue the next row of a group; return None if all rows have been queued."""
        group = self.groups[rid]
        row, req = group.next_row()
        if row is not None and req is not None:
            self.queue(req, row, group.message, now)
            group.started(req)
        return req

    def activate(self, req: Req, prefix: Int32Array, now: float) -> None:
        """Admit a waiting request whose cached prefix is locked in the slots `prefix`."""
        self._kv.take_row(req, prefix)
        self.waiting.remove(req)
        self.active.append(req)
        req.state = ReqState.PREFILL
        req.sampling_row_due = req.member is None
        again, counted = req.stats.cached_tokens >= 0, (0, 0)
        if not again:
            counted = self._count_admission(req, self._kv.computed_len(req), len(prefix), now)
        for admitted in self._parts.admitted:
            admitted(req, *counted, again=again)

    def _count_admission(self, req: Req, cached: int, matched: int, now: float) -> tuple[int, int]:
        """Count a first admission; return the numbers of prompt tokens and of cached tokens, without the prefix that
        an earlier row of the group has counted."""
        stats, counters = req.stats, self._counters
        stats.cached_tokens = min(cached, req.prompt_len)  # tokens that a grammar forced can be cached too
        stats.matched_tokens = min(matched, req.prompt_len)
        if matched > cached:
            counters.recomputed_tokens += stats.matched_tokens - stats.cached_tokens
            logger.debug("request %s: KV matched %d, nearest state at %d", req.rid, matched, cached)
        stats.admitted_at = now
        shared = 0 if req.member is None else req.member.shared_len
        prompt_tokens, cached_tokens = req.prompt_len - shared, max(stats.cached_tokens - shared, 0)
        counters.prompt_tokens += prompt_tokens
        counters.cached_tokens += cached_tokens
        if req.member is not None:
            self.groups[req.member.group].admitted(prompt_tokens, cached_tokens, now)
        if stats.fetched:
            self._count_fetched(req, shared)
        return prompt_tokens, cached_tokens

    def _count_fetched(self, req: Req, shared: int) -> None:
        """Count the cached prompt tokens after the first `shared` ones that were fetched for a request."""
        fetched = req.stats.fetched_tokens(shared)
        self._counters.fetched_tokens.update(fetched)
        if req.member is not None:
            self.groups[req.member.group].fetched_tokens.update(fetched)

    def retract(self, req: Req) -> None:
        """Put an active request back into the queue because slots are missing. Its computed tokens stay in the cache,
        where they may be evicted."""
        self._requeue(req, keep=True)
        req.stats.retractions += 1
        self._counters.retractions += 1
        if req.member is not None:
            self.groups[req.member.group].retractions += 1

    def set_aside(self, req: Req) -> None:
        """Put an active request back into the queue, so that another request is computed alone."""
        self._requeue(req, keep=True)

    def _requeue(self, req: Req, *, keep: bool) -> None:
        self._kv.release(req, keep=keep)
        self.active.remove(req)
        req.num_pending = 0
        if req.taker is not None:
            req.taker.requeued()
        req.state = ReqState.WAITING
        self.waiting.insert(0, req)

    def recover(self, reason: str) -> None:
        """Empty the cache, and queue every active request again with its known tokens. No step may be in flight.

        The known tokens determine the rest of a request's output: grammar states and penalties are functions of the
        known tokens, and each random number is a function of the seed and the position.

        Args:
            reason: key of the counter of cache resets.
        """
        for req in reversed(list(self.active)):
            self._requeue(req, keep=False)
            self._counters.resumed += 1
        self._reset_cache(reason)
        self.recovering = False

    # --- ends ---

    def abort(self, rid: str, now: float) -> None:
        """End a request in any state. An unknown rid has no effect."""
        req, group = self.by_rid.get(rid), self.groups.get(rid)
        if req is not None:
            self.end(req, Finish(FINISH_ABORT), now)
        elif group is not None:
            self._end_group(group, Finish(FINISH_ABORT), now)

    def forget(self, now: float, reason: str | None) -> None:
        """Drop every request without an answer. Steps may be in flight: a freed slot is overwritten only by a later
        step.

        Args:
            reason: key of the counter of cache resets; None to keep the cache.
        """
        for group in list(self.groups.values()):
            self._end_group(group, Finish(FINISH_ABORT), now)
        for req in list(self.by_rid.values()):
            self.end(req, Finish(FINISH_ABORT), now)
        self._writer.take()
        if reason is not None:
            self._reset_cache(reason)

    def _reset_cache(self, reason: str) -> None:
        for emptying in self._parts.emptying:
            emptying()
        self._kv.cache.reset()
        self._counters.cache_resets[reason] += 1
        for cleared in self._parts.cleared:
            cleared()

    def end(self, req: Req, finish: Finish, now: float) -> None:
        """End a request: release the row and slots, and write the finish."""
        node = None
        if req.state is ReqState.WAITING:
            self.waiting.remove(req)
        else:
            self.active.remove(req)
            node = self._kv.release(req, keep=not self.recovering)
        req.state = ReqState.FINISHED
        req.finish = finish
        del self.by_rid[req.rid]
        for ended in self._parts.ended:
            ended(End(req.rid, req, node, req.stats.cached_tokens, finish, now))
        if req.member is not None:
            self._row_ended(req, req.member, finish, now)
            return
        self._counters.finished += 1
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
        node = self._kv.cache.node_at(group.prompt, group.namespace) if group.is_done else None
        for ended in self._parts.ended:
            ended(End(group.rid, None, node, group.cached_tokens, finish, now))
        self._counters.finished += 1
        values = ReadValues.join([reads.answer() for reads in group.reads]) if group.is_done else None
        self._writer.answered(group, values, finish, now)
