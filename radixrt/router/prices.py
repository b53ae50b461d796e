"""Prices of replicas for a request, in seconds: the delay of the request, and the delay of all other requests.

    own       prompts ahead of the request and its own miss, each with the decode rows of the same steps, and the
              encoding of their images; waiting for a row and for slots; the request's own decode steps
    others    time that the request's miss and decode rows add to the steps of every request on the replica; half as
              much again for a miss that evicts prefixes which other requests would have hit

So balance, affinity and memory are one rule without weights: a request goes to another replica than the one with its
prefix exactly when the delay there is longer than the recomputation elsewhere, for all requests together.
"""

from __future__ import annotations

from collections.abc import Mapping

from radixrt.router.replica_load import ReplicaLoad
from radixrt.router.routed_request import Work

EVICTION = 1.5
"""Factor of the cost of a miss to other requests if the miss evicts cached prefixes."""
MAX_FORK_REPLICAS = 8
FORK_PARTS = 64
"""A fork of more branches is divided by this many parts."""


def wait_s(load: ReplicaLoad, work: Work, *, is_first: bool = False, coming: int = 0) -> float:
    """Return the predicted seconds until a replica has computed a request's input.

    Args:
        is_first: the request would be the first of the replica's queue rather than the last.
        coming: number of requests that the replica gets before this request. Each counts as much output as this
            request, and no input, which another replica computes.
    """
    times, info = load.times, load.info
    open_rows = len(load.open)
    started = open_rows - load.unstarted_rows
    step_s = times.step + times.row * started + times.context * load.context
    tokens, rows = load.unstarted_tokens + work.miss, open_rows + 1 + coming
    encode = load.unstarted_encode + work.encode
    slots = load.reachable - coming * work.output
    if not is_first:
        queue = load.queue
        tokens += queue.tokens
        encode += queue.encode
        rows += queue.size
        slots -= queue.slots
    # Prompt tokens before the first output, each chunk in a step with the rows that decode.
    wait = tokens * times.token + encode * load.position_s
    if started:
        chunks_s = times.seconds_beside_rows(started, load.context, info.max_gap_s)
        chunks = max(tokens / info.chunked_prefill_size, wait / chunks_s)
        wait += (chunks + 0.5) * step_s
    # Number of open requests that must end before this request has a row and slots. They end evenly over time.
    ends: float = rows - info.max_running_requests
    missing = work.miss + work.output - slots
    if not open_rows or (ends <= 0 and missing <= 0):
        return wait
    if missing > 0:
        ends = max(ends, missing * open_rows / max(info.num_slots - load.reachable, 1.0))
    return wait + ends * load.outputs * step_s / open_rows**2


def price_s(load: ReplicaLoad, work: Work, *, is_first: bool = False) -> float:
    """Return the price of a replica for a request; see the module's docstring."""
    times, count = load.times, len(load.open) + load.queue.size
    miss, length, output, _ = work
    row_s = times.row + times.context * length
    step_s = times.step + times.row * count + times.context * load.context + row_s
    miss_s = miss * times.token
    if load.free < miss:
        miss_s *= EVICTION
    miss_s += work.encode * load.position_s
    return wait_s(load, work, is_first=is_first) + output * step_s + count * (miss_s + output * row_s)


def divide_fork(
    loads: Mapping[int, ReplicaLoad], hits: Mapping[int, int], shared: int, branch: Work, branches: int
) -> dict[int, int]:
    """Divide the branches of a fork among replicas so that all branches together take the least time.

    The shared prefix is computed once on each replica that gets a branch and does not hold the prefix.

    Args:
        hits: tokens of the shared prefix that each replica holds.
        shared: length of the prefix.
        branch: work of one branch; `miss` counts the tokens after the prefix.

    Returns:
        Number of branches of each replica that gets any.
    """
    part = -(-branches // FORK_PARTS)

    def cost(replica: int, count: int) -> float:
        """Return the price of `count` branches together on a replica."""
        load, times = loads[replica], loads[replica].times
        prefix = max(shared - hits.get(replica, 0), 0)
        row_s = times.row + times.context * branch.length
        of_first = Work(prefix + branch.miss, branch.length, branch.output, branch.images)
        encode_s = (of_first.encode + (count - 1) * branch.encode) * load.position_s
        first_s = wait_s(load, of_first)
        last_s = wait_s(load, Work(prefix + count * branch.miss, branch.length, count * branch.output)) + encode_s
        others = len(load.open) + load.queue.size
        step_s = times.step + times.row * others + times.context * load.context
        own = (first_s + last_s) / 2 + branch.output * (step_s + count * row_s)
        miss_s = (prefix + count * branch.miss) * times.token * (EVICTION if load.free < prefix else 1.0) + encode_s
        return count * own + others * (miss_s + count * branch.output * row_s)

    # For each number of replicas, branches go part by part to the replica whose price rises the least.
    first = {replica: cost(replica, part) for replica in loads}
    cheapest = sorted(first, key=first.__getitem__)[:MAX_FORK_REPLICAS]
    best: dict[int, int] = {}
    best_cost = float("inf")
    for number in range(1, len(cheapest) + 1):
        chosen = cheapest[:number]
        counts = dict.fromkeys(chosen, 0)
        costs = dict.fromkeys(chosen, 0.0)
        following = {replica: first[replica] for replica in chosen}
        left = branches
        while left > 0:
            replica = min(chosen, key=lambda each: following[each] - costs[each])
            taken = min(part, left)
            counts[replica] += taken
            left -= taken
            costs[replica] = following[replica]
            following[replica] = cost(replica, counts[replica] + part)
        total = sum(costs.values())
        if total < best_cost:
            best, best_cost = {replica: count for replica, count in counts.items() if count}, total
    return best
