"""`RequestQueue`: requests that are bound to one replica and wait in the router, in the scheduler's order.

Priority first; then requests that have waited longer than the scheduler's patience, in order of arrival; then those
that begin no program, so that programs end before others begin; among equals those with the longest prefix on that
replica, and programs in the order of their first requests (`scheduler/queue_order.py`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from radixrt.router.routed_request import RoutedRequest
from radixrt.scheduler.queue_order import MATCH_UNIT, PATIENCE_S

_Key = tuple[int, bool, int, int, int]


class RequestQueue:
    """See the module's docstring.

    Attributes:
        size: number of requests; `len` is the same, for those who do not ask for each request.
        tokens: input tokens of the requests that the replica does not have.
        slots: slots that they are expected to take.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.slots = 0.0
        self.size = 0
        self._heap: list[tuple[_Key, int, RoutedRequest]] = []
        self._arrivals: deque[tuple[int, RoutedRequest]] = deque()

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[RoutedRequest]:
        return (request for _, version, request in self._heap if request.version == version)

    def add(self, request: RoutedRequest) -> None:
        """Add a request, whose `version` is that of its binding to this queue."""
        hit = (request.work.length - request.work.miss) // MATCH_UNIT
        key = (-request.arrival.priority, request.begins_program, -hit, request.program_seq, request.seq)
        heapq.heappush(self._heap, (key, request.version, request))
        self._arrivals.append((request.version, request))
        self._count(request, 1)

    def first(self, now: float) -> RoutedRequest | None:
        """The request to send next; None if the queue is empty."""
        heap, arrivals = self._heap, self._arrivals
        while heap and heap[0][2].version != heap[0][1]:
            heapq.heappop(heap)
        while arrivals and arrivals[0][1].version != arrivals[0][0]:
            arrivals.popleft()
        if not heap:
            return None
        first, oldest = heap[0][2], arrivals[0][1]
        is_overdue = now - oldest.arrived_at > PATIENCE_S
        return oldest if is_overdue and oldest.arrival.priority >= first.arrival.priority else first

    def remove(self, request: RoutedRequest) -> None:
        """Remove a request, whose entries become void."""
        request.version += 1
        self._count(request, -1)
        if self.num_entries > 2 * self.size + 64:  # mostly void, out of the reach of `first`
            self._heap = [entry for entry in self._heap if entry[2].version == entry[1]]
            heapq.heapify(self._heap)
            self._arrivals = deque(entry for entry in self._arrivals if entry[1].version == entry[0])

    @property
    def num_entries(self) -> int:
        """Number of entries in memory, void ones too."""
        return max(len(self._heap), len(self._arrivals))

    def _count(self, request: RoutedRequest, change: int) -> None:
        self.size += change
        self.tokens += change * request.work.miss
        self.slots += change * request.slots
