"""Admission: the conditions under which waiting requests are admitted, and the prefill chunks of a step.

Requests are considered in the order of `radixrt.scheduler.queue_order`. A request is admitted when there is room for
the tokens that it and the active requests are still expected to write (`NewTokenRatio`), when no active request is
computing a prefix that it could reuse a step later (`PrefillPrefixes`), and when no part leaves it in the queue
(`Part.may_admit`). Admission skips requests whose deadline has passed; `Scheduler.next_batch` ends them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from typing import NamedTuple

import numpy as np

from radixrt.config import SchedulerConfig
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.new_token_ratio import NewTokenRatio
from radixrt.scheduler.pacing import Pacing, StepBudget
from radixrt.scheduler.part import Parts, Selection
from radixrt.scheduler.prefix_index import PrefixIndex
from radixrt.scheduler.queue_order import WINDOW, Order, Turns, arrange
from radixrt.scheduler.req import Req, ReqState
from radixrt.scheduler.request_table import RequestTable
from radixrt.scheduler.schedule_batch import Chunk
from radixrt.scheduler.step_time import StepTimeFit

DEFER_TOKENS = 32
"""A waiting request is deferred while an active request computes at least this many tokens of a common prefix."""

KIN_DEFER_TOKENS = 8
"""Smaller DEFER_TOKENS for two requests with the same `Req.kin`, such as two calls of one program. The many branches of
a fork arrive together, so computing a short prefix in each branch costs more than the step by which the other branches
begin later. Fewer tokens are often only the header of a message. `explain` relies on this number."""


TEACHING_STEPS = 8
"""Number of steps with prompts without work on other inputs, from which alone the time of tokens is learned, before
other steps may have both."""


class Admission:
    """Plans the prefill chunks of each step: first for prompts under way, then for requests admitted into the step.

    Attributes:
        ratio: estimate of how much of their max_tokens the running requests will use.
        max_active: maximum number of active requests.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVManager,
        requests: RequestTable,
        parts: Parts,
        step_time: StepTimeFit,
        pacing: Pacing,
    ) -> None:
        self._config = config
        self._kv = kv
        self._requests = requests
        self._parts = parts
        self._step_time = step_time
        self._pacing = pacing
        self.max_active = min(config.max_running_requests, kv.max_active)
        self.ratio = NewTokenRatio(config.schedule_conservativeness)

    def plan_chunks(self, now: float, chosen: Selection | None = None) -> list[Chunk]:
        """Return the prefill chunks of the next step, and allocate their slots, within the budget of the step.

        Args:
            chosen: requests that may be in the step; None for all.
        """
        waiting = self._requests.waiting
        under_way = [req for req in self._requests.active if req.state is ReqState.PREFILL]
        if chosen is not None:
            waiting, under_way = ([req for req in reqs if chosen.has(req)] for reqs in (waiting, under_way))
        if not under_way and not waiting:
            self._pacing.no_prompts()
            return []
        budget = self._budget(under_way)
        chunks: list[Chunk] = []
        turns = self._parts.whose_turn(self._config.chunked_prefill_size)
        for req in under_way:
            if not budget.is_spent:
                self._add_chunk(req, budget, chunks, turns)
        if waiting and not budget.is_spent and not self._is_full:
            self._admit(waiting, under_way, budget, chunks, turns, chosen, now)
        return chunks

    def obstacles(self, now: float) -> Callable[[Req, int, int], Obstacle]:
        """Return a function `(request, cached, unlocked)` that gives the reason why a waiting request is not admitted
        at present. The function changes no state.

        The argument `cached` is the number of the request's tokens whose keys and values are cached, and `unlocked` the
        number of cached tokens that no active request has locked.
        """
        active = self._requests.active
        reserved = self.ratio.reserve_all(active)
        computing = PrefillPrefixes(active, self._kv, asks=False)

        def find(req: Req, matched: int, unlocked: int) -> Obstacle:
            need, room = self.ratio.reserve(req, matched), self._kv.reachable_slots - reserved - unlocked
            name = ""
            if self._is_full:
                name = "requests"
            elif computing.covers(req):
                name = "prefix"
            elif active and need > room:
                name = "slots"
            elif active:
                name = self._vetoed_by(req, room - need, now)
            return Obstacle(name, need, max(room, 0))

        return find

    @property
    def _is_full(self) -> bool:
        return len(self._requests.active) >= self.max_active

    def _budget(self, under_way: list[Req]) -> StepBudget:
        begun = ((self._kv.computed_len(req), req.known_len) for req in under_way)
        prompts = chain(begun, ((0, req.known_len) for req in self._requests.waiting[:WINDOW]))
        spans = ((start, end - start) for start, end in prompts)
        return self._pacing.budget(self._config.chunked_prefill_size, self._step_time, spans)

    def _add_chunk(self, req: Req, budget: StepBudget, chunks: list[Chunk], turns: Turns | None) -> bool:
        """Append the request's next chunk; return False if slots or budget are missing."""
        start = self._kv.computed_len(req)
        wanted = min(req.known_len - start, budget.tokens_behind(start))
        if turns is not None and (left := turns.tokens_left(req)) is not None:
            wanted = min(wanted, max(left, 0))
        if wanted and req.inputs is not None:
            wanted = self._reach(req, start, wanted, budget)
        slots = self._kv.extend_chunk(req, wanted) if wanted else None
        if slots is None:
            return False
        tokens = len(slots.slots)
        chunks.append(Chunk(req, start, slots.slots, start + tokens == req.known_len, slots.states))
        budget.spend(start, tokens)
        if turns is not None:
            turns.spend(req, tokens)
        return True

    def _reach(self, req: Req, start: int, wanted: int, budget: StepBudget) -> int:
        """Return how many of `wanted` tokens the chunk of a row with other inputs can have."""
        assert req.inputs is not None
        seconds = self._pacing.input_seconds(budget, self._step_time)
        # Beside decode rows, the tokens get steps of their own at first, which teach their time.
        teaches = seconds < math.inf and self._step_time.times.extend_steps < TEACHING_STEPS
        if teaches and not budget.is_new and not budget.inputs_s:
            return 0
        reach = req.inputs.reach(start, wanted, seconds, must=budget.is_new)
        if not reach.seconds or seconds == math.inf:
            return 0 if teaches and budget.inputs_s else reach.tokens
        budget.spend_seconds(reach.seconds)
        if teaches:
            return 0
        return max(min(reach.tokens, budget.tokens_behind(start)), 0)

    def _admit(
        self,
        waiting: list[Req],
        under_way: list[Req],
        budget: StepBudget,
        chunks: list[Chunk],
        turns: Turns | None,
        chosen: Selection | None,
        now: float,
    ) -> None:
        """Admit waiting requests in the policy's order while the step's budget lasts, each with its first chunk."""
        active, kv = self._requests.active, self._kv
        reserved = self.ratio.reserve_all(active)

        def by_policy(reqs: list[Req]) -> list[Req]:
            return arrange(self._config.schedule_policy, reqs, kv, now)

        order: Order = deque(by_policy(waiting)) if turns is None else turns.order(waiting, by_policy)
        computing = PrefillPrefixes(under_way, kv)
        queued = PrefixIndex(self._requests.waiting[:WINDOW], kv.min_gap) if kv.min_gap else None
        while order and not budget.is_spent and not self._is_full:
            # A prefix that an active request is computing is in the cache one step later, so the request waits.
            req = order.popleft()
            if req.stats.deadline <= now or computing.covers(req):
                continue
            # The prefix is locked before slots are counted: locking makes the prefix's slots unevictable, which
            # lowers `reachable_slots`.
            prefix = kv.lock_prefix(req)
            need = self.ratio.reserve(req, len(prefix))
            # A request that does not fit ends the admission, so that smaller requests cannot overtake it forever. With
            # no active request any request is admitted, so that the queue always moves.
            if active and reserved + need > kv.reachable_slots:
                kv.unlock_prefix(req)
                return
            if active and self._vetoed_by(req, kv.reachable_slots - reserved - need, now):
                kv.unlock_prefix(req)
                continue
            # A prefix that is being copied into the tree is worth waiting for even if no request is active.
            if self._parts.fetches and any(fetches(req, now) for fetches in self._parts.fetches):
                kv.unlock_prefix(req)
                continue
            # Requests later in the order may share this request's prompt, and are compared with it too.
            self._requests.activate(req, prefix, now)
            computing.add(req)
            # The next row of a group is tried next: it shares its prefix with the row that was just admitted. If only
            # one request may be in the step, the row stays in the queue.
            follower = None if req.member is None else self._requests.queue_next_row(req.member.group, now)
            if follower is not None and (chosen is None or chosen.has(follower)):
                order.appendleft(follower)
            if follower is not None and queued is not None:
                queued.add(follower)
            kv.admitted(req, len(prefix), queued)
            # If slots are missing although the estimate had room, the request keeps its row and prefix, and its first
            # chunk is tried again at the next step.
            if not self._add_chunk(req, budget, chunks, turns):
                return
            reserved += self.ratio.reserve(req, req.kv.length)

    def _vetoed_by(self, req: Req, room: int, now: float) -> str:
        """Return the name of the first part that leaves the request in the queue; "" if all parts admit the request."""
        return next((part.name for part in self._parts.may_admit if not part.may_admit(req, room, now)), "")


