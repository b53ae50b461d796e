"""The real scheduler of a hybrid model on a device that answers at once with the tokens of a trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.cache.hybrid_workloads import END, Request
from radixrt.config import SchedulerConfig
from radixrt.messages.request import Request as EngineRequest
from radixrt.messages.wire import pack_i32
from radixrt.parts.simulated import SimulatedRunner, StepRows, make_scheduler
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.req import Req
from radixrt.scheduler.schedule_batch import ScheduleBatch

CONTEXT = 16_384


class HybridEngine:
    """See the module's docstring.

    Args:
        num_states: state slots, the two reserved ones included.
        rows: maximum number of running requests.

    Attributes:
        prompt_tokens, computed_tokens: tokens of all prompts so far, and those of them that steps have computed.
    """

    def __init__(self, num_states: int, *, rows: int = 1, num_slots: int = 1 << 20) -> None:
        config = SchedulerConfig(max_running_requests=rows, max_queued_requests=4096, chunked_prefill_size=8192)
        self.scheduler = make_scheduler(
            config, num_slots, context_length=CONTEXT, eos_ids=[END], vocab_size=1 << 17, num_states=num_states
        )
        self._runner = SimulatedRunner(self.scheduler, self._compute, self._sample)
        self._answers: dict[str, list[int]] = {}
        self.prompt_tokens = self.computed_tokens = 0
        self._count = 0

    def run(self, requests: Sequence[Request], *, together: int = 1) -> float:
        """Serve a trace, `together` requests at a time; returns the share of prompt tokens that were computed."""
        for start in range(0, len(requests), together):
            self._serve(requests[start : start + together])
        return self.computed_tokens / self.prompt_tokens

    def _serve(self, requests: Sequence[Request]) -> None:
        self._answers.clear()
        for request in requests:
            rid = f"r{self._count}"
            self._count += 1
            self._answers[rid] = request.output
            self.prompt_tokens += len(request.prompt)
            sampling = SamplingParams(max_tokens=len(request.output) + 8)
            self.scheduler.intake.add(
                EngineRequest.generate(rid, pack_i32(request.prompt), sampling, program=request.hint), 0.0
            )
        while not self.scheduler.is_idle:
            self._runner.advance(0.0)
        self.scheduler.take_deltas()

    def _compute(self, batch: ScheduleBatch) -> float:
        """Count the tokens that a step computes, all but those of decode rows, which are not known here; it takes no
        time."""
        self.computed_tokens += int(np.count_nonzero(StepRows.of(batch.step).input_ids >= 0))
        return 0.0

    def _sample(self, req: Req) -> int:
        answer = self._answers[req.rid]
        return answer[min(req.num_output, len(answer) - 1)]
