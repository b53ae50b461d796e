"""View of the requests that the router holds, for a page: the tokens that each could reuse, and the obstacle."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

from radixrt.messages.fleet import HeldRequest, RouterQueue
from radixrt.messages.request import Request
from radixrt.router.placement import Placement
from radixrt.router.routed_request import RoutedRequest

MAX_HELD = 64
"""Requests that are looked up in the index for one view: as many as a scheduler matches with the tree."""


def router_queue(placement: Placement, unbound: Collection[RoutedRequest], now: float) -> RouterQueue:
    """Return the view of all requests that wait in the router. The router's state does not change.

    Args:
        unbound: requests that no replica takes.
    """
    queues = [load.queue for load in placement.loads.values() if load.queue.size]
    share = -(-MAX_HELD // max(len(queues), 1))
    first = (request for queue in queues for request in queue.ahead(share, now))
    shown = [*islice(first, MAX_HELD)]
    shown += islice(unbound, MAX_HELD - len(shown))
    waiting = len(unbound) + sum(queue.size for queue in queues)
    return RouterQueue(waiting, list(_held(placement, shown, now)))


def _held(placement: Placement, requests: Iterable[RoutedRequest], now: float) -> Iterable[HeldRequest]:
    for request in requests:
        message, replica = request.message, request.replica
        hits = {each: tokens for each, tokens in placement.hits(request, placement.loads).items() if tokens}
        best = max(hits, key=hits.__getitem__, default=None)
        cached, obstacle, free, ahead = 0, "replicas", 0.0, 0
        if replica is not None:
            load, cached = placement.loads[replica], hits.get(replica, 0)
            obstacle, free, ahead = load.obstacle(request, now), max(load.reachable, 0.0), load.unstarted_tokens
        yield HeldRequest(
            request.rid, *_hint_names(message), "generate" if message.sampling is not None else "score",
            message.envelope.priority, request.length - request.num_resumed, request.num_resumed,
            request.arrival.max_output,
            message.sampling is not None and message.sampling.constraint is not None,
            max(now - request.arrived_at, 0.0), replica, cached, best, 0 if best is None else hits[best], obstacle,
            round(request.length - cached + request.work.output), round(free), ahead,
        )  # fmt: skip


def _hint_names(message: Request) -> tuple[str, str]:
    hint = message.envelope.program
    return ("", "") if hint is None else (hint.program, hint.branch)