class Obstacle(NamedTuple):
    """Reason why a request waits. The fields are described at `radixrt.messages.cache_events.QueueView`."""

    name: str
    needed_slots: int
    free_slots: int


class PrefillPrefixes:
    """Index of the requests in PREFILL, to find a request that computes a prefix of a waiting request's input.

    An index is used while the requests of one step are admitted.

    Args:
        asks: ask a request in PREFILL to leave the state from which the waiting request can continue, for models with
            recurrent layers (`KVManager.will_share`); False to change no state.
    """

    def __init__(self, active: Iterable[Req], kv: KVManager, *, asks: bool = True) -> None:
        self._kv = kv
        self._asks = asks
        shared = [r for r in active if r.state is ReqState.PREFILL] if kv.cache.shares else []
        self._computing = PrefixIndex(shared, DEFER_TOKENS)
        self._kindred = PrefixIndex([r for r in shared if r.kin is not None], KIN_DEFER_TOKENS)

    def add(self, req: Req) -> None:
        """Add a request that was just admitted."""
        if self._kv.cache.shares:
            self._computing.add(req)
            if req.kin is not None:
                self._kindred.add(req)

    def covers(self, req: Req) -> bool:
        """Return True if an active request computes a prefix that the waiting request `req` can reuse a step later."""
        reusable, kin = req.reusable_ids, req.kin
        if not self._computing or len(reusable) < (DEFER_TOKENS if kin is None else KIN_DEFER_TOKENS):
            return False
        # Only tokens behind the cached prefix are worth waiting for.
        cached = self._kv.match_len(req)
        found = list(self._computing.like(req.namespace, reusable, cached))
        if kin is not None:
            found += [r for r in self._kindred.like(req.namespace, reusable, cached) if r.kin is kin]
        for other in found:
            same = np.array_equal(other.ids[:cached], reusable[:cached])
            if same and self._kv.will_share(other, req, cached, asks=self._asks):
                return True
        return False
