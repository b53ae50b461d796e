"""Offline optimum of a cache of states: knows the whole trace, and may leave a state after any token.

A state that serves request r must be kept from an earlier request with the same tokens until r. Of the prefixes that r
shares with earlier requests, each is worth the tokens that it saves beyond the next shorter one. Choosing the prefixes
to keep, with at most `capacity` kept between any two requests, is a flow of `capacity` units through time in which each
kept prefix is an arc: its maximum value is found by successive longest paths.

This is the exact optimum where a request that is served by a longer prefix could have been served by the shorter ones
too, as when a system prompt is kept at all times; where not, a little more could be saved than this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.cache.hybrid_workloads import Request
from benchmarks.cache.state_rules import prefix_hashes


def optimum(requests: Sequence[Request], capacity: int | None = None) -> float:
    """Smallest share of prompt tokens that must be computed with so many states (None: any number)."""
    arcs = _arcs(requests)
    total = sum(len(request.prompt) for request in requests)
    saved = sum(arc.value for arc in arcs) if capacity is None else best_value(arcs, len(requests), capacity)
    return 1 - saved / total


@dataclass(eq=False)
class Arc:
    """A prefix kept from request `start` until request `end`, or an idle slot."""

    start: int
    end: int
    value: int
    room: int = 1
    used: int = 0


def _arcs(requests: Sequence[Request]) -> list[Arc]:
    """For each request, the prefixes where it parts from earlier ones, kept since the last request that had them."""
    latest: dict[int, int] = {}  # hash of a prefix -> last request that had it
    arcs: list[Arc] = []
    for number, request in enumerate(requests):
        prefixes = prefix_hashes(request.prompt + request.output)
        owners = [latest.get(prefixes[length], -1) for length in range(len(request.prompt))]
        before = 0
        for length in range(1, len(request.prompt)):
            following = owners[length + 1] if length + 1 < len(owners) else -1
            if owners[length] >= 0 and owners[length] != following:
                arcs.append(Arc(owners[length], number, length - before))
                before = length
        latest.update(dict.fromkeys(prefixes[1:], number))
    return arcs


def best_value(arcs: Sequence[Arc], times: int, capacity: int) -> int:
    """Largest sum of values of arcs of which at most `capacity` cover any moment between two of the times."""
    for arc in arcs:
        arc.used = 0
    everything = [*arcs, *(Arc(at, at + 1, 0, capacity) for at in range(times - 1))]
    leaving: list[list[Arc]] = [[] for _ in range(times)]
    entering: list[list[Arc]] = [[] for _ in range(times)]
    for arc in everything:
        leaving[arc.start].append(arc)
        entering[arc.end].append(arc)
    total = 0
    for _ in range(capacity):
        gained = _augment(leaving, entering, times)
        if gained <= 0:
            break
        total += gained
    return total


def _augment(leaving: list[list[Arc]], entering: list[list[Arc]], times: int) -> int:
    """Send one more unit along the path of the largest value, which may undo arcs used before; returns its value."""
    lowest = -(1 << 60)
    value = [lowest] * times
    came: list[tuple[Arc, bool] | None] = [None] * times
    value[0] = 0
    pending = {0}
    while pending:
        at = min(pending)
        pending.remove(at)
        steps = [(arc, True, arc.end, arc.value) for arc in leaving[at] if arc.used < arc.room]
        steps += [(arc, False, arc.start, -arc.value) for arc in entering[at] if arc.used]
        for arc, forward, to, gain in steps:
            if value[at] + gain > value[to]:
                value[to] = value[at] + gain
                came[to] = arc, forward
                pending.add(to)
    at = times - 1
    if value[at] <= 0:
        return 0
    while at:
        step = came[at]
        assert step is not None
        arc, forward = step
        arc.used += 1 if forward else -1
        at = arc.start if forward else arc.end
    return value[times - 1]
