"""`Worker`: executes the messages of its inbox in order with one ModelRunner, and answers each step.

A constrained step samples only after its mask has arrived. The scheduler sends the mask before any later step, so the
worker handles messages in order.

The worker never waits for the device. Steps whose tokens are still being computed or copied wait in a queue, and
`answer_ready` answers the complete steps. So step N is answered while step N + 1, or the mask of step N + 1, arrives.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from radixrt.channel import Outbox, ZmqInbox
from radixrt.distributed.rank_info import SINGLE_RANK, RankInfo
from radixrt.errors import EngineError
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.heartbeat import IDLE_WAKE_S, Heartbeat
from radixrt.messages.runner import (
    DebugReply,
    DebugReq,
    ForwardStep,
    FromRunner,
    GrammarMask,
    PartOrder,
    PartReport,
    RunnerReady,
    StepFailed,
    StepOutput,
    ToRunner,
)
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.runner.model_runner import ModelRunner
from radixrt.runner.part import RunnerPart
from radixrt.runner.step_allowance import StepAllowance
from radixrt.runner.step_result import InputLostError, LogitsProcessorOutput, SampledStep
from radixrt.runner.step_trace import StepRecord, StepTrace

if TYPE_CHECKING:
    from radixrt.runner.graphs.cuda_graph_runner import StagedStep

logger = logging.getLogger(__name__)

PEER_DEATH_S = 0.5
"""Seconds before a failed rank reports its error. A rank also fails if another rank has died; the main process then
ends all ranks before the report."""
IDLE_BEFORE_WORK_S = 0.25
"""Time without a message after which the runner starts idle work."""
PART_POLL_S = 0.001
"""Seconds between two polls of parts with work under way, while no step is in flight."""
LAST_MESSAGE_S = 0.1
"""Seconds after which no message of a dead scheduler arrives any more: its last messages are in sockets of this
machine. `RunnerReady.executed` shows a rank that has missed a message."""


@dataclass(frozen=True)
class LaunchedStep:
    """A step whose forward pass has been launched and that is not answered yet."""

    step: ForwardStep
    batch: ForwardBatch | StagedStep
    logits: LogitsProcessorOutput
    started: float
    times: StepRecord | None


class Worker:
    """Owns the runner and executes its messages; see the module's docstring.

    Args:
        answers: outbox to the scheduler.
        rank: number of this rank, sent in `RunnerReady` and `StepFailed`.
        answers_steps: this rank answers steps; only one rank does.
        alone: no other ranks share the model. With other ranks a failed step is fatal: another rank, or the device, may
            be waiting in a collective of the step.
        trace_path, rank_info: see `StepTrace`; without a path no trace is written.
        step_timeout_s: seconds that the device may take to complete a step.
        parts: ends of parts that take orders between steps.
    """

    def __init__(
        self,
        runner: ModelRunner,
        answers: Outbox[FromRunner],
        rank: int = 0,
        *,
        answers_steps: bool = True,
        alone: bool = True,
        trace_path: str | None = None,
        rank_info: RankInfo = SINGLE_RANK,
        step_timeout_s: float = math.inf,
        parts: Iterable[RunnerPart] = (),
    ) -> None:
        self._runner = runner
        self._answers = answers
        self._rank = rank
        self._answers_steps = answers_steps
        self._alone = alone
        self._executed = 0
        self._awaiting_mask: LaunchedStep | None = None
        self._unanswered: deque[tuple[LaunchedStep, SampledStep]] = deque()
        self._step_timeout_s = step_timeout_s
        self._parts = {part.name: part for part in parts}
        self._trace_path, self._rank_info = trace_path, rank_info
        self._trace: StepTrace | None = None

    def start(self, heartbeat: Heartbeat | None = None, allowance: StepAllowance | None = None) -> None:
        """Initialize the runner, then report that it is ready.

        Args:
            heartbeat, allowance: as for `serve_steps`; the allowance learns the time of a small step.

        Raises:
            RadixRTError: the model cannot be loaded, or does not fit.
        """
        self._runner.initialize()
        for part in self._parts.values():
            part.attach(self._runner)
        if self._trace_path is not None:
            self._trace = StepTrace(self._trace_path, self._runner.device, self._rank_info)
        if not self.compiles_kernels:  # on every rank: the step has collectives
            heartbeat, allowance = heartbeat or Heartbeat(), allowance or StepAllowance(0.0, 0.0)
            heartbeat.beat()
            heartbeat.lap()
            with torch.inference_mode():
                self._runner.run_smallest_step()
            heartbeat.beat()
            allowance.measured(1, heartbeat.lap())
        self._announce()

    def reconnect(self, answers: Outbox[FromRunner]) -> None:
        """Serve a new scheduler, and drop the unanswered steps of the old scheduler. The old outbox may be closed.
        Tables that `ModelRunner.reset_rows` leaves are written for a request before its first step."""
        self._awaiting_mask = None
        for _, sampled in self._unanswered:
            sampled.wait()
        self._unanswered.clear()
        for part in self._parts.values():
            part.reset()
        self._runner.reset_rows()
        self._answers = answers
        self._announce()

    def _announce(self) -> None:
        r = self._runner
        dtype = str(r.dtype).removeprefix("torch.")
        self._answers.send(
            RunnerReady(
                self._rank,
                r.max_total_num_tokens,
                r.vocab_size,
                str(r.device),
                dtype,
                r.cascade,
                self._executed,
                r.num_states,
                r.kv_cache_dtype.describe(dtype),
                r.weights,
                r.token_bytes,
                r.state_bytes,
                r.tower_flops_per_s,
            )
        )

    def handle(self, message: ToRunner) -> None:
        """Execute one message as far as possible without waiting, then answer the steps that are complete."""
        if isinstance(message, ForwardStep):
            self._guarded(message, lambda: self._launch(message))
        elif isinstance(message, GrammarMask):
            launched, self._awaiting_mask = self._awaiting_mask, None
            if launched is not None and launched.step.step_id == message.step_id:
                self._guarded(launched.step, lambda: self._sample(launched, message))
            else:
                self._runner.read_mask(message)  # of a step that has failed
        elif isinstance(message, DebugReq):
            rows, lens = unpack_i32(message.rows), unpack_i32(message.lens)
            self._answers.send(DebugReply(pack_i32(self._runner.batches.mirror_rows(rows, lens))))
        elif isinstance(message, PartOrder):
            with torch.inference_mode():
                self._parts[message.part].order(message.data)
        if not isinstance(message, DebugReq):
            self._executed += 1
        self.answer_ready()

    @property
    def compiles_kernels(self) -> bool:
        """True if the first step of each size may compile or load kernels."""
        return self._runner.device.type == "cuda"

    @property
    def is_waiting(self) -> bool:
        """True while a step is not answered."""
        return bool(self._unanswered)

    @property
    def has_orders(self) -> bool:
        """True while a part has work under way on which it will report."""
        return any(part.is_busy for part in self._parts.values())

    def answer_ready(self, *, wait: bool = False) -> None:
        """Answer the steps whose tokens are on the host, in order; with `wait`, every step. Send the reports of parts.

        Raises:
            EngineError: the device hangs.
        """
        while self._unanswered and (wait or self._unanswered[0][1].is_ready):
            launched, sampled = self._unanswered.popleft()
            self._guarded(launched.step, lambda: self._answer(launched, sampled))  # noqa: B023 (called at once)
        for name, part in self._parts.items():
            with torch.inference_mode():
                while (report := part.poll()) is not None:
                    self._answers.send(PartReport(self._rank, name, report))
        if self._unanswered:
            launched = self._unanswered[0][0]
            if time.perf_counter() - launched.started > self._step_timeout_s:
                raise EngineError(
                    f"the device has not completed step {launched.step.step_id} after {self._step_timeout_s:g} s "
                    "(step_timeout_s)"
                )

    def idle_work(self) -> bool:
        """Do one piece of idle work; return False if none is left. While a step awaits its mask, no work is done: a
        capture would overwrite the step's logits."""
        if self._awaiting_mask is not None:
            return True
        with torch.inference_mode():
            return self._runner.idle_work()

    def _guarded(self, step: ForwardStep, work: Callable[[], None]) -> None:
        """Run a part of a step. An exception fails only this step, unless the device is unusable or other ranks share
        the model.

        Raises:
            EngineError: this rank cannot continue.
        """
        try:
            with torch.inference_mode():
                work()
        except Exception as error:
            if not self._alone:
                time.sleep(PEER_DEATH_S)
            logger.exception("step %d failed", step.step_id)
            if self._alone:
                self.answer_ready(wait=True)  # answers keep the order of the steps
            fatal = not self._alone or not self._runner.is_usable()
            lost = error.number if isinstance(error, InputLostError) else 0
            self._answers.send(StepFailed(step.step_id, self._rank, _error_text(error), fatal=fatal, lost_input=lost))
            if fatal:
                raise EngineError(f"step {step.step_id} broke it: {_error_text(error)}") from error

    def _launch(self, step: ForwardStep) -> None:
        started, trace = time.perf_counter(), self._trace
        times = None if trace is None else trace.begin(step)
        batch = self._runner.prepare(step)
        if trace is None or times is None:
            logits = self._runner.forward(batch)
        else:
            trace.forward(times)
            logits = self._runner.forward(batch, functools.partial(trace.received, times))
            trace.forwarded(times)
        launched = LaunchedStep(step, batch, logits, started, times)
        if step.has_mask:
            self._awaiting_mask = launched
        else:
            self._sample(launched, None)

    def _sample(self, launched: LaunchedStep, mask: GrammarMask | None) -> None:
        trace, times = self._trace, launched.times
        if trace is not None and times is not None:
            trace.sampling(times)
        sampled = self._runner.sample(launched.logits, launched.batch, launched.step, mask)
        if trace is not None and times is not None:
            trace.sampled(times)
        if self._answers_steps:
            self._unanswered.append((launched, sampled))
        elif trace is not None and times is not None:
            trace.unanswered(times)

    def _answer(self, launched: LaunchedStep, sampled: SampledStep) -> None:
        result = sampled.wait()
        self._answers.send(
            StepOutput(
                launched.step.step_id,
                b"" if result is None else pack_i32(result.token_ids.numpy()),
                logprobs=[] if result is None else result.logprobs,
                row_errors=[] if result is None else result.row_errors,
                values=None if sampled.values is None else sampled.values.message(),
                forward_s=time.perf_counter() - launched.started,
            )
        )
        if self._trace is not None and launched.times is not None:
            self._trace.answered(launched.times)

    def shutdown(self) -> None:
        for part in self._parts.values():
            part.close()
        self._runner.shutdown()
        if self._trace is not None:
            self._trace.close()


