"""Scheduler end of overload: refuses requests that would wait too long in the queue.

A request may wait as long as its timeout leaves time for its own work, and at most `max_queue_wait_s`. A request with a
longer predicted wait is refused on arrival, and the error gives the seconds after which the request would be accepted.
So the queue stays short at any load, and steps are spent on requests that can end before their deadlines.

No request is refused for its wait while a row is free and no request waits, or before there is enough data for a
prediction, or if `max_queue_wait_s` is infinite: a router of replicas then makes the decision.

A request of many rows would make the queue long for the requests behind it, which would then be refused in its place.
So the request itself is refused if its rows take longer than its own timeout, or, while others run or wait, longer than
`max_queue_wait_s` allows those behind it to wait.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import Any

from radixrt.messages.parts import FINISH_ERROR, FinishError
from radixrt.messages.request import Request
from radixrt.parts.overload.output_lengths import OutputLengths
from radixrt.parts.overload.prediction import Arrival, LoadPredictor, Prediction, arrival_of
from radixrt.scheduler.part import Core, End, Part

SERVICE_MARGIN = 1.5
"""At admission, SERVICE_MARGIN times the predicted time of a request's own work must be left until its deadline."""
MIN_WAIT_SHARE = 0.1
"""Share of a request's timeout for which the request may always wait, however long its own work is predicted to be."""


class Overload(Part):
    """See the module's docstring.

    Attributes:
        load: predicts how long a request would wait.
    """

    name = "overload"

    def __init__(self) -> None:
        self._num_refused = 0
        self._outputs = OutputLengths()

    def attach(self, core: Core) -> None:
        self._config = core.config
        self._requests = core.requests
        self._intake = core.intake
        self._max_len = core.max_len
        parts = core.scheduler.parts
        self._taker = parts.taker
        self.load = LoadPredictor(
            core.config,
            core.kv,
            core.requests,
            core.admission.ratio,
            core.step_time,
            core.scheduler.pacing,
            self._outputs,
            parts,
        )

    def refuse(self, message: Request, now: float, *, compiling: int) -> FinishError | None:
        if message.resume_ids:
            return None  # a request that has begun on another replica is never refused
        arrival = arrival_of(message, self._max_len, self._intake.timeout_s(message))
        return self.refusal(arrival, now, compiling)

    def ended(self, end: End) -> None:
        req = end.req
        if req is None or req.member is not None:
            return
        if req.stats.admitted_at is not None and end.finish.reason != FINISH_ERROR:
            self._outputs.ended(req.max_len - req.prompt_len, req.num_output)

    def stats(self, now: float) -> Mapping[str, Any]:
        return {"refused": self._num_refused, "load": self.load.stats(now, self._taker.num_preparing)}

    def refusal(self, arrival: Arrival, now: float, compiling: int) -> FinishError | None:
        """Return the error of a request that may not join the queue; None if the request may join.

        Args:
            compiling: number of requests that will join the queue once their grammar is compiled.
        """
        waiting = len(self._requests.waiting) + compiling
        if waiting >= self._config.max_queued_requests and not self._has_part(arrival.tenant):
            retry_after_s = self.load.next_admission_s(now, compiling) if self.load.can_predict else None
            return self._refused(
                f"the queue is full ({self._config.max_queued_requests} requests wait); try again later", retry_after_s
            )
        has_row = len(self._requests.active) < self._config.max_running_requests
        longest_wait = self._config.max_queue_wait_s
        at_once = has_row and not waiting
        if (at_once and arrival.group is None) or not self.load.can_predict or longest_wait == math.inf:
            return None
        prediction = self.load.predict(arrival, now, compiling)
        if arrival.group is not None and (error := self._too_many_rows(arrival, prediction)) is not None:
            return error
        longest = max(arrival.timeout_s - SERVICE_MARGIN * prediction.service_s, MIN_WAIT_SHARE * arrival.timeout_s)
        if longest_wait is not None:
            longest = min(longest, longest_wait)
        if at_once or prediction.wait_s <= longest:
            self.load.joined(arrival, prediction)
            return None
        late = prediction.wait_s - longest
        return self._refused(
            f"the request would wait for {prediction.wait_s:.1f} s and may wait for {longest:.1f} s (bounded by its "
            f"timeout and by max_queue_wait_s); try again in {late:.1f} s",
            late,
        )

    def _has_part(self, tenant: str) -> bool:
        """Return True if a tenant has less than its part of a full queue, which others have filled."""
        if not tenant:
            return False
        queued = Counter(req.tenant for req in self._requests.waiting)
        queued[tenant] += 1
        return queued[tenant] * len(queued) <= self._config.max_queued_requests

    def _has_others(self, tenant: str) -> bool:
        """Return True if requests of the tenant are open, which a further one would keep waiting."""
        return any(req.tenant == tenant for req in chain(self._requests.active, self._requests.waiting))

    def _too_many_rows(self, arrival: Arrival, prediction: Prediction) -> FinishError | None:
        """Return the error of a request whose rows keep the requests behind them waiting too long."""
        seconds, limit, bound = prediction.service_s, arrival.timeout_s, "its timeout"
        longest_wait = self._config.max_queue_wait_s
        if longest_wait is not None and longest_wait < limit and self._has_others(arrival.tenant):
            seconds, limit, bound = prediction.wait_s + seconds, longest_wait, "max_queue_wait_s, while others wait"
        if seconds <= limit:
            return None
        rows = prediction.work.rows
        return self._refused(
            f"the request's {rows} rows (texts, pairs or choices) would keep the engine busy for {seconds:.1f} s, and "
            f"may do so for {limit:.1f} s ({bound}); send at most {max(int(rows * limit / seconds), 1)} at a time",
            None,
        )

    def _refused(self, message: str, retry_after_s: float | None) -> FinishError:
        self._num_refused += 1
        return FinishError(message, code="queue_full", status=429, retry_after_s=retry_after_s)
