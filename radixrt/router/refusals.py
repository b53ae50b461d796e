"""Errors of requests that a router refuses because they would wait too long."""

from __future__ import annotations

from radixrt.messages.parts import FinishError
from radixrt.router.replica_load import ReplicaLoad
from radixrt.router.routed_request import RoutedRequest
from radixrt.scheduler.admission_control import MIN_WAIT_SHARE, SERVICE_MARGIN


def full_queue(most: int, wait_s: float | None) -> FinishError:
    """Return the error while `most` requests wait in the router, with the predicted wait of another one."""
    return FinishError(
        f"the queue is full ({most} requests wait); try again later",
        code="queue_full", status=429, retry_after_s=wait_s,
    )  # fmt: skip


def long_wait(request: RoutedRequest, load: ReplicaLoad, wait_s: float, limit_s: float | None) -> FinishError | None:
    """Return the error of a request whose predicted wait exceeds what its timeout, or `limit_s`, allows; None if it may
    wait.

    Args:
        load: of the replica that it would go to.
    """
    timeout = request.arrival.timeout_s
    service = request.work.output * load.times.seconds(len(load.open), load.context)
    longest = max(timeout - SERVICE_MARGIN * service, MIN_WAIT_SHARE * timeout)
    if limit_s is not None:
        longest = min(longest, limit_s)
    if wait_s <= longest:
        return None
    return FinishError(
        f"the request would wait for {wait_s:.1f} s and may wait for {longest:.1f} s (bounded by its timeout and by "
        "max_queue_wait_s)",
        code="queue_full", status=429, retry_after_s=wait_s,
    )  # fmt: skip
