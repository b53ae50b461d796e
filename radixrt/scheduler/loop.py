"""`SchedulerLoop`: the only loop around the scheduler. Overlap is the number of steps that the loop keeps in flight."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import zmq

from radixrt.channel import Inbox, Outbox
from radixrt.errors import EngineError, InvariantError
from radixrt.executor.base import Executor
from radixrt.executor.mask_table import MaskTable, mask_slots
from radixrt.messages.client import ToTokenizer
from radixrt.messages.request import Request
from radixrt.messages.runner import PartReport, StepFailed, StepOutput
from radixrt.messages.scheduler import (
    AbortReq,
    ControlReply,
    ControlReq,
    Reset,
    RunnerRestarted,
    SchedulerReady,
    ToScheduler,
)
from radixrt.messages.scheduler_stats import SchedulerStats
from radixrt.scheduler.invariants import check_scheduler, check_slots
from radixrt.scheduler.schedule_batch import ScheduleBatch
from radixrt.scheduler.scheduler import Scheduler
from radixrt.scheduler.stats import scheduler_stats

logger = logging.getLogger(__name__)

STATS_INTERVAL_S = 0.25
IDLE_WAIT_MS = 1000
BUSY_WAIT_MS = 50
"""Longest sleeps while no message arrives. Deadlines are checked between sleeps, so an end by deadline is as late."""

LONG_STEP_TOKENS = 1024
ARRIVAL_PAUSE_S = 0.004
HOLD_SHARE = 0.5
"""While a step of at least LONG_STEP_TOKENS new tokens is computed and requests keep arriving, with pauses of at most
ARRIVAL_PAUSE_S, the next step waits for more requests: at most HOLD_SHARE of the running step's predicted time."""
LOOK_AHEAD_SHARE = 0.5
"""Share of a step's predicted time in which the loop looks ahead. The rest is a margin, so that the loop notices the
step's answer at once."""


