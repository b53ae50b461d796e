"""`AdmissionControl`: refuses requests that would wait too long in the queue.

A request may wait as long as its timeout leaves time for its own work, and at most `max_queue_wait_s`. One that is
predicted to wait longer is refused when it arrives, with the seconds after which it would be accepted. So the queue
stays short at any load, and steps go to requests that still have the time to end.

While there is a free row and nobody waits, no request is refused, nor before there is data to predict from. With an
infinite `max_queue_wait_s` none is refused for its wait, whatever its timeout: a replica's router has decided that.
"""

from __future__ import annotations

import math

from radixrt.config import SchedulerConfig
from radixrt.messages.parts import FinishError
from radixrt.scheduler.counters import Counters
from radixrt.scheduler.load import Arrival, LoadPredictor
from radixrt.scheduler.request_table import RequestTable

SERVICE_MARGIN = 1.5
"""Part of the predicted time of its own work that a request must have left when it is admitted."""
MIN_WAIT_SHARE = 0.1
"""Part of its timeout for which a request may wait, however long its own work is predicted to take."""


class AdmissionControl:
    """See the module's docstring."""

    def __init__(
        self, config: SchedulerConfig, requests: RequestTable, load: LoadPredictor, counters: Counters
    ) -> None:
        self._config = config
        self._requests = requests
        self._load = load
        self._counters = counters

    def refusal(self, arrival: Arrival, now: float, compiling: int) -> FinishError | None:
        """Return the error of a request that may not join the queue; None for one that may.

        Args:
            compiling: number of requests that will join the queue once their grammar is compiled.
        """
        waiting = len(self._requests.waiting) + compiling
        if waiting >= self._config.max_queued_requests:
            retry_after_s = self._load.next_admission_s(now, compiling) if self._load.can_predict else None
            return self._refused(
                f"the queue is full ({self._config.max_queued_requests} requests wait); try again later", retry_after_s
            )
        has_row = len(self._requests.active) < self._config.max_running_requests
        longest_wait = self._config.max_queue_wait_s
        if (has_row and not waiting) or not self._load.can_predict or longest_wait == math.inf:
            return None
        prediction = self._load.predict(arrival, now, compiling)
        longest = max(arrival.timeout_s - SERVICE_MARGIN * prediction.service_s, MIN_WAIT_SHARE * arrival.timeout_s)
        if longest_wait is not None:
            longest = min(longest, longest_wait)
        if prediction.wait_s <= longest:
            self._load.joined(arrival, prediction)
            return None
        late = prediction.wait_s - longest
        return self._refused(
            f"the request would wait for {prediction.wait_s:.1f} s and may wait for {longest:.1f} s (bounded by its "
            f"timeout and by max_queue_wait_s); try again in {late:.1f} s",
            late,
        )

    def _refused(self, message: str, retry_after_s: float | None) -> FinishError:
        self._counters.refused += 1
        return FinishError(message, code="queue_full", status=429, retry_after_s=retry_after_s)
