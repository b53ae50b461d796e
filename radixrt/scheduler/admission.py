"""Admission: the order in which waiting requests are considered, and the conditions under which they are admitted.

A request is admitted when there is room for what it and the active requests are still expected to write
(`NewTokenRatio`), when no active request is computing a prefix that it could reuse a step later (`PrefillPrefixes`),
and when it does not take slots that a program which began earlier, and has no lower priority, is about to use
(`Programs.reserved`). One whose deadline has passed is left to `Scheduler.next_batch`, which ends it.

Every policy honours priority first, and puts requests that have waited longer than `PATIENCE_S` before the others in
order of arrival, so that a stream of well-cached requests cannot starve one that shares nothing.

lpm and dfs-weight are the cache-aware orders of SGLang (arXiv 2312.07104, section 3): longest matching prefix first,
and depth-first over the radix tree, heaviest subtree first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from radixrt.config import SchedulerConfig
from radixrt.scheduler.checkpoints import Checkpoints
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.output_lengths import CLIP_TOKENS
from radixrt.scheduler.pipeline_stages import ChunkTimes, StepBudget
from radixrt.scheduler.prefix_index import PrefixIndex
from radixrt.scheduler.program import Program, Reserved
from radixrt.scheduler.programs import PROTECT_STEPS, Programs
from radixrt.scheduler.req import Req, ReqState
from radixrt.scheduler.request_table import RequestTable
from radixrt.scheduler.schedule_batch import Chunk
from radixrt.scheduler.step_time import StepTimeFit

PATIENCE_S = 10.0
WINDOW = 128
"""Cache-aware policies look at this many requests, in order of arrival: matching all of a long queue at every step
would cost more than the better order saves. Behind them they look at as many of programs that have begun, for which the
first ones may be waiting."""

DEFER_TOKENS = 32
"""A waiting request is deferred while an active one computes at least this many tokens that it could reuse."""

SIBLING_DEFER_TOKENS = 8
"""The same for two calls of one program. Branches of a fork come together and are many, so that computing a short
prefix in each costs more than the step by which the others begin later. Less than this is often only the header of a
message. `explain` counts on it."""

MATCH_UNIT = 32
"""Cached prefixes are compared by multiples of this many tokens: texts of one template share a few more or fewer tokens
by chance, which saves nothing and would have the others wait."""

INITIAL_RATIO = 0.7
MIN_RATIO = 0.1
DECAY_STEPS = 600

Order = Callable[[list[Req], KVManager], list[Req]]


class Admission:
    """Plans the prefill chunks of each step: those of prompts under way first, then those of requests that it admits.

    Attributes:
        ratio: estimate of how much of their max_tokens the running requests will use.
    """

    def __init__(
        self, config: SchedulerConfig, kv: KVManager, requests: RequestTable, programs: Programs,
        checkpoints: Checkpoints | None, step_time: StepTimeFit, stages: int = 1,
    ) -> None:  # fmt: skip
        self._config = config
        self._kv = kv
        self._requests = requests
        self._programs = programs
        self._step_time = step_time
        self._stages = stages
        self._chunk_times = ChunkTimes(stages, config.chunked_prefill_size)
        self._max_active = min(config.max_running_requests, kv.max_active)
        self._checkpoints = None if kv.states is None or not kv.cache.shares else checkpoints or Checkpoints()
        self.ratio = NewTokenRatio(config.schedule_conservativeness)

    def plan_chunks(self, now: float, alone: Req | None = None) -> list[Chunk]:
        """The chunks of prompts for this step, within the token budget `chunked_prefill_size` and, with pipeline
        stages, in a time that is the same for all steps.

        Args:
            alone: the only request that may be admitted; None: any.
        """
        budget = self._budget()
        chunks: list[Chunk] = []
        for req in self._requests.active:
            if req.state is ReqState.PREFILL and not budget.is_spent:
                self._add_chunk(req, budget, chunks)
        waiting = self._requests.waiting
        if alone is not None:
            waiting = [alone] if alone.state is ReqState.WAITING else []
        if waiting and not budget.is_spent and not self._is_full:
            self._admit(waiting, budget, chunks, now)
        return chunks

    def arrived(self, req: Req) -> None:
        """Have the prompts under way leave states where a request that has just arrived parts from them, before they
        are past these lengths."""
        if self._checkpoints is not None:
            cached = self._kv.match_len(req)
            for other in self._requests.active:
                if other.state is ReqState.PREFILL:
                    self._checkpoints.promises(other, req, cached)

    @property
    def _is_full(self) -> bool:
        return len(self._requests.active) >= self._max_active

    def _budget(self) -> StepBudget:
        if self._stages == 1:
            return StepBudget(self._config.chunked_prefill_size)
        kv, requests = self._kv, self._requests
        under_way = [(kv.computed_len(r), r.known_len) for r in requests.active if r.state is ReqState.PREFILL]
        prompts = [*under_way, *((0, r.known_len) for r in requests.waiting[:WINDOW])]
        return self._chunk_times.budget(self._step_time.times, [(start, end - start) for start, end in prompts])

    def _add_chunk(self, req: Req, budget: StepBudget, chunks: list[Chunk]) -> bool:
        """Append the request's next chunk; False if there is no room for it."""
        start = self._kv.computed_len(req)
        wanted = min(req.known_len - start, budget.tokens_behind(start))
        slots = self._kv.extend_chunk(req, wanted) if wanted else None
        if slots is None:
            return False
        tokens = len(slots.slots)
        chunks.append(Chunk(req, start, slots.slots, start + tokens == req.known_len, slots.state))
        budget.spend(start, tokens)
        return True

    def _admit(self, waiting: list[Req], budget: StepBudget, chunks: list[Chunk], now: float) -> None:
        active = self._requests.active
        reserved = self.ratio.reserve_all(active)
        order = deque(arrange(self._config.schedule_policy, waiting, self._kv, now))
        checkpoints, programs = self._checkpoints, ProgramsNow(now)
        computing = PrefillPrefixes(active, self._kv, checkpoints)
        queued = None if checkpoints is None else PrefixIndex(self._requests.waiting[:WINDOW], checkpoints.min_gap)
        while order and not budget.is_spent and not self._is_full:
            req = order.popleft()
            if req.stats.deadline <= now or computing.covers(req):
                continue
            prefix = self._kv.lock_prefix(req)
            need = self.ratio.reserve(req, len(prefix))
            if active and reserved + need > self._kv.reachable_slots:
                self._kv.unlock_prefix(req)
                return
            if active and self._would_displace(req, self._kv.reachable_slots - reserved - need, programs):
                self._kv.unlock_prefix(req)
                continue
            self._requests.activate(req, prefix, now)
            programs.reserved.clear()
            if req.call is not None:
                self._programs.admitted(req.call, req.prompt_len)
            computing.add(req)
            follower = None
            if req.row is not None:
                follower = self._requests.queue_next_row(req.row.rid)
                if follower is not None and waiting is self._requests.waiting:  # else the row is to be alone
                    order.appendleft(follower)
            if checkpoints is not None and queued is not None:
                if follower is not None:
                    queued.add(follower)
                checkpoints.place(req, len(prefix), queued)
            # Where the estimate was too low, the request keeps its prefix and tries again at the next step.
            if not self._add_chunk(req, budget, chunks):
                return
            reserved += self.ratio.reserve(req, req.kv.length)

    def _would_displace(self, req: Req, room: int, programs: ProgramsNow) -> bool:
        """Return True if the request would take slots that a program which began earlier is about to ask for, to go on
        from nodes that it holds or to grow: only `room` are left beside the active requests and this one."""
        if room >= self._programs.held_tokens + self._programs.growing_tokens or is_overdue(req, programs.now):
            return False
        reserved = programs.reserved.get(req.priority)
        if reserved is None:
            times = self._step_time.turn_times
            longest = PROTECT_STEPS * times.step / times.token
            reserved = programs.reserved[req.priority] = self._programs.reserved(longest, programs.now, req.priority)
        return room < reserved.before(_program(req))


