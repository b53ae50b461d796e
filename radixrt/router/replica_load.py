"""`ReplicaLoad`: the work of one replica as the router knows it: what it has sent, and what the replica reports."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from radixrt.messages.scheduler_stats import SchedulerStats, StepTimes
from radixrt.router.output_tokens import OutputTokens
from radixrt.router.request_queue import RequestQueue
from radixrt.router.routed_request import RoutedRequest
from radixrt.scheduler.queue_order import PATIENCE_S
from radixrt.scheduler.step_time import PRIOR

AHEAD_STEPS = 2
"""Steps of prompts that a replica has ahead: as many as are in flight."""
BEGIN_SHARE = 0.5
"""Part of the pool that open requests do not take when a program begins. Nothing locks a program's prefix between two
of its calls, forks and joins make it longer, and other programs share prefixes: with more programs than that, slots are
evicted that one of them needs next."""


@dataclass(frozen=True)
class ReplicaInfo:
    """Sizes of a replica.

    Attributes:
        num_slots: tokens that the KV pool holds.
        max_running_requests, chunked_prefill_size: options of its scheduler.
        has_states: the model has recurrent layers.
        times: model of step times, until any replica reports one.
    """

    num_slots: int
    max_running_requests: int
    chunked_prefill_size: int
    has_states: bool = False
    times: StepTimes = PRIOR


class ReplicaLoad:
    """See the module's docstring. Written by `Router` alone.

    Attributes:
        epoch: number of this life of the replica; messages of earlier ones are dropped.
        is_draining: it gets no new requests.
        is_fenced: it was silent for too long, and counts as dead until it is heard.
        heard_at: time of its last message.
        open: requests that were sent and have not ended.
        sampled: what open requests have sampled there.
        queue: requests that are bound to it and wait in the router.
        unstarted_rows, unstarted_tokens: number of open requests without output, and input tokens that they miss.
        context: sum of the lengths of open requests with output.
        outputs: sum of the expected outputs of open requests.
        reachable: slots that are free or evictable, less those that open requests are expected to take yet.
        free: slots that are free.
        fitted: model of step times that its scheduler has fitted; None before it has.
        times: model that prices use: the mean of all replicas' (`share_times`).
    """

    def __init__(self, info: ReplicaInfo, epoch: int, now: float) -> None:
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
        self.context = 0
        self.outputs = 0.0
        self.reachable = float(info.num_slots)
        self.free = float(info.num_slots)

    @property
    def takes_new(self) -> bool:
        return not self.is_draining and not self.is_fenced

    @property
    def shortage(self) -> str:
        """Reason why the replica should get no request now, one of `radixrt.messages.fleet.ROUTER_OBSTACLES`: it has
        AHEAD_STEPS chunks of prompts ahead, or no row, or no slots. "" if there is none; an idle one has none."""
        rows, info = len(self.open), self.info
        if not rows:
            return ""
        if self.unstarted_tokens >= AHEAD_STEPS * info.chunked_prefill_size:
            return "prompts"
        if rows >= info.max_running_requests:
            return "requests"
        return "" if self.reachable > 0 else "slots"

    @property
    def has_room(self) -> bool:
        """The replica should get another request."""
        return not self.shortage

    @property
    def is_crowded(self) -> bool:
        """Programs that have begun should get further before another one begins.

        N equal requests that are served n at a time end after N / n turns, of (step + n * row) seconds for each of
        their tokens. The mean time until they end is least for n * n = N * step / row: more of them side by side make
        all of them late, fewer waste the fixed time of steps. N counts those that are here and, as fewer rows make
        later ones late too, as many again.
        """
        rows, times = len(self.open), self.times
        row_s = times.row + times.context * self.context / max(rows - self.unstarted_rows, 1)
        return rows * rows * row_s > 2 * (rows + self.queue.size) * times.step

    def has_slots_to_begin(self, request: RoutedRequest) -> bool:
        """The pool has slots for another program, and for those that have begun: the open requests leave
        BEGIN_SHARE of it to what they cache and grow into."""
        return not self.open or self.reachable - request.slots >= BEGIN_SHARE * self.info.num_slots

    def takes(self, request: RoutedRequest, now: float) -> bool:
        """The replica should get this request now."""
        return not self.obstacle(request, now)

    def obstacle(self, request: RoutedRequest, now: float) -> str:
        """Return the reason why the replica should not get this request now, whatever waits before it: one of
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
        """The first request of the queue, if the replica should get it now."""
        request = self.queue.first(now)
        return request if request is not None and self.takes(request, now) else None

    def sent(self, request: RoutedRequest) -> None:
        """Count a request that is sent now."""
        self.open[request.rid] = request
        self.sampled.add(request.rid, request.work.output)
        self.unstarted_rows += 1
        self.unstarted_tokens += request.work.miss
        self.outputs += request.work.output
        self.reachable -= request.slots

    def started(self, request: RoutedRequest) -> None:
        """Count the first output of a request."""
        request.has_started = True
        self.unstarted_rows -= 1
        self.unstarted_tokens -= request.work.miss
        self.context += request.work.length

    def ended(self, request: RoutedRequest) -> None:
        """Count a request out."""
        del self.open[request.rid]
        self.sampled.drop(request.rid)
        self.outputs -= request.work.output
        if request.has_started:
            self.context -= request.work.length
        else:
            self.unstarted_rows -= 1
            self.unstarted_tokens -= request.work.miss
        self.reachable += request.slots

    def reported(self, stats: SchedulerStats) -> None:
        """Take a report of the replica."""
        self.free = stats.slots_free
        taken = self.unstarted_tokens + self.sampled.remaining()
        self.reachable = stats.slots_free + stats.slots_evictable - taken
        if stats.load is not None and stats.load.step_times is not None and stats.load.step_times.extend_steps:
            self.fitted = stats.load.step_times


def share_times(loads: Collection[ReplicaLoad]) -> None:
    """Give all replicas the mean of the models that any of them has fitted.

    They run on equal devices, so what differs between their models is noise, which would outweigh most prefixes; and a
    replica without a model would look better or worse than it is.
    """
    fitted = [load.fitted for load in loads if load.fitted is not None]
    if not fitted:
        return
    names = ("step", "row", "context", "extend", "token", "pair", "error")
    means = {name: sum(getattr(each, name) for each in fitted) / len(fitted) for name in names}
    counts = {name: sum(getattr(each, name) for each in fitted) for name in ("decode_steps", "extend_steps")}
    times = StepTimes(**means, **counts)
    for load in loads:
        load.times = times
