"""`RequestQueue`: requests that are bound to one replica and wait in the router, in the scheduler's order.

Priority first; then requests that have waited longer than the scheduler's patience, in order of arrival; then requests
that begin no program, so that programs end before others begin; among equals the longest prefix on that replica, and
programs in the order of their first requests (`scheduler/queue_order.py`).

A granule that several requests of a queue miss is computed once, for the first of these requests that is sent. So the
granule counts once in the queue's tokens, and the rest of the requests move up when it is sent (`waiting_for`,
`changed`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile

from sortedcontainers import SortedKeyList

from radixrt.mem_cache.granules import GRANULE_TOKENS
from radixrt.messages.images import images_to_encode
from radixrt.router.replica_index import Prefix
from radixrt.router.routed_request import RoutedRequest, Work
from radixrt.scheduler.queue_order import MATCH_UNIT, PATIENCE_S


class RequestQueue:
    """See the module's docstring.

    Args:
        has_states: the model has recurrent layers. The tokens that one request computes are no hit for another one
            before the replica reports a state, so each request counts in full.

    Attributes:
        size: number of requests, as `len`.
        tokens: input tokens that the replica will compute for the requests.
        outputs: sum of the requests' expected outputs.
        encode: positions of the images that the replica will encode for the requests.
    """

    def __init__(self, *, has_states: bool = False) -> None:
        self.tokens = 0
        self.outputs = 0.0
        self.encode = 0
        self.size = 0
        self._ordered = SortedKeyList(key=_order)
        self._arrivals: OrderedDict[str, RoutedRequest] = OrderedDict()
        self._has_states = has_states
        self._missed: dict[int, int] = {}  # number of requests that miss a granule, by hash
        self._images: Counter[tuple[str, bytes]] = Counter()  # number of requests that need an image, by namespace
        self._waiting: dict[
            int, dict[str, RoutedRequest]
        ] = {}  # by the hash of the first granule that the requests miss

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[RoutedRequest]:
        """Yield the requests in order, without regard to the scheduler's patience."""
        return iter(self._ordered)

    @property
    def slots(self) -> float:
        """Slots that the requests are expected to take."""
        return self.tokens + self.outputs

    def add(self, request: RoutedRequest) -> None:
        self._enter(request)
        self._arrivals[request.rid] = request

    def remove(self, request: RoutedRequest) -> None:
        self._leave(request)
        del self._arrivals[request.rid]

    def changed(self, request: RoutedRequest, work: Work) -> None:
        """Replace the work of a request of this queue, and with the work the request's place in the order."""
        self._leave(request)
        request.work = work
        self._enter(request)

    def first(self, now: float) -> RoutedRequest | None:
        """Return the request to send next; None if the queue is empty."""
        if not self.size:
            return None
        first: RoutedRequest = self._ordered[0]
        oldest = next(iter(self._arrivals.values()))
        is_next = _is_overdue(oldest, now) and oldest.arrival.priority >= first.arrival.priority
        return oldest if is_next else first

    def ahead(self, count: int, now: float) -> list[RoutedRequest]:
        """Return the first `count` requests, in the order in which they would be sent now."""
        overdue = takewhile(lambda request: _is_overdue(request, now), self._arrivals.values())
        first = dict.fromkeys([*islice(overdue, count), *islice(self._ordered, count)])
        return sorted(first, key=lambda request: -request.arrival.priority)[:count]

    # --- granules that several requests miss ---

    def shared(self, prefix: Prefix, hit: int) -> int:
        """Return the number of tokens after the first `hit` that requests of this queue will have computed."""
        begin = hit // GRANULE_TOKENS  # without states, hits are whole granules
        return (prefix.known(self._missed, begin) - begin) * GRANULE_TOKENS if self._missed else 0

    def waiting_for(self, hashes: Iterable[int]) -> list[RoutedRequest]:
        """Return the requests whose first missing granule is among `hashes`."""
        waiting = self._waiting
        return [request for each in hashes if each in waiting for request in waiting[each].values()]

    def _enter(self, request: RoutedRequest) -> None:
        self._ordered.add(request)
        missed = self._granules(request)
        self._count(request, missed, 1)
        if missed:
            self._waiting.setdefault(missed[0], {})[request.rid] = request

    def _leave(self, request: RoutedRequest) -> None:
        self._ordered.remove(request)
        missed = self._granules(request)
        self._count(request, missed, -1)
        if missed:
            waiting = self._waiting[missed[0]]
            del waiting[request.rid]
            if not waiting:
                del self._waiting[missed[0]]

    def _granules(self, request: RoutedRequest) -> Sequence[int]:
        """Return the hashes of the granules of a request's prompt that the replica does not have."""
        if self._has_states:
            return ()
        return request.prefix.hashes[(request.work.length - request.work.miss) // GRANULE_TOKENS :]

    def _count(self, request: RoutedRequest, missed: Sequence[int], change: int) -> None:
        """Count a request in (1) or out (-1).

        Args:
            missed: granules that the request misses. Of these, only the granules that no other request of the queue
                misses change the number of tokens.
        """
        counts = self._missed
        tokens = request.work.miss - GRANULE_TOKENS * len(missed)
        for each in missed:
            count = counts.get(each, 0)
            if count + change:
                counts[each] = count + change
            else:
                del counts[each]
            if not count or not count + change:
                tokens += GRANULE_TOKENS
        self.tokens += change * tokens
        self.outputs += change * request.work.output
        if request.work.images:
            self._count_images(request, change)
        self.size += change

    def _count_images(self, request: RoutedRequest, change: int) -> None:
        """As `_count`. An image that several requests need is encoded once."""
        work, namespace = request.work, request.arrival.namespace
        for image in images_to_encode(work.images, work.length - work.miss):
            key = namespace, image.digest
            self._images[key] += change
            if not self._images[key]:
                del self._images[key]
            if self._images[key] == max(change, 0):
                self.encode += change * image.count


def _order(request: RoutedRequest) -> tuple[int, bool, int, int, int]:
    """Sort key of a queued request, without regard to patience. `seq` differs, so the order is total."""
    hit = (request.work.length - request.work.miss) // MATCH_UNIT
    return (-request.arrival.priority, request.begins_program, -hit, request.program_seq, request.seq)


def _is_overdue(request: RoutedRequest, now: float) -> bool:
    return now - request.arrived_at > PATIENCE_S
