"""`Recovery`: requests go on after their slots were lost, because a step failed or the ModelRunner died.

Every active request is recomputed from its known tokens, on an empty cache (`RequestTable.recover`).

Any request of the steps in flight may have killed the runner, and might kill the next one. So each of these *suspects*
is tried first: its steps contain it alone, one step at a time, until they have computed everything that it had in the
lost steps. All other requests wait meanwhile. So a death during a trial has one cause, and nobody else is in flight:
the request on trial ends with an error, and the others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from radixrt.messages.parts import FINISH_ERROR, Finish, FinishError
from radixrt.messages.wire import unpack_i32
from radixrt.scheduler.counters import Counters
from radixrt.scheduler.req import Req
from radixrt.scheduler.request_table import RequestTable
from radixrt.scheduler.schedule_batch import ScheduleBatch

logger = logging.getLogger(__name__)

RESET_BY_STEP, RESET_BY_RUNNER = "step_failed", "runner_restarted"
"""Reasons for which the prefix cache restarts empty."""


class Recovery:
    """See the module's docstring.

    Attributes:
        has_runner: False between `runner_lost` and `runner_ready`.
    """

    def __init__(self, requests: RequestTable, counters: Counters) -> None:
        self._requests = requests
        self._counters = counters
        self._suspects: dict[Req, int] = {}  # length that the lost steps were to compute; the first is on trial
        self.has_runner = True

    @property
    def is_under_way(self) -> bool:
        """Whether no step may be submitted now."""
        return self._requests.recovering or not self.has_runner

    @property
    def num_suspects(self) -> int:
        """Number of requests that are not cleared, and may have ended meanwhile."""
        return len(self._suspects)

    # --- a step failed ---

    def step_failed(self, batch: ScheduleBatch, error: str, now: float) -> None:
        """End the requests of a step that raised. Once no step is in flight, `recover` must follow."""
        self._requests.recovering = True
        for req in batch.requests:
            if req.finish is None:
                self._requests.end(req, Finish(FINISH_ERROR, error=FinishError(f"the step failed: {error}")), now)

    def recover(self) -> None:
        """Recompute all active requests; no step is in flight."""
        self._requests.recover(RESET_BY_STEP)

    # --- the ModelRunner died ---

    def runner_lost(self, lost: Iterable[ScheduleBatch], reason: str, now: float) -> None:
        """Drop the steps in flight, `lost`; recompute all active requests once there is a runner."""
        self.has_runner = False
        self._requests.recovering = True
        for req in dict.fromkeys(req for batch in lost for req in batch.requests):
            if req.finish is not None:
                continue
            if req in self._suspects:
                self._end_guilty(req, reason, now)
            else:
                self._suspects[req] = req.kv.length
        self._requests.recover(RESET_BY_RUNNER)

    def _end_guilty(self, req: Req, reason: str, now: float) -> None:
        logger.error("request %s was in flight when the ModelRunner died twice, now alone", req.rid)
        message = f"the ModelRunner died twice while it computed this request, the second time alone: {reason}"
        self._requests.end(req, Finish(FINISH_ERROR, error=FinishError(message, code="runner_killed")), now)

    def runner_ready(self) -> None:
        """Go on with a new ModelRunner, whose pool is as large as its predecessor's."""
        self.has_runner = True
        self._counters.runner_restarts += 1

    def on_trial(self) -> Req | None:
        """Return the request that the next steps must contain alone, one at a time; None if there are no suspects."""
        while self._suspects:
            first = next(iter(self._suspects))
            if first.finish is None:
                return first
            del self._suspects[first]
        return None

    def committed(self, batch: ScheduleBatch) -> None:
        """Clear the request on trial, the only one of the batch, if it has survived; then it is the next one's turn."""
        req = batch.requests[0]
        if req not in self._suspects or self._suspects[req] > unpack_i32(batch.step.seq_lens)[0]:
            return
        del self._suspects[req]
        if self.on_trial() is None:
            logger.info("no request in flight at the death of the ModelRunner has killed it again")
        elif req.finish is None:
            self._requests.set_aside(req)
