"""`ReplicaLoad`: the work of one replica, from the requests that the router has sent and the replica's reports."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from radixrt.config.roles import Role
from radixrt.messages.scheduler_stats import SchedulerStats, StepTimes, TierStats
from radixrt.router.output_tokens import OutputTokens
from radixrt.router.request_queue import RequestQueue
from radixrt.router.routed_request import RoutedRequest
from radixrt.scheduler.queue_order import PATIENCE_S
from radixrt.scheduler.step_time import PRIOR

AHEAD_STEPS = 2
"""Steps for which a replica has prompts ahead: as many as are in flight."""
BEGIN_SHARE = 0.5
"""Part of the pool that open requests must leave free or evictable when a program begins. Nothing locks a program's
prefix between two calls, forks and joins make the prefix longer, and programs share prefixes. With less room, slots
would be evicted that a program needs for the next call."""


@dataclass(frozen=True)
class ReplicaInfo:
    """Sizes of a replica.

    Attributes:
        num_slots: tokens that the KV pool holds.
        max_running_requests, chunked_prefill_size, max_gap_s: options of its scheduler.
        has_states: the model has recurrent layers.
        times: model of step times that counts until a replica has fitted one.
        role: see `radixrt.router.roles`.
    """

    num_slots: int
    max_running_requests: int
    chunked_prefill_size: int
    has_states: bool = False
    times: StepTimes = PRIOR
    max_gap_s: float = math.inf
    role: Role = "both"


class ReplicaLoad:
    """See the module's docstring. Written by `Router` alone.

    Attributes:
        number: of the replica.
        epoch: number of this life of the replica; messages of earlier lives are dropped.
        is_draining: the replica gets no new requests.
        is_fenced: the replica was silent for too long, and counts as dead until the router hears from it.
        heard_at: time of the replica's last message.
        open: requests that were sent and have not ended.
        sampled: output tokens of the open requests on this replica.
        queue: requests that are bound to the replica and wait in the router.
        unstarted_rows, unstarted_tokens: number of open requests without output, and of input tokens to compute for
            these requests.
        unstarted_encode: positions of images to encode for them.
        context: sum of the lengths of open requests with output.
        outputs: sum of the expected outputs of open requests.
        reachable: free and evictable slots, less the slots that open requests are expected to take yet.
        free: free slots.
        fitted: model of step times from the replica's scheduler; None before the scheduler has fitted one.
        times: model that prices use: the mean over all replicas (`share_times`).
        position_s: predicted seconds of encoding a position of an image: the mean over all replicas (`share_times`).
        encoding_s: the same of this replica alone (`MediaStats.position_s`).
        tiers: latest report on the replica's tiers; without figures before the first.
        fetch_token_s: predicted seconds of a fetched token by tier, which prices use: the mean over all replicas
            (`share_times`). A missing tier counts as free, so that a first fetch is tried.
        prefilling: number of open requests whose prompts the replica computes for other replicas.
        prefills: number of prompts that the replica has computed for other replicas.
    """

    def __init__(self, info: ReplicaInfo, epoch: int, now: float, number: int = 0) -> None:
        self.number = number
        self.info = info
        self.epoch = epoch
        self.is_draining = False
        self.is_fenced = False
        self.heard_at = now
        self.open: dict[str, RoutedRequest] = {}
        self.sampled = OutputTokens()
        self.queue = RequestQueue(has_states=info.has_states)
        self.times = info.times
        self.fitted: StepTimes | None = None
        self.unstarted_rows = 0
        self.unstarted_tokens = 0
        self.unstarted_encode = 0
        self.position_s = self.encoding_s = 0.0
        self.context = 0
        self.outputs = 0.0
        self.reachable = float(info.num_slots)
        self.free = float(info.num_slots)
        self.tiers = TierStats()
        self.fetch_token_s: Mapping[str, float] = {}
        self.prefilling = self.prefills = 0

    def move_s(self, tier: str, tokens: int) -> float:
        """Return the predicted seconds in which a prefix, with the state behind it if there are states, comes from a
        tier into the pool.

        Args:
            tokens: tokens of the prefix that move.
        """
        return (tokens + self.tiers.state_tokens) * self.fetch_token_s.get(tier, 0.0)

    @property
    def takes_new(self) -> bool:
        return not self.is_draining and not self.is_fenced

    @property
    def shortage(self) -> str:
        """Reason why the replica should get no request now, one of `radixrt.messages.fleet.ROUTER_OBSTACLES`: prompts
        for AHEAD_STEPS steps are ahead, or no row is left, or no slots are. "" for none, as for an idle replica."""
        rows, info = len(self.open), self.info
        if not rows:
            return ""
        ahead: float = self.unstarted_tokens
        if self.unstarted_encode:
            ahead += self.unstarted_encode * self.position_s / self.times.token
        if ahead >= AHEAD_STEPS * info.chunked_prefill_size:
            return "prompts"
        if rows >= info.max_running_requests:
            return "requests"
        return "" if self.reachable > 0 else "slots"

    @property
    def is_crowded(self) -> bool:
        """Programs that have begun should get further before another program begins.

        If N equal requests are served n at a time, they end after N / n turns, and a turn takes (step + n * row)
        seconds for each output token. The mean time to the end is least for n * n = N * step / row: with more requests
        side by side all of them are late, with fewer the fixed time of steps is wasted. N is twice the number of
        requests that are here, because requests that arrive later wait for these rows as well.
        """
        rows, times = len(self.open), self.times
        row_s = times.row + times.context * self.context / max(rows - self.unstarted_rows, 1)
        return rows * rows * row_s > 2 * (rows + self.queue.size) * times.step

    def has_slots_to_begin(self, request: RoutedRequest) -> bool:
        """The pool has slots for another program and for the programs that have begun: open requests leave BEGIN_SHARE
        of the pool to cached prefixes and their growth."""
        return not self.open or self.reachable - request.slots >= BEGIN_SHARE * self.info.num_slots

    def takes(self, request: RoutedRequest, now: float) -> bool:
        """The replica should get this request now."""
        return not self.obstacle(request, now)

    def obstacle(self, request: RoutedRequest, now: float) -> str:
        """Return the reason why the replica should not get this request now, regardless of the queue: one of
        `radixrt.messages.fleet.ROUTER_OBSTACLES`, "" for none.

        Calls of programs that have begun go first; a program that begins waits while the replica is crowded or short of
        slots, but not for longer than PATIENCE_S.
        """
        shortage = self.shortage
        if shortage or not request.begins_program or now - request.arrived_at > PATIENCE_S:
            return shortage
        if not self.has_slots_to_begin(request):
            return "program_slots"
        return "programs" if self.is_crowded else ""

    def next(self, now: float) -> RoutedRequest | None:
        """Return the first request of the queue if the replica should get that request now."""
        request = self.queue.first(now)
        return request if request is not None and self.takes(request, now) else None

    def sent(self, request: RoutedRequest) -> None:
        """Count a request that is sent now."""
        self.open[request.rid] = request
        self.prefilling += request.is_prefill
        self.sampled.add(request.rid, request.work.output)
        self.unstarted_rows += 1
        self.unstarted_tokens += request.work.miss
        self.unstarted_encode += request.work.encode
        self.outputs += request.work.output
        self.reachable -= request.slots

    def started(self, request: RoutedRequest) -> None:
        """Count the first output of a request."""
        request.has_started = True
        self.unstarted_rows -= 1
        self.unstarted_tokens -= request.work.miss
        self.unstarted_encode -= request.work.encode
        self.context += request.work.length

    def ended(self, request: RoutedRequest) -> None:
        """Stop counting a request."""
        del self.open[request.rid]
        self.prefilling -= request.is_prefill
        self.sampled.drop(request.rid)
        self.outputs -= request.work.output
        if request.has_started:
            self.context -= request.work.length
        else:
            self.unstarted_rows -= 1
            self.unstarted_tokens -= request.work.miss
            self.unstarted_encode -= request.work.encode
        self.reachable += request.slots

    def reported(self, stats: SchedulerStats) -> None:
        """Take a report of the replica."""
        self.free = stats.slots_free
        taken = self.unstarted_tokens + self.sampled.remaining()
        self.reachable = stats.slots_free + stats.slots_evictable - taken
        if stats.load is not None and stats.load.step_times is not None and stats.load.step_times.extend_steps:
            self.fitted = stats.load.step_times
        if stats.media is not None:
            self.encoding_s = stats.media.position_s
        if stats.tiers is not None:
            self.tiers = stats.tiers


def share_times(loads: Collection[ReplicaLoad]) -> None:
    """Give all replicas the means of the models of step times that replicas have fitted, and of the times of encoding
    and of fetches that replicas have measured.

    Replicas run on equal devices, so differences between the models are noise, which would outweigh most prefixes. A
    replica without a model would look better or worse than it is.
    """
    encoding = [load.encoding_s for load in loads if load.encoding_s]
    for load in loads if encoding else ():
        load.position_s = sum(encoding) / len(encoding)
    fetches = [load.tiers.fetch_token_s for load in loads if load.tiers.fetch_token_s]
    if fetches:
        token_s = {tier: sum(each[tier] for each in fetches) / len(fetches) for tier in fetches[0]}
        for load in loads:
            load.fetch_token_s = token_s
    fitted = [load.fitted for load in loads if load.fitted is not None]
    if not fitted:
        return
    names = ("step", "row", "context", "extend", "token", "pair", "error")
    means = {name: sum(getattr(each, name) for each in fitted) / len(fitted) for name in names}
    counts = {name: sum(getattr(each, name) for each in fitted) for name in ("decode_steps", "extend_steps")}
    times = StepTimes(**means, **counts)
    for load in loads:
        load.times = times