@dataclass
class ProgramsNow:
    """Tokens that programs reserve while the requests of one step are admitted, by the priority of who asks for them
    first."""

    now: float
    reserved: dict[int, Reserved] = field(default_factory=dict)


class NewTokenRatio:
    """Part of their remaining max_tokens that running requests are expected to use, estimated as SGLang does: the ratio
    starts high, decays while decoding proceeds, and jumps back when a retraction shows that it was too low."""

    def __init__(self, conservativeness: float) -> None:
        self._initial = min(1.0, INITIAL_RATIO * conservativeness)
        self._floor = min(self._initial, MIN_RATIO * conservativeness)
        self._decay = (self._initial - self._floor) / DECAY_STEPS
        self.value = self._initial

    def decoded(self, share: float = 1.0) -> None:
        """Lower the ratio after a decode step without retraction.

        Args:
            share: part of all rows that the step has.
        """
        self.value = max(self._floor, self.value - share * self._decay)

    def retracted(self, active: Iterable[Req]) -> None:
        """Raise the ratio after a retraction: the others are expected to use at least what they have used so far."""
        used = wanted = 1
        for req in active:
            used += req.num_output + 20
            wanted += min(req.num_output + max(req.remaining, 0), CLIP_TOKENS)
        self.value = min(1.0, max(self._initial, used / wanted))

    def reserve(self, req: Req, computed: int) -> int:
        """Number of slots that a request of which `computed` tokens have slots is expected to take from now on, for the
        rest of its input and for its output."""
        return max(req.known_len - computed, 0) + int(min(max(req.remaining, 0), CLIP_TOKENS) * self.value)

    def reserve_all(self, active: Iterable[Req]) -> int:
        """Sum of `reserve` over active requests, without two calls for each of them: it is made for every step that
        admits a request."""
        value, total = self.value, 0
        for req in active:
            known = req.known_len
            missing = known - req.kv.length
            if missing > 0:
                total += missing
            left = req.max_len - known - req.num_pending
            if left > 0:
                total += int((left if left < CLIP_TOKENS else CLIP_TOKENS) * value)
        return total


