"""`LoadPredictor`: predicts the time that a new request would wait in the queue, and measures the load (`LoadStats`).

The predictor estimates the remaining work of the running and the waiting requests, and simulates the queue
(`QueueForecast`). A forecast takes about three microseconds per open request, so a forecast is reused for REFRESH_S
seconds, and requests that arrive meanwhile are appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from radixrt.config import SchedulerConfig
from radixrt.messages.images import RowImage
from radixrt.messages.request import Request
from radixrt.messages.scheduler_stats import LoadStats
from radixrt.messages.wire import Int32Array
from radixrt.parts.overload.forecast import QueueForecast, Work
from radixrt.parts.overload.group_rows import GroupRows
from radixrt.parts.overload.output_lengths import OutputLengths
from radixrt.parts.overload.queued_prompts import QueuedPrompts, prefix_hashes
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.new_token_ratio import CLIP_TOKENS, NewTokenRatio
from radixrt.scheduler.pacing import Pacing
from radixrt.scheduler.part import Parts
from radixrt.scheduler.req import Req, ReqState
from radixrt.scheduler.request_table import RequestTable
from radixrt.scheduler.step_time import StepTimeFit

REFRESH_S = 0.1
MIN_STEPS = 8
"""Number of decode steps that predictions need."""
NEW_PROMPTS = 64
"""Maximum number of prompts that are looked up in the cache for a forecast. Further prompts are assumed to have the
same share of cached tokens as the prompts before them."""


_NO_IDS = np.empty(0, np.int32)
_NO_WORK = Work(0, 0, 0, 0)


class Arrival(NamedTuple):
    """Description of a new request.

    Attributes:
        ids: int32, input tokens that may come from the cache.
        new_tokens: number of input tokens that must be computed.
        max_output: maximum number of output tokens.
        group: the request, if it has several rows; `ids` are those of the first one.
        tenant: name of the request's API key; "" for none.
        images: images of all rows; see `Request.images`.
    """

    rid: str
    ids: Int32Array
    namespace: str
    new_tokens: int
    max_output: int
    priority: int
    timeout_s: float
    group: Request | None = None
    tenant: str = ""
    images: Sequence[RowImage] = ()


def arrival_of(message: Request, max_len: int, timeout_s: float) -> Arrival:
    """Return the arrival of a request.

    Args:
        max_len: length of the longest sequence.
        timeout_s: the request's timeout, or the default.
    """
    ids, sampling, envelope = message.tokens(0), message.sampling, message.envelope
    max_output = 0
    if sampling is not None:
        longest = max_len - len(ids)
        max_output = longest if sampling.max_tokens is None else min(sampling.max_tokens, longest)
    reusable = ids[: message.first_read(0)]
    new_tokens = message.num_tokens - len(reusable)
    return Arrival(
        message.rid,
        reusable,
        envelope.cache_salt,
        new_tokens,
        max_output,
        envelope.priority,
        timeout_s,
        message if len(message.rows) > 1 else None,
        envelope.tenant,
        message.images,
    )


class Prediction(NamedTuple):
    """Predicted times of a new request.

    Attributes:
        wait_s: seconds until the request is admitted.
        service_s: seconds from admission to the end.
        work: the request's work.
        following: forecast with the request at the end of the queue.
        hashes: `prefix_hashes` of the input; empty if the cache shares nothing.
        admitted_s: seconds from the time of the forecast until the request is admitted.
    """

    wait_s: float
    service_s: float
    work: Work
    following: QueueForecast
    hashes: list[int]
    admitted_s: float


def _by_arrival(waiting: list[Req]) -> list[Req]:
    return sorted(waiting, key=lambda req: (-req.priority, req.seq))


class LoadPredictor:
    """See the module's docstring."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVManager,
        requests: RequestTable,
        ratio: NewTokenRatio,
        step_time: StepTimeFit,
        pacing: Pacing,
        outputs: OutputLengths,
        parts: Parts,
    ) -> None:
        self._config = config
        self._kv = kv
        self._requests = requests
        self._ratio = ratio
        self._step_time = step_time
        self._pacing = pacing
        self._outputs = outputs
        self._parts = parts
        self._prompts = QueuedPrompts()
        self._works: dict[str, Work] = {}  # of the requests that wait, as far as they are measured
        self._groups: dict[str, GroupRows] = {}  # of the open requests with several rows
        self._forecast: QueueForecast | None = None  # the whole queue
        self._built_at = 0.0
        # Of each tenant, (priority, time of its last admission), highest priority first.
        self._levels: dict[str, list[tuple[int, float]]] = {}
        self._first_s = 0.0  # seconds until the first request of the queue is admitted
        self._queued = _NO_WORK  # sums over the queue

    @property
    def can_predict(self) -> bool:
        """True if enough steps and requests have ended for predictions."""
        return self._step_time.times.decode_steps >= MIN_STEPS and self._outputs.is_known

    def predict(self, arrival: Arrival, now: float, compiling: int) -> Prediction:
        """Predict when a request would be admitted.

        Args:
            compiling: number of requests that will join the queue once their grammar is compiled.
        """
        forecast = self._current(now, compiling)
        hashes = self._hashes(arrival.ids, arrival.namespace)
        cached = max(self._kv.cache.match_len(arrival.ids, arrival.namespace), self._prompts.shared_len(hashes))
        length = len(arrival.ids) + arrival.new_tokens
        if arrival.group is None:
            work = self._work(length, cached, arrival.max_output, sampled=0)
        else:
            work = self._group_work(arrival.group, 0, cached)
        if arrival.images:
            inputs = (each(arrival.images, arrival.namespace, cached) for each in self._parts.input_seconds)
            work = work._replace(inputs_s=sum(inputs))
        following = forecast.with_next(work)
        wait = self._wait_s(arrival, following.clock, following.clock - forecast.clock)
        step_s = max(self._step_time.recent_turn_s, following.step_s)
        service_s = forecast.prompt_seconds(work) + step_s * work.output
        return Prediction(max(wait - (now - self._built_at), 0.0), service_s, work, following, hashes, wait)

    def joined(self, arrival: Arrival, prediction: Prediction) -> None:
        """Append a request that joins the queue to the forecast. A request that overtakes others by its priority is
        only part of the next forecast."""
        self._remember(arrival.rid, prediction.work, prediction.hashes)
        levels = self._levels.setdefault(arrival.tenant, [])
        if levels and arrival.priority > levels[-1][0]:
            return
        self._forecast = prediction.following
        levels.append((arrival.priority, prediction.admitted_s))

    def _wait_s(self, arrival: Arrival, last_s: float, own_s: float) -> float:
        """Return the seconds from the time of the forecast until a request is admitted.

        Args:
            last_s: seconds until its admission at the end of the queue.
            own_s: seconds by which its own admission makes the queue longer.
        """
        levels = self._levels.get(arrival.tenant, [])
        before = [at for priority, at in levels if priority >= arrival.priority]
        if len(self._levels) > 1 or (self._levels and not levels):
            # Tenants take turns: after the last request of its own tenant, the request waits for one round.
            return max(before) + own_s * len(self._levels) if before else self._first_s
        if levels and arrival.priority > levels[-1][0]:
            return max(before, default=0.0)
        return last_s

    def next_admission_s(self, now: float, compiling: int) -> float:
        """Return the predicted seconds until the queue has one request fewer."""
        self._current(now, compiling)
        return max(self._first_s - (now - self._built_at), 0.0)

    def stats(self, now: float, compiling: int) -> LoadStats:
        """Return the load. Predictions are 0 until enough steps and requests have ended."""
        times, active = self._step_time.times, self._requests.active
        if not self.can_predict:
            return LoadStats(step_times=self._step_time.turn_times)
        wait_s, queued = 0.0, _NO_WORK
        if self._requests.waiting or len(active) >= self._config.max_running_requests:
            wait_s = self.predict(Arrival("", _NO_IDS, "", 1, 1, 0, 0.0), now, compiling).wait_s
            queued = self._queued
        rows = max(len(active), 1)
        step_s = self._step_time.turn_times.seconds(rows, sum(req.kv.length for req in active))
        chunk = self._config.chunked_prefill_size
        return LoadStats(
            predicted_wait_s=wait_s,
            queued_tokens=int(queued.prefill),
            queued_output_tokens=int(queued.output),
            prefill_tokens_per_s=chunk / times.seconds(0, 0, chunk, chunk * chunk / 2),
            decode_tokens_per_s=rows / step_s,
            step_times=self._step_time.turn_times,
        )

    # --- the forecast ---

    def _current(self, now: float, compiling: int) -> QueueForecast:
        if self._forecast is None or now - self._built_at >= REFRESH_S:
            self._built_at = now
            self._forecast = self._build(compiling)
        return self._forecast

    def _build(self, compiling: int) -> QueueForecast:
        waiting = self._in_order()
        self._keep({req.rid for req in waiting})
        forecast = self._running()
        self._levels.clear()
        self._first_s = 0.0
        prefill = length = output = slots = 0.0
        unmeasured = NEW_PROMPTS
        for i, req in enumerate(waiting):
            work = self._works.get(req.rid)
            if work is None and unmeasured:
                unmeasured -= 1
                work = self._measure(req)
            elif work is None:
                work = self._work_of(req, cached=int(req.known_len * (1 - prefill / length)))
            clock = forecast.admit(work)
            if i == 0:
                self._first_s = clock
            levels = self._levels.setdefault(req.tenant, [])
            if levels and levels[-1][0] == req.priority:
                levels.pop()
            levels.append((req.priority, clock))
            prefill, length = prefill + work.prefill, length + work.length
            output, slots = output + work.output, slots + work.slots
        self._queued = Work(prefill, length, output, slots)
        if waiting:
            count = len(waiting)
            mean = Work(prefill / count, length / count, output / count, slots / count)
            for _ in range(compiling):
                forecast.admit(mean)
        return forecast

    def _in_order(self) -> list[Req]:
        """Return the waiting requests in the order of their arrival; with several tenants, in the order of turns."""
        waiting = self._requests.waiting
        turns = self._parts.whose_turn(self._config.chunked_prefill_size)
        return _by_arrival(waiting) if turns is None else list(turns.play(waiting, _by_arrival))

    def _running(self) -> QueueForecast:
        """Return a forecast with the running requests only. Because requests may share prefixes, all locked slots are
        divided among the requests in proportion to their lengths."""
        active, kv = self._requests.active, self._kv
        locked = kv.allocator.num_slots - kv.reachable_slots
        share = locked / max(sum(req.kv.length for req in active), 1)
        reserves = [self._ratio.reserve(req, req.kv.length) for req in active]
        forecast = QueueForecast(
            self._step_time.turn_times,
            max_rows=self._config.max_running_requests,
            chunk_tokens=self._pacing.chunk_tokens(self._config.chunked_prefill_size, self._step_time),
            free_slots=kv.reachable_slots - sum(reserves),
            begin_s=self._step_time.recent_s / 2 if active else 0.0,
        )
        for req, reserve in zip(active, reserves, strict=True):
            prefill = req.known_len - kv.computed_len(req) if req.state is ReqState.PREFILL else 0
            output = self._outputs.expected(req.max_len - req.prompt_len, req.seq_len - req.prompt_len)
            inputs_s = 0.0 if req.inputs is None else req.inputs.seconds(kv.computed_len(req))
            forecast.run(Work(prefill, req.known_len, output, share * req.kv.length + reserve, inputs_s=inputs_s))
        return forecast

    # --- work of one request ---

    def _measure(self, req: Req) -> Work:
        """Return the work of a waiting request, and store it for the next forecasts."""
        hashes = self._hashes(req.reusable_ids, req.namespace)
        work = self._work_of(req, max(self._kv.match_len(req), self._prompts.shared_len(hashes)))
        self._remember(req.rid, work, hashes)
        return work

    def _hashes(self, ids: Int32Array, namespace: str) -> list[int]:
        return prefix_hashes(ids, namespace) if self._kv.cache.shares else []

    def _work_of(self, req: Req, cached: int) -> Work:
        work = self._tokens_of(req, cached)
        return work if req.inputs is None else work._replace(inputs_s=req.inputs.seconds(cached))

    def _tokens_of(self, req: Req, cached: int) -> Work:
        if req.member is not None:
            group = self._requests.groups[req.member.group]
            if len(group.message.rows) > 1:
                return self._group_work(group.message, group.num_started - 1, cached)
        return self._work(req.known_len, cached, req.max_len - req.prompt_len, req.num_output)

    def _group_work(self, message: Request, first: int, cached: int) -> Work:
        """Return the work of the rows of a group from row `first` on.

        Args:
            cached: number of cached tokens of row `first`.
        """
        rows = self._groups.get(message.rid)
        if rows is None:
            namespace, cache = message.envelope.cache_salt, self._kv.cache
            rows = GroupRows(message, (lambda ids: cache.match_len(ids, namespace)) if cache.shares else None)
            self._groups[message.rid] = rows
        rest, length = rows.rest(first + 1), message.row_len(first)
        prefill = length - cached + rest.tokens
        pairs = (length - cached) * (length + cached) / 2 + rest.pairs
        # A row gives its slots back to the cache as soon as the row is computed.
        slots = min(prefill, self._config.chunked_prefill_size + rows.longest)
        return Work(prefill, length + rest.tokens, 0.0, slots, rest.rows + 1, pairs)

    def _work(self, length: int, cached: int, max_output: int, sampled: int) -> Work:
        prefill = length - cached
        return Work(
            prefill=prefill,
            length=length,
            output=self._outputs.expected(max_output, sampled),
            slots=prefill + int(min(max(max_output - sampled, 0), CLIP_TOKENS) * self._ratio.value),
        )

    def _remember(self, rid: str, work: Work, hashes: list[int]) -> None:
        self._works[rid] = work
        self._prompts.add(rid, hashes)

    def _keep(self, waiting: set[str]) -> None:
        """Forget the requests that have left the queue. Their prompts count as shared prefixes until PREFILL ends."""
        for rid in self._works.keys() - waiting:
            del self._works[rid]
        for rid in self._groups.keys() - self._requests.groups.keys():
            del self._groups[rid]
        prefill = [req for req in self._requests.active if req.state is ReqState.PREFILL]
        self._prompts.keep(waiting | {req.rid for req in prefill})
        for req in prefill:
            if req.rid not in self._prompts:
                self._prompts.add(req.rid, self._hashes(req.reusable_ids, req.namespace))
