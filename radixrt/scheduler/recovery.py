"""`Recovery`: requests go on after their slots were lost, because a step failed or the ModelRunner died.

Every active request is recomputed from its known tokens, on an empty cache (`RequestTable.recover`).

Any request of the steps in flight may have killed the runner, and might kill the next one. So each of these *suspects*
is tried first: its steps contain it alone, one step at a time, until they have computed everything that it had in the
lost steps. All other requests wait meanwhile. So a death during a trial has one cause, and nobody else is in flight:
the request on trial ends with an error, and the others go on. So does every other request with its prompt, for
QUARANTINE_S from then on: clients retry, and each attempt would cost two deaths.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable

from radixrt.messages.parts import FINISH_ERROR, Finish, FinishError
from radixrt.messages.wire import Int32Array, unpack_i32
from radixrt.scheduler.counters import Counters
from radixrt.scheduler.req import Req
from radixrt.scheduler.request_table import RequestTable
from radixrt.scheduler.schedule_batch import ScheduleBatch

logger = logging.getLogger(__name__)

RESET_BY_STEP, RESET_BY_RUNNER, RESET_BY_ROUTER = "step_failed", "runner_restarted", "fenced"
"""Reasons for which the prefix cache restarts empty."""
QUARANTINE_S = 300.0
MAX_QUARANTINED = 256
"""Time and number of prompts that are remembered because they killed the ModelRunner."""


class Recovery:
    """See the module's docstring.

    Attributes:
        has_runner: False between `runner_lost` and `runner_ready`.
    """

    def __init__(self, requests: RequestTable, counters: Counters) -> None:
        self._requests = requests
        self._counters = counters
        self._suspects: dict[Req, int] = {}  # length that the lost steps were to compute; the first is on trial
        self._quarantine: dict[bytes, tuple[float, str]] = {}  # digest of a prompt -> end, message; the oldest first
        self.has_runner = True

    @property
    def is_under_way(self) -> bool:
        """True if no step may be submitted now."""
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
        self._counters.killers += 1
        message = f"the ModelRunner died twice while it computed this request, the second time alone: {reason}"
        self._requests.end(req, Finish(FINISH_ERROR, error=_killed(message)), now)
        if req.member is not None:
            return
        if len(self._quarantine) == MAX_QUARANTINED:
            del self._quarantine[next(iter(self._quarantine))]
        same = f"the ModelRunner died twice while it computed a request with this prompt: {reason}"
        self._quarantine[_digest(req.ids[: req.prompt_len])] = now + QUARANTINE_S, same
        for other in list(self._requests.by_rid.values()):
            error = None if other.member is not None else self.refusal(other.ids[: other.prompt_len], now)
            if error is not None:
                self._requests.end(other, Finish(FINISH_ERROR, error=error), now)

    def refusal(self, prompt: Int32Array, now: float) -> FinishError | None:
        """Return the error of a request whose prompt has killed the ModelRunner; None for any other."""
        while self._quarantine:
            first = next(iter(self._quarantine))
            if self._quarantine[first][0] > now:
                break
            del self._quarantine[first]
        found = self._quarantine.get(_digest(prompt)) if self._quarantine else None
        return None if found is None else _killed(found[1])

    def runner_ready(self) -> None:
        """Go on with a new ModelRunner, whose pool is as large as its predecessor's."""
        self.has_runner = True
        self._counters.runner_restarts += 1

    def forget(self, now: float, *, keeps_cache: bool) -> None:
        """Drop all requests, without an answer, and the cache unless it is to be kept: a router has given them to other
        replicas, or is another router."""
        self._suspects.clear()
        self._requests.forget(now, None if keeps_cache else RESET_BY_ROUTER)

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


def _digest(prompt: Int32Array) -> bytes:
    return hashlib.blake2b(prompt.tobytes(), digest_size=16).digest()


def _killed(message: str) -> FinishError:
    return FinishError(message, code="runner_killed")