def serve_steps(
    worker: Worker,
    inbox: ZmqInbox[ToRunner],
    heartbeat: Heartbeat | None = None,
    allowance: StepAllowance | None = None,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Run the worker's loop.

    Args:
        heartbeat: reports the loop's progress; default: no report.
        allowance: longest pauses of steps; needed with a heartbeat.
        until: returns True once the scheduler is dead; called at least every `IDLE_WAKE_S` seconds. The loop then ends
            after the scheduler's last message: all ranks execute all messages, because ranks wait for each other in
            steps.
    """
    heartbeat = heartbeat or Heartbeat()
    allowance = allowance or StepAllowance(0.0, 0.0)
    idle_work = True
    while True:
        ended = until()
        # The loop spins while a step is not answered, so that a message and an answer are both handled at once.
        wait_s = 0.0 if worker.is_waiting else IDLE_BEFORE_WORK_S if idle_work else IDLE_WAKE_S
        has_orders = worker.has_orders
        wait_s = min(wait_s, PART_POLL_S) if has_orders else wait_s
        message = inbox.recv(LAST_MESSAGE_S if ended else wait_s)
        heartbeat.beat()
        if message is None and ended:
            return
        if isinstance(message, ForwardStep):
            _handle_step(worker, message, heartbeat, allowance)
            idle_work = True  # the step may have requested a graph
        elif message is not None:
            worker.handle(message)
        elif worker.is_waiting or has_orders:
            worker.answer_ready()
        elif idle_work:
            heartbeat.expect(allowance.unknown_s)
            idle_work = worker.idle_work()
            heartbeat.expect(allowance.base_s)


def _handle_step(worker: Worker, step: ForwardStep, heartbeat: Heartbeat, allowance: StepAllowance) -> None:
    tokens = len(step.out_cache_loc) // 4
    heartbeat.expect(allowance.of(tokens))
    heartbeat.lap()
    worker.handle(step)
    heartbeat.expect(allowance.base_s)
    allowance.measured(tokens, heartbeat.lap())


def _error_text(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return f"out of GPU memory: {error}. Lower memory_fraction, chunked_prefill_size or max_running_requests"
    return f"{type(error).__name__}: {error}"
