"""`Worker`: drives one ModelRunner through the messages of its inbox, in order, and answers each step.

A constrained step samples only when its mask has come. The scheduler sends that mask before any later step, so the
worker never has to look past it; and it answers step N before it waits for mask N+1, which needs that answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from radixrt.channel import Outbox
from radixrt.executor.forward_batch import ForwardBatch
from radixrt.executor.model_runner import LogitsProcessorOutput, ModelRunner
from radixrt.messages import (
    DebugReply,
    DebugReq,
    ForwardStep,
    FromRunner,
    GrammarMask,
    RunnerReady,
    StepFailed,
    StepOutput,
    ToRunner,
    pack_i32,
    unpack_i32,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LaunchedStep:
    """A step whose logits are there (or on their way, on an asynchronous device) and that is not sampled yet."""

    step: ForwardStep
    batch: ForwardBatch
    logits: LogitsProcessorOutput
    started: float


class Worker:
    """See the module's docstring. Owns the runner; `answers` goes to the scheduler.

    Args:
        rank: only rank 0 answers steps; any rank says when it is ready and when a step failed.
        alone: no other ranks share the model. With others a failed step is the end: they may be waiting in the middle
            of it.
    """

    def __init__(self, runner: ModelRunner, answers: Outbox[FromRunner], rank: int = 0, *, alone: bool = True) -> None:
        self._runner = runner
        self._answers = answers
        self._rank = rank
        self._alone = alone
        self._awaiting_mask: LaunchedStep | None = None

    def start(self) -> None:
        """Load the model and everything beside it, then say so.

        Raises:
            RadixRTError: the model cannot be loaded, or does not fit.
        """
        self._runner.initialize()
        r = self._runner
        dtype = str(r.dtype).removeprefix("torch.")
        self._answers.send(RunnerReady(self._rank, r.max_total_num_tokens, r.vocab_size, str(r.device), dtype))

    def handle(self, message: ToRunner) -> None:
        """Take one message and do all that can be done now."""
        if isinstance(message, ForwardStep):
            self._guarded(message, lambda: self._launch(message))
        elif isinstance(message, GrammarMask):
            launched, self._awaiting_mask = self._awaiting_mask, None
            if launched is not None and launched.step.step_id == message.step_id:
                self._guarded(launched.step, lambda: self._sample(launched, message))
        elif isinstance(message, DebugReq):
            rows, lens = unpack_i32(message.rows), unpack_i32(message.lens)
            self._answers.send(DebugReply(pack_i32(self._runner.mirror_rows(rows, lens))))

    def _guarded(self, step: ForwardStep, work: Callable[[], None]) -> None:
        """What one step raises ends that step alone, on a rank that is alone; the process lives on."""
        try:
            with torch.inference_mode():
                work()
        except Exception as error:
            logger.exception("step %d failed", step.step_id)
            said = f"{type(error).__name__}: {error}"
            self._answers.send(StepFailed(step.step_id, self._rank, said, fatal=not self._alone))

    def _launch(self, step: ForwardStep) -> None:
        started = time.perf_counter()
        batch = self._runner.prepare(step)
        launched = LaunchedStep(step, batch, self._runner.forward(batch), started)
        if step.has_grammar:
            self._awaiting_mask = launched
        else:
            self._sample(launched, None)

    def _sample(self, launched: LaunchedStep, mask: GrammarMask | None) -> None:
        result = self._runner.sample(launched.logits, launched.batch, launched.step, mask)
        if self._rank:
            return
        self._answers.send(
            StepOutput(
                launched.step.step_id,
                pack_i32(result.token_ids.numpy()),
                logprobs=result.logprobs,
                prompt_logprobs=result.prompt_logprobs,
                row_errors=result.row_errors,
                scores=result.scores,
                forward_s=time.perf_counter() - launched.started,
            )
        )

    def shutdown(self) -> None:
        self._runner.shutdown()