class SchedulerLoop:
    """Moves messages between the inbox, the scheduler core, the executor and the tokenizer.

    Args:
        max_inflight: maximum number of steps submitted and not yet answered.
        shared_cores: the runner computes on the cores of this process, so looking ahead would slow down the runner.
        watch_s: seconds for which the loop busy-waits for the answer of a step with masks, from the time at which the
            step has become the oldest in flight: the next mask depends on this answer, and waking up takes time. 0
            disables busy-waiting.
        check_invariants: check all invariants after each step, not only when the scheduler becomes idle.
        inbox_socket: ZMQ socket of the inbox; None for an inbox that cannot wake up the loop.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        inbox: Inbox[ToScheduler],
        tokenizer: Outbox[ToTokenizer],
        *,
        max_inflight: int,
        shared_cores: bool = False,
        watch_s: float = 0.0,
        check_invariants: bool = False,
        inbox_socket: Any | None = None,
    ) -> None:
        self._core = scheduler
        self._parts = scheduler.parts
        self._taker = scheduler.parts.taker
        self._executor = executor
        self._inbox = inbox
        self._tokenizer = tokenizer
        self._max_inflight = max_inflight
        self._shared_cores = shared_cores
        self._watch_s = watch_s
        self._check = check_invariants
        self._masks: MaskTable | None = None  # opened by the first step with masks
        self._inflight: deque[ScheduleBatch] = deque()
        self._head_since = 0.0  # when the oldest step in flight became the oldest
        self._last_arrival = 0.0
        self._last_stats = 0.0
        self._drains: list[ControlReq] = []
        self._idle = True
        self._reported = False  # a report of a part was read in this iteration
        self._stale = False  # a report was read since the last statistics
        self._handlers: dict[type, Callable[[Any, float], Iterable[ToTokenizer]]] = {
            Request: self._add,
            AbortReq: self._abort,
            RunnerRestarted: self._restart,
            Reset: self._reset,
            ControlReq: self._control,
        }
        for part in self._parts.all:
            self._handlers.update(part.handles())
        self._poller = zmq.Poller()
        for socket in (inbox_socket, executor.socket, *self._taker.sockets):
            if socket is not None:
                self._poller.register(socket, zmq.POLLIN)

    def announce(self, ready: SchedulerReady) -> None:
        """Report that steps can run; repeated after each restart of the ModelRunner.

        The statistics go first: once a server is ready, its metrics are complete.
        """
        self._announcement = ready
        self._tokenizer.send(self.stats())
        self._tokenizer.send(ready)

    def run_once(self, *, wait: bool) -> bool:
        """Run one iteration: receive messages, submit steps, commit an answer, send deltas.

        Args:
            wait: sleep until a message arrives if there is nothing to do (only with ZMQ).

        Returns:
            True if the iteration did something or a step is in flight.

        Raises:
            EngineError: the runner failed and cannot be restarted, or the pools of the restarted runner have other
                sizes.
        """
        self._reported = False
        # Fill the pipeline. If nothing has changed, the device computes and the host has time: first for masks that
        # may be needed next, then for sleep until a message or an answer arrives.
        busy = self._advance()
        self._send_orders()
        if wait and not busy and not self._look_ahead():
            self._sleep()
        # After an answer the device may be waiting, so the next step is submitted before the deltas of the answer are
        # sent. An executor that computes a step inside `submit` would delay the deltas, so its next step comes later.
        committed = self._commit()
        if committed and self._executor.runs_ahead:
            self._submit()
        self._send_deltas()
        # Work that neither the device nor a client waits for: fitting step times, and a grammar's bookkeeping, which
        # may end requests.
        if committed and self._settle():
            self._send_deltas()
        self._housekeeping()
        for turn in self._parts.turn:
            for message in turn(time.monotonic()):
                self._tokenizer.send(message)
        return busy or committed or self._reported or bool(self._inflight)

    def wake_by(self, descriptor: int) -> None:
        """Let a descriptor that becomes readable end the sleep of `run_once`."""
        self._poller.register(descriptor, zmq.POLLIN)

    def save(self, timeout_s: float, is_cut_off: Callable[[], bool] = lambda: False) -> None:
        """Drop all requests, and let the parts save what outlives the processes.

        Args:
            timeout_s: longest time that saving may take, in seconds.
            is_cut_off: asked again and again; True ends the saving.
        """
        deadline = time.monotonic() + timeout_s
        self._core.forget(time.monotonic(), keeps_cache=True)
        while time.monotonic() < deadline and not is_cut_off():
            if not self._inflight:
                saving = [save() for save in self._parts.save]
                if not any(saving):
                    return
            self.run_once(wait=True)

    def close(self) -> None:
        """Stop the threads and processes that parts have started."""
        self._taker.close()

    @property
    def inflight(self) -> int:
        return len(self._inflight)

    def _advance(self) -> bool:
        """Receive messages and prepared requests, and submit steps; returns whether there were any."""
        busy = self._take_messages()
        if not self._core.has_runner:
            busy |= self._take_ready()
        busy |= self._taker.poll(time.monotonic(), steps_in_flight=bool(self._inflight))
        busy |= self._submit()
        return busy

    def _take_messages(self) -> bool:
        """Handle all messages in the inbox; return whether there were any."""
        taken = False
        # The inbox is emptied before a step is decided, so that requests that arrived together are admitted together.
        while (message := self._inbox.recv()) is not None:
            taken = True
            now = self._last_arrival = time.monotonic()
            # Handlers are looked up by type: the core's own, and those of parts, which the loop does not know.
            for answer in self._handlers[type(message)](message, now):
                self._tokenizer.send(answer)
        return taken

    def _add(self, message: Request, now: float) -> Iterable[ToTokenizer]:
        if not self._taker.prepare(message, now):
            self._core.intake.add(message, now)
        return ()

    def _abort(self, message: AbortReq, now: float) -> Iterable[ToTokenizer]:
        if not self._taker.abort(message.rid):
            self._core.abort(message.rid, now)
        return ()

    def _reset(self, message: Reset, now: float) -> Iterable[ToTokenizer]:
        """Drop the requests that a router has sent in earlier epochs."""
        self._core.forget(now, keeps_cache=message.keeps_cache)
        return [self.stats()]

    def _settle(self) -> bool:
        """Do deferred work while the device computes; return whether a request ended."""
        self._core.step_time.learn()
        ended = False
        for settle in self._parts.settle:
            ended |= settle(time.monotonic())
        return ended

    def _submit(self) -> bool:
        """Submit steps up to the depth of the pipeline; return whether there were any."""
        submitted = False
        while len(self._inflight) < self._max_inflight:
            started = time.perf_counter()
            if self._holds(time.monotonic()):
                break
            batch = self._core.next_batch(time.monotonic())
            if batch is None:
                break
            self._send_orders()
            self._executor.submit(batch.step)
            self._inflight.append(batch)
            self._core.counters.schedule_s += time.perf_counter() - started
            if len(self._inflight) == 1:
                self._head_since = time.monotonic()
            # Masks of a step behind another depend on tokens not sampled yet; `_commit` sends them later.
            if len(self._inflight) == 1 or self._core.pacing.gives_ids:
                self._send_masks(batch)
            submitted = True
        return submitted

    def _send_orders(self) -> None:
        """Send the orders of parts, which a rank executes between the steps before and after them."""
        orders = self._core.orders
        for order in orders:
            self._executor.order(order)
        orders.clear()

    def _holds(self, now: float) -> bool:
        """Return True if the next step should wait for requests that are still arriving.

        The device is busy, so waiting costs nothing. A small batch submitted now would delay a full batch a moment
        later.
        """
        if len(self._inflight) != 1 or not self._executor.runs_ahead or now - self._last_arrival > ARRIVAL_PAUSE_S:
            return False
        head = self._inflight[0]
        if head.num_tokens < LONG_STEP_TOKENS or not (times := self._core.step_time.times).extend_steps:
            return False
        return now - self._head_since < HOLD_SHARE * times.seconds(*head.shape)

    def _send_masks(self, batch: ScheduleBatch) -> None:
        """Send the masks of a step, all earlier tokens of whose rows are known: the step is the oldest in flight, or
        the scheduler puts each row into one step in flight only (`Pacing.gives_ids`)."""
        if batch.masked_rows:
            found = self._taker.masks(batch, time.monotonic())
            if self._masks is None:
                slots = mask_slots(self._core.config.max_running_requests)
                self._masks = self._executor.open_masks(slots, self._taker.mask_words)
            self._executor.send_mask(self._masks.message(batch.step_id, found.rows, found.index, found.masks))

    def _commit(self) -> bool:
        """Commit the answer of the oldest step in flight; return False if the answer has not arrived."""
        answer = self._next_answer()
        if answer is None:
            return False
        if isinstance(answer, StepFailed) and answer.fatal:
            if self._executor.is_restartable:
                return False  # the rank exits; the main process restarts it and sends `RunnerRestarted`
            raise EngineError(f"step {answer.step_id} broke runner {answer.rank}: {answer.error}")
        started = time.perf_counter()
        batch = self._inflight.popleft()
        if isinstance(answer, StepFailed):
            ended = self._core.fail(batch, answer.error, time.monotonic(), lost_input=answer.lost_input)
            rids = ", ".join(req.rid for req in ended)
            logger.error("step %d failed and ends request %s: %s", answer.step_id, rids, answer.error)
        else:
            self._core.counters.runner_s += answer.forward_s
            self._core.commit(batch, answer, time.monotonic())
        self._core.counters.commit_s += time.perf_counter() - started
        # The next step has become the oldest: all earlier tokens are known, and its masks can be computed.
        if self._inflight:
            self._head_since = time.monotonic()
            if not self._core.pacing.gives_ids:
                self._send_masks(self._inflight[0])
        if self._check:
            check_scheduler(self._core)
        return True

    def _next_answer(self) -> StepOutput | StepFailed | None:
        """Return the next answer to a step, after the reports of parts before it; None without one."""
        if not self._inflight and not (self._parts.reported and self._core.has_runner):
            return None
        return self._executor.recv(self._take_report)

    def _take_report(self, report: PartReport) -> None:
        self._core.reported(report, time.monotonic())
        self._reported = self._stale = True

    # --- restart of the ModelRunner ---

    def _restart(self, notice: RunnerRestarted, now: float) -> Iterable[ToTokenizer]:
        """Connect to the new ModelRunner; requests are computed again once all of its ranks are ready."""
        while self._inflight and self._commit():
            pass  # answers that the dead runner has sent
        self._core.runner_lost(self._inflight, notice.reason, time.monotonic())
        self._inflight.clear()
        if self._executor.socket is not None:
            self._poller.unregister(self._executor.socket)
        self._executor.restart(notice.epoch)
        if self._masks is not None:
            self._masks.forget()
        self._announcement = msgspec.structs.replace(self._announcement, epoch=notice.epoch)
        if self._executor.socket is not None:
            self._poller.register(self._executor.socket, zmq.POLLIN)
        return ()

    def _take_ready(self) -> bool:
        """Let the scheduler decide steps again once every rank is ready; return whether the last rank has become ready
        in this call."""
        ready = self._executor.poll_ready()
        if ready is None:
            return False
        num_slots = self._core.kv.allocator.num_slots
        if ready.num_slots != num_slots:
            raise EngineError(f"the restarted ModelRunner has {ready.num_slots} KV slots instead of {num_slots}")
        if ready.num_states != self._announcement.num_states:
            raise EngineError(
                f"the restarted ModelRunner has {ready.num_states} state slots instead of "
                f"{self._announcement.num_states}"
            )
        self._core.runner_ready()
        logger.info("the ModelRunner is ready again; %d requests go on", len(self._core.waiting))
        self._tokenizer.send(self._announcement)
        return True

    def _send_deltas(self) -> None:
        batch = self._core.take_deltas()
        if batch is not None:
            self._tokenizer.send(batch)

    def _look_ahead(self) -> bool:
        """Prepare the next masks during the first part (LOOK_AHEAD_SHARE) of the oldest step's predicted time.

        Returns:
            True if a message or an answer has arrived meanwhile.
        """
        if not self._inflight or self._shared_cores or not self._executor.runs_ahead:
            return False
        ends = self._head_since + LOOK_AHEAD_SHARE * self._core.step_time.times.seconds(*self._inflight[0].shape)
        if time.monotonic() >= ends:
            return False
        for _ in self._taker.look_ahead():
            if self._poller.poll(0):
                return True
            if time.monotonic() >= ends:
                break
        return False

    def _sleep(self) -> None:
        if not self._poller.sockets:
            return
        # An answer that the next mask depends on is awaited without sleeping.
        while self._inflight and self._inflight[0].masked_rows and time.monotonic() - self._head_since < self._watch_s:
            if self._poller.poll(0):
                return
        if any(part.is_busy for part in self._parts.all):
            return
        if self._holds(time.monotonic()):
            self._poller.poll(int(ARRIVAL_PAUSE_S * 1000))
        else:
            self._poller.poll(IDLE_WAIT_MS if self._is_idle() else BUSY_WAIT_MS)

    def _is_idle(self) -> bool:
        return self._core.is_idle and not self._inflight and not self._taker.num_preparing

    # --- operators ---

    def _control(self, request: ControlReq, now: float) -> Iterable[ToTokenizer]:
        if request.op == "drain":
            self._drains.append(request)
            return ()
        if request.op == "flush_cache":
            self._core.flush_cache()
            return [self.stats(), ControlReply(request.id, ok=True)]
        if request.op in ("forget", "forget_owner"):
            left = self._core.forget_namespace(request.namespace, whole_owner=request.op == "forget_owner")
            message = f"{left.tokens} tokens are in use and stay" if left.tokens else ""
            if left.requests:
                message += f"{', ' if message else ''}{left.requests} requests are open and would leave it again"
            return [self.stats(), ControlReply(request.id, ok=not message, message=message)]
        return [self._check_reply(request)]

    def _check_reply(self, request: ControlReq) -> ControlReply:
        try:
            check_scheduler(self._core)
        except InvariantError as error:
            return ControlReply(request.id, ok=False, message=str(error))
        return ControlReply(request.id, ok=True)

    def _housekeeping(self) -> None:
        """Check invariants, ranks and drains when idle, and send statistics at intervals."""
        idle = self._is_idle()
        became_idle, self._idle = idle and not self._idle, idle
        if became_idle:
            check_slots(self._core)
        if idle:
            self._executor.check_ranks()
            for request in self._drains:
                self._tokenizer.send(ControlReply(request.id, ok=True))
            self._drains.clear()
        now = time.monotonic()
        if became_idle or ((not idle or self._stale) and now - self._last_stats >= STATS_INTERVAL_S):
            self._last_stats, self._stale = now, False
            self._tokenizer.send(self.stats())

    def stats(self) -> SchedulerStats:
        return scheduler_stats(self._core, time.monotonic())
