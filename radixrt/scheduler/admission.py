"""Admission: the conditions under which waiting requests are admitted, and the prefill chunks of a step.

Requests are considered in the order of `radixrt.scheduler.queue_order`. One is admitted when there is room for what it
and the active requests are still expected to write (`NewTokenRatio`), when no active request is computing a prefix that
it could reuse a step later (`PrefillPrefixes`), and when it does not take slots that a program which began earlier, and
has no lower priority, is about to use (`Programs.reserved`). One whose deadline has passed is left to
`Scheduler.next_batch`, which ends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from radixrt.config import SchedulerConfig
from radixrt.scheduler.checkpoints import Checkpoints
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.new_token_ratio import NewTokenRatio
from radixrt.scheduler.pipeline_stages import ChunkTimes, StepBudget
from radixrt.scheduler.prefix_index import PrefixIndex
from radixrt.scheduler.program import Reserved
from radixrt.scheduler.programs import Programs
from radixrt.scheduler.queue_order import WINDOW, arrange, is_overdue
from radixrt.scheduler.req import Req, ReqState
from radixrt.scheduler.request_table import RequestTable
from radixrt.scheduler.schedule_batch import Chunk
from radixrt.scheduler.step_time import StepTimeFit

DEFER_TOKENS = 32
"""A waiting request is deferred while an active one computes at least this many tokens that it could reuse."""

SIBLING_DEFER_TOKENS = 8
"""The same for two calls of one program. Branches of a fork come together and are many, so that computing a short
prefix in each costs more than the step by which the others begin later. Less than this is often only the header of a
message. `explain` counts on it."""

Promises = Callable[[Req, Req, int], bool]


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

    def obstacles(self, now: float) -> Callable[[Req, int, int], Obstacle]:
        """Return a function that tells why a waiting request is not admitted, as of now; nothing is changed.

        Its arguments are the request, the number of its tokens whose keys and values are cached, and how many of these
        nobody has locked.
        """
        active, programs = self._requests.active, ProgramsNow(now)
        reserved = self.ratio.reserve_all(active)
        has_promised = None if self._checkpoints is None else self._checkpoints.has_promised
        computing = PrefillPrefixes(active, self._kv, has_promised)

        def find(req: Req, matched: int, unlocked: int) -> Obstacle:
            need, room = self.ratio.reserve(req, matched), self._kv.reachable_slots - reserved - unlocked
            name = ""
            if self._is_full:
                name = "requests"
            elif computing.covers(req):
                name = "prefix"
            elif active and need > room:
                name = "slots"
            elif active and self._would_displace(req, room - need, programs):
                name = "programs"
            return Obstacle(name, need, max(room, 0))

        return find

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
        computing = PrefillPrefixes(active, self._kv, None if checkpoints is None else checkpoints.promises)
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
            if req.member is not None:
                follower = self._requests.queue_next_row(req.member.group)
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
            reserved = programs.reserved[req.priority] = self._programs.reserved(times, programs.now, req.priority)
        return room < reserved.before(req.program)


@dataclass
class ProgramsNow:
    """Tokens that programs reserve while the requests of one step are admitted, by the priority of who asks for them
    first."""

    now: float
    reserved: dict[int, Reserved] = field(default_factory=dict)


class Obstacle(NamedTuple):
    """Why a request waits: see `radixrt.messages.cache_events.QueueView` for the fields."""

    name: str
    needed_slots: int
    free_slots: int


class PrefillPrefixes:
    """Requests in PREFILL, to find one that computes a prefix that a waiting request can reuse.

    Lives while the requests of one step are admitted.

    Args:
        promises: of `Checkpoints`, for a model with recurrent layers.
    """

    def __init__(self, active: Iterable[Req], kv: KVManager, promises: Promises | None = None) -> None:
        self._kv = kv
        self._promises = promises
        shared = [r for r in active if r.state is ReqState.PREFILL] if kv.cache.shares else []
        self._computing = PrefixIndex(shared, DEFER_TOKENS)
        self._calls = PrefixIndex([r for r in shared if r.program is not None], SIBLING_DEFER_TOKENS)

    def add(self, req: Req) -> None:
        """Add a request that was just admitted."""
        if self._kv.cache.shares:
            self._computing.add(req)
            if req.program is not None:
                self._calls.add(req)

    def covers(self, req: Req) -> bool:
        """Return True if an active request is computing a prefix of this one's input that it can reuse a step later."""
        reusable, program = req.reusable_ids, req.program
        if not self._computing or len(reusable) < (DEFER_TOKENS if program is None else SIBLING_DEFER_TOKENS):
            return False
        cached = self._kv.match_len(req)
        found = list(self._computing.like(req.namespace, reusable, cached))
        if program is not None:
            found += [r for r in self._calls.like(req.namespace, reusable, cached) if r.program is program]
        for other in found:
            if np.array_equal(other.ids[:cached], reusable[:cached]) and (
                self._promises is None or self._promises(other, req, cached)
            ):
                return True
        return False