def arrange(policy: str, waiting: list[Req], kv: KVManager, now: float) -> list[Req]:
    """The waiting requests that admission should try, in this order: see WINDOW; all of them for fcfs."""
    by_arrival = sorted(waiting, key=lambda r: (-r.priority, r.seq))
    if policy == "fcfs" or len(by_arrival) < 2:
        return by_arrival
    window = by_arrival[:WINDOW]
    window += islice((r for r in by_arrival[WINDOW:] if (p := _program(r)) is not None and p.first_prompt), WINDOW)
    patient = [r for r in window if not is_overdue(r, now)]
    overdue = [r for r in window if is_overdue(r, now)]
    arranged = _ORDERS[policy](patient, kv)
    arranged.sort(key=lambda r: -r.priority)  # stable: the policy's order within one priority
    return sorted(overdue + arranged, key=lambda r: -r.priority) if overdue else arranged


def is_overdue(req: Req, now: float) -> bool:
    return now - req.stats.arrived_at > PATIENCE_S


def _longest_prefix_match(reqs: list[Req], kv: KVManager) -> list[Req]:
    lens = {r.rid: kv.match_len(r) // MATCH_UNIT for r in reqs}
    return sorted(reqs, key=lambda r: (-lens[r.rid], r.seq))


def _depth_first_by_weight(reqs: list[Req], kv: KVManager) -> list[Req]:
    """Sorting by the path of (weight, node) pairs from the root is a depth-first walk, heaviest child first, that
    takes the requests that end at a node before those that go deeper."""
    paths: dict[str, list[Any]] = {}
    weight: Counter[int] = Counter()
    for r in reqs:
        node, path = kv.cache.match_node(r.reusable_ids, r.namespace), []
        while node is not None:
            path.append(node)
            weight[id(node)] += 1
            node = node.parent
        paths[r.rid] = path[::-1]
    return sorted(reqs, key=lambda r: (tuple(x for n in paths[r.rid] for x in (-weight[id(n)], id(n))), r.seq))


_ORDERS: dict[str, Order] = {"lpm": _longest_prefix_match, "dfs-weight": _depth_first_by_weight}


class PrefillPrefixes:
    """Requests in PREFILL, to find one that computes a prefix that a waiting request can reuse.

    Lives while the requests of one step are admitted.
    """

    def __init__(self, active: Iterable[Req], kv: KVManager, checkpoints: Checkpoints | None = None) -> None:
        self._kv = kv
        self._checkpoints = checkpoints
        shared = [r for r in active if r.state is ReqState.PREFILL] if kv.cache.shares else []
        self._computing = PrefixIndex(shared, DEFER_TOKENS)
        self._calls = PrefixIndex([r for r in shared if _program(r) is not None], SIBLING_DEFER_TOKENS)

    def add(self, req: Req) -> None:
        """Add a request that was just admitted."""
        if self._kv.cache.shares:
            self._computing.add(req)
            if _program(req) is not None:
                self._calls.add(req)

    def covers(self, req: Req) -> bool:
        """Return True if an active request is computing a prefix of this one's input that it can reuse a step later."""
        reusable, program = req.reusable_ids, _program(req)
        if not self._computing or len(reusable) < (DEFER_TOKENS if program is None else SIBLING_DEFER_TOKENS):
            return False
        cached = self._kv.match_len(req)
        found = list(self._computing.like(req.namespace, reusable, cached))
        if program is not None:
            found += [r for r in self._calls.like(req.namespace, reusable, cached) if _program(r) is program]
        for other in found:
            if np.array_equal(other.ids[:cached], reusable[:cached]) and (
                self._checkpoints is None or self._checkpoints.promises(other, req, cached)
            ):
                return True
        return False


def _program(req: Req) -> Program | None:
    """The program that the request is a call of, if it is one."""
    return None if req.call is None else req.call.program
