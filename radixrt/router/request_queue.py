"""`RequestQueue`: requests that are bound to one replica and wait in the router, in the scheduler's order.

Priority first; then requests that have waited longer than the scheduler's patience, in order of arrival; then those
that begin no program, so that programs end before others begin; among equals those with the longest prefix on that
replica, and programs in the order of their first requests (`scheduler/queue_order.py`).

A granule that several requests of a queue miss is computed once, for the first of them that is sent. So it counts once
in the queue's tokens, and the others move up when it is sent (`waiting_for`, `changed`).
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from radixrt.mem_cache.granules import GRANULE_TOKENS
from radixrt.router.replica_index import Prefix
from radixrt.router.routed_request import RoutedRequest, Work
from radixrt.scheduler.queue_order import MATCH_UNIT, PATIENCE_S

_Key = tuple[int, bool, int, int, int]
_Entry = tuple[_Key, int, RoutedRequest]
"""A request with its place in the order, and the number of the entry, which decides between equal keys."""
MAX_VISITS = 1024
"""Entries that `RequestQueue.ahead` looks at, about 1 ms."""


class RequestQueue:
    """See the module's docstring.

    Args:
        has_states: the model has recurrent layers: what one request computes is no hit for another one before the
            replica reports a state, so that each counts in full.

    Attributes:
        size: number of requests; `len` is the same, for those who do not ask for each request.
        tokens: input tokens that the replica will compute for them.
        outputs: sum of their expected outputs.
    """

    def __init__(self, *, has_states: bool = False) -> None:
        self.tokens = 0
        self.outputs = 0.0
        self.size = 0
        self._heap: list[_Entry] = []  # void entries too
        self._entries: dict[str, _Entry] = {}  # the one of each request that is not void
        self._numbers = itertools.count()
        self._arrivals: deque[tuple[int, RoutedRequest]] = deque()
        self._has_states = has_states
        self._missed: dict[int, int] = {}  # hash of a granule -> number of requests that miss it
        self._waiting: dict[int, dict[str, RoutedRequest]] = {}  # by the first granule that they miss

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[RoutedRequest]:
        return (entry[2] for entry in self._heap if self._is_valid(entry))

    @property
    def slots(self) -> float:
        """Slots that the requests are expected to take."""
        return self.tokens + self.outputs

    def add(self, request: RoutedRequest) -> None:
        """Add a request, whose `version` is that of its binding to this queue."""
        self._enter(request)
        self._arrivals.append((request.version, request))

    def first(self, now: float) -> RoutedRequest | None:
        """The request to send next; None if the queue is empty."""
        heap, arrivals = self._heap, self._arrivals
        while heap and not self._is_valid(heap[0]):
            heapq.heappop(heap)
        while arrivals and arrivals[0][1].version != arrivals[0][0]:
            arrivals.popleft()
        if not heap:
            return None
        first, oldest = heap[0][2], arrivals[0][1]
        is_overdue = now - oldest.arrived_at > PATIENCE_S
        return oldest if is_overdue and oldest.arrival.priority >= first.arrival.priority else first

    def ahead(self, count: int, now: float) -> list[RoutedRequest]:
        """Return the first requests, about in the order in which they will be sent; at most MAX_VISITS entries of a
        queue are looked at, however long it is."""
        found = self._smallest(count)
        overdue = itertools.takewhile(lambda entry: now - entry[1].arrived_at > PATIENCE_S, self._arrivals)
        late = [each for version, each in itertools.islice(overdue, MAX_VISITS) if each.version == version][:count]
        places = {each.rid: (-each.arrival.priority, 0, i) for i, each in enumerate(late)}
        for i, each in enumerate(found):
            places.setdefault(each.rid, (-each.arrival.priority, 1, i))
        first = sorted({each.rid: each for each in (*late, *found)}.values(), key=lambda each: places[each.rid])
        return first[:count]

    def _smallest(self, count: int) -> list[RoutedRequest]:
        """The first requests by key: the heap is walked from its top."""
        heap = self._heap
        found: list[RoutedRequest] = []
        border = [(heap[0], 0)] if heap else []
        for _ in range(MAX_VISITS):
            if not border or len(found) == count:
                break
            entry, at = heapq.heappop(border)
            if self._is_valid(entry):
                found.append(entry[2])
            for below in (2 * at + 1, 2 * at + 2):
                if below < len(heap):
                    heapq.heappush(border, (heap[below], below))
        return found

    def remove(self, request: RoutedRequest) -> None:
        """Remove a request, whose entries become void."""
        self._leave(request)
        del self._entries[request.rid]
        request.version += 1
        self._drop_void()

    def shared(self, prefix: Prefix, hit: int) -> int:
        """Return the number of tokens behind the first `hit` that requests of this queue will have computed."""
        missed, hashes = self._missed, prefix.hashes
        begin = low = hit // GRANULE_TOKENS  # without states, hits are whole granules
        high = len(hashes) if missed else low
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in missed:
                low = middle
            else:
                high = middle - 1
        return (low - begin) * GRANULE_TOKENS

    def waiting_for(self, hashes: Iterable[int]) -> list[RoutedRequest]:
        """Return the requests that miss one of these granules, and have all before it."""
        waiting = self._waiting
        return [request for each in hashes if each in waiting for request in waiting[each].values()]

    def changed(self, request: RoutedRequest, work: Work) -> None:
        """Give a request of this queue other work, and its place in the order by that."""
        self._leave(request)
        request.work = work
        self._enter(request)
        self._drop_void()

    @property
    def num_entries(self) -> int:
        """Number of entries in memory, void ones too."""
        return max(len(self._heap), len(self._arrivals))

    def _enter(self, request: RoutedRequest) -> None:
        key = (-request.arrival.priority, request.begins_program, -_hit(request), request.program_seq, request.seq)
        entry = self._entries[request.rid] = (key, next(self._numbers), request)
        heapq.heappush(self._heap, entry)
        missed = self._granules(request)
        self._count(request, missed, 1)
        if missed:
            self._waiting.setdefault(missed[0], {})[request.rid] = request

    def _leave(self, request: RoutedRequest) -> None:
        missed = self._granules(request)
        self._count(request, missed, -1)
        if missed:
            waiting = self._waiting[missed[0]]
            del waiting[request.rid]
            if not waiting:
                del self._waiting[missed[0]]

    def _granules(self, request: RoutedRequest) -> Sequence[int]:
        """Hashes of the granules of a request's prompt that the replica does not have."""
        if self._has_states:
            return ()
        return request.prefix.hashes[(request.work.length - request.work.miss) // GRANULE_TOKENS :]

    def _count(self, request: RoutedRequest, missed: Sequence[int], change: int) -> None:
        """Count a request in or out: of the granules that it misses, those that no other request does."""
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
        self.size += change

    def _is_valid(self, entry: _Entry) -> bool:
        """Return True if the request is in the queue, and the entry is that of its present work."""
        return self._entries.get(entry[2].rid) is entry

    def _drop_void(self) -> None:
        """Forget void entries once most are, those out of the reach of `first` too."""
        if self.num_entries > 2 * self.size + 64:
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapq.heapify(self._heap)
            self._arrivals = deque(entry for entry in self._arrivals if entry[1].version == entry[0])


def _hit(request: RoutedRequest) -> int:
    return (request.work.length - request.work.miss) // MATCH_UNIT
