"""`SchedulerLoop`: the only loop around the scheduler. Overlap is how many steps it keeps in flight, nothing more."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

import zmq

from radixrt.channel import Inbox, Outbox
from radixrt.errors import EngineError, InvariantError
from radixrt.executor.base import Executor
from radixrt.messages import (
    AbortReq,
    ControlReply,
    ControlReq,
    SchedulerReady,
    SchedulerStats,
    StepFailed,
    TokenBatch,
    TokenizedReq,
    ToScheduler,
    ToTokenizer,
)
from radixrt.scheduler.invariants import check_scheduler, check_slots
from radixrt.scheduler.schedule_batch import ScheduleBatch
from radixrt.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

STATS_INTERVAL_S = 0.25
IDLE_WAIT_MS = 1000
BUSY_WAIT_MS = 50
"""How long to sleep at most for a message; deadlines and a hung runner are noticed this late."""


class SchedulerLoop:
    """Moves messages between the inbox, the scheduler core, the executor and the tokenizer.

    Args:
        max_inflight: steps submitted and not yet answered, at most.
        step_timeout_s: a step without an answer for this long means that the runner hangs.
        check_invariants: check every invariant after each step, not only when idle.
    """

    def __init__(
        self, scheduler: Scheduler, executor: Executor, inbox: Inbox[ToScheduler], tokenizer: Outbox[ToTokenizer], *,
        max_inflight: int, step_timeout_s: float, check_invariants: bool = False, inbox_socket: Any | None = None,
    ) -> None:  # fmt: skip
        self._core = scheduler
        self._executor = executor
        self._inbox = inbox
        self._tokenizer = tokenizer
        self._max_inflight = max_inflight
        self._step_timeout_s = step_timeout_s
        self._check = check_invariants
        self._inflight: deque[ScheduleBatch] = deque()
        self._head_since = 0.0  # when the oldest step in flight became the oldest
        self._last_stats = 0.0
        self._drains: list[ControlReq] = []
        self._idle = True
        self._poller = zmq.Poller()
        for socket in (inbox_socket, executor.socket):
            if socket is not None:
                self._poller.register(socket, zmq.POLLIN)

    def announce(self, ready: SchedulerReady) -> None:
        self._tokenizer.send(ready)

    def run_once(self, *, wait: bool) -> bool:
        """One turn: take messages, submit what can be submitted, commit what was answered.

        Args:
            wait: sleep until a message comes if this turn has nothing to do (only with ZMQ).

        Returns:
            True if the turn did something or something is in flight.

        Raises:
            EngineError: the runner hangs.
        """
        busy = self._take_messages()
        busy |= self._submit()
        if wait and not busy:
            self._sleep()
        committed = self._commit()
        self._send_deltas()
        self._housekeeping()
        return busy or committed or bool(self._inflight)

    @property
    def inflight(self) -> int:
        return len(self._inflight)

    def _take_messages(self) -> bool:
        taken = False
        while (message := self._inbox.recv()) is not None:
            taken = True
            now = time.monotonic()
            if isinstance(message, TokenizedReq):
                self._core.add(message, now)
            elif isinstance(message, AbortReq):
                self._core.abort(message.rid, now)
            else:
                self._control(message)
        return taken

    def _submit(self) -> bool:
        submitted = False
        while len(self._inflight) < self._max_inflight:
            started = time.perf_counter()
            batch = self._core.next_batch(time.monotonic())
            if batch is None:
                break
            self._executor.submit(batch.step)
            self._inflight.append(batch)
            self._core.counters.schedule_s += time.perf_counter() - started
            if len(self._inflight) == 1:
                self._new_head()
            submitted = True
        return submitted

    def _new_head(self) -> None:
        """The oldest step in flight: all earlier tokens are known, so its masks can be filled now."""
        self._head_since = time.monotonic()
        batch = self._inflight[0]
        if batch.grammar_rows:
            self._executor.send_mask(self._core.fill_mask(batch))

    def _commit(self) -> bool:
        if not self._inflight:
            return False
        answer = self._executor.recv()
        if answer is None:
            if time.monotonic() - self._head_since > self._step_timeout_s:
                step = self._inflight[0].step_id
                raise EngineError(f"the ModelRunner did not answer step {step} within {self._step_timeout_s:g} s")
            return False
        started = time.perf_counter()
        batch = self._inflight.popleft()
        if isinstance(answer, StepFailed):
            if answer.fatal:
                raise EngineError(f"step {answer.step_id} broke runner {answer.rank}: {answer.error}")
            self._core.fail(batch, answer.error, time.monotonic())
        else:
            self._core.counters.runner_s += answer.forward_s
            self._core.commit(batch, answer, time.monotonic())
        if self._inflight:
            self._new_head()
        self._core.counters.commit_s += time.perf_counter() - started
        if self._check:
            check_scheduler(self._core)
        return True

    def _send_deltas(self) -> None:
        deltas = self._core.take_deltas()
        if deltas:
            self._tokenizer.send(TokenBatch(deltas))

    def _sleep(self) -> None:
        if self._poller.sockets:
            busy = bool(self._inflight) or not self._core.is_idle
            self._poller.poll(BUSY_WAIT_MS if busy else IDLE_WAIT_MS)

    # --- operators ---

    def _control(self, request: ControlReq) -> None:
        if request.op == "drain":
            self._drains.append(request)
        elif request.op == "flush_cache":
            self._core.flush_cache()
            self._tokenizer.send(self.stats())
            self._tokenizer.send(ControlReply(request.id, ok=True))
        else:
            self._tokenizer.send(self._check_reply(request))

    def _check_reply(self, request: ControlReq) -> ControlReply:
        try:
            check_scheduler(self._core)
        except InvariantError as error:
            return ControlReply(request.id, ok=False, message=str(error))
        return ControlReply(request.id, ok=True)

    def _housekeeping(self) -> None:
        idle = self._core.is_idle and not self._inflight
        became_idle = idle and not self._idle
        self._idle = idle
        if became_idle:
            check_slots(self._core)
        if idle:
            for request in self._drains:
                self._tokenizer.send(ControlReply(request.id, ok=True))
            self._drains.clear()
        now = time.monotonic()
        if became_idle or (not idle and now - self._last_stats >= STATS_INTERVAL_S):
            self._last_stats = now
            self._tokenizer.send(self.stats())

    def stats(self) -> SchedulerStats:
        core, c, kv = self._core, self._core.counters, self._core.kv
        return SchedulerStats(
            waiting=core.num_waiting,
            running=len(core.active),
            slots_total=kv.allocator.num_slots,
            slots_free=kv.allocator.available(),
            slots_evictable=kv.cache.evictable_size,
            slots_protected=kv.cache.protected_size,
            prompt_tokens=c.prompt_tokens,
            cached_tokens=c.cached_tokens,
            generated_tokens=c.generated_tokens,
            evicted_tokens=kv.cache.stats.evicted_tokens,
            retractions=c.retractions,
            finished=c.finished,
            extend_steps=c.extend_steps,
            decode_steps=c.decode_steps,
            schedule_s=c.schedule_s,
            runner_s=c.runner_s,
            commit_s=c.commit_s,
        )
