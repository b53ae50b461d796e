"""`Fleet`: N simulated replicas behind a router, on one simulated clock.

Messages between router and replicas take `lag_s`; what a replica reports of its cache and its load takes `event_lag_s`
more. Everything else is the real code: scheduler, radix cache and router.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.fleet.baselines import FleetRouter
from benchmarks.fleet.device import Device
from benchmarks.fleet.programs import Call, Program
from benchmarks.fleet.replica import END_TOKEN, SimulatedReplica
from radixrt.mem_cache.allocator import Int32Array
from radixrt.mem_cache.granules import GRANULE_TOKENS
from radixrt.messages.peers import PrefixAsk, PrefixComing, PrefixPages
from radixrt.messages.request import Request
from radixrt.messages.scheduler import TokenBatch
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.router.router import TOKENIZER
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.prefix_index import common_len

TICK_S = 0.1
STATS_INTERVAL_S = 0.25
EVENTS_BETWEEN_REPORTS = 256
UNKNOWN_MAX_TOKENS = 4096
"""max_tokens of a request whose output ends before that."""


@dataclass(slots=True)
class OpenCall:
    """A request on its way."""

    program: OpenProgram
    sent_at: float


@dataclass
class Incoming:
    """A prefix on its way to a replica.

    Attributes:
        tokens: tokens of the request that waits for it; None before the request has arrived.
        waiting: the request, and others with the same prefix.
    """

    tokens: Int32Array | None = None
    waiting: list[Request] = field(default_factory=list)


@dataclass(slots=True)
class OpenProgram:
    """A program that has begun; `pending` calls have to end before it goes on."""

    name: str
    began_at: float
    steps: Iterator[list[Call]]
    pending: int = 0
    calls: int = 0


@dataclass
class Outcome:
    """Measurements of a run. Times are in seconds.

    Attributes:
        ttft: from a request's arrival at the router until its first token has come back there.
        request_s: until its finish.
        program_s: from the first call of a program until the end of its last.
        gaps: seconds between two tokens of a request, in the order of the later ones; only if they are measured.
        refused: number of requests that ended with an error.
        elapsed_s: simulated time from the first arrival to the last finish.
    """

    ttft: list[float] = field(default_factory=list)
    request_s: list[float] = field(default_factory=list)
    program_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    gaps: list[float] = field(default_factory=list)
    refused: int = 0
    elapsed_s: float = 0.0


class Fleet:
    """See the module's docstring; `run` plays programs to their end.

    Args:
        router: of as many replicas.
        measures_gaps: see `Outcome.gaps`.
    """

    def __init__(
        self, device: Device, router: FleetRouter, replicas: int, *, lag_s: float, event_lag_s: float, seed: int = 0,
        measures_gaps: bool = False,
    ) -> None:  # fmt: skip
        self._token_at: dict[str, float] | None = {} if measures_gaps else None
        self._outputs: dict[str, list[int]] = {}
        self.replicas = [SimulatedReplica(device, self._outputs, seed * 1000 + i) for i in range(replicas)]
        self.router = router
        self.outcome = Outcome()
        self._lag_s = lag_s
        self._event_lag_s = event_lag_s
        self._now = 0.0
        self._order = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._calls: dict[str, OpenCall] = {}
        self._first_at: dict[str, float] = {}
        self._programs = 0
        self._stats_at = [0.0] * replicas
        self._epochs = [0] * replicas
        self._move_s = device.move_s
        self._incoming: list[dict[str, Incoming]] = [{} for _ in range(replicas)]  # by request
        self._link_free_at = [0.0] * replicas
        self._sampling: dict[tuple[int, bool], SamplingParams] = {}

    def run(self, programs: Iterable[Program], progress: Callable[[int], None] = lambda ended: None) -> Outcome:
        """Play all programs until the last has ended.

        Args:
            programs: in the order of their times.
            progress: called with the number of requests that have ended since its last call.
        """
        arrivals = iter(programs)
        self._begin_next(arrivals)
        self._at(0.0, self._tick)
        queue, reported = self._queue, 0
        while queue:
            for _ in range(min(len(queue), EVENTS_BETWEEN_REPORTS)):
                self._now, _, action, args = heapq.heappop(queue)
                action(*args)
            ended = len(self.outcome.request_s) + self.outcome.refused
            if ended - reported >= 1000:
                progress(ended - reported)
                reported = ended
        progress(len(self.outcome.request_s) + self.outcome.refused - reported)
        return self.outcome

    def _at(self, at: float, action: Callable[..., None], *args: object) -> None:
        self._order += 1
        heapq.heappush(self._queue, (at, self._order, action, args))

    def _tick(self) -> None:
        self.router.tick(self._now)
        self._route()
        if self._programs:
            self._at(self._now + TICK_S, self._tick)

    # --- programs ---

    def _begin_next(self, arrivals: Iterator[Program]) -> None:
        program = next(arrivals, None)
        if program is not None:
            self._programs += 1
            self._at(program.at, self._begin, program, arrivals)

    def _begin(self, program: Program, arrivals: Iterator[Program]) -> None:
        self._begin_next(arrivals)
        self._continue(OpenProgram(program.name, self._now, program.steps))

    def _continue(self, program: OpenProgram) -> None:
        calls = next(program.steps, None)
        if calls is None:
            self._programs -= 1
            self.outcome.program_s.append(self._now - program.began_at)
            return
        program.pending = len(calls)
        for call in calls:
            if call.not_before > self._now:
                self._at(call.not_before, self._send, program, call)
            else:
                self._send(program, call)

    def _send(self, program: OpenProgram, call: Call) -> None:
        rid = f"{program.name}.{program.calls}"
        program.calls += 1
        output = call.output.tolist()
        if not call.has_known_end:
            output[-1] = END_TOKEN
        self._outputs[rid] = output
        self._calls[rid] = OpenCall(program, self._now)
        message = Request.generate(rid, pack_i32(call.prompt), self._sampling_of(call), program=call.hint)
        self.router.submit(message, self._now)
        self._route()

    def _sampling_of(self, call: Call) -> SamplingParams:
        limit = len(call.output) if call.has_known_end else UNKNOWN_MAX_TOKENS
        key = (limit, call.has_known_end)
        if key not in self._sampling:
            self._sampling[key] = SamplingParams(max_tokens=limit, temperature=0.0, ignore_eos=call.has_known_end)
        return self._sampling[key]

    # --- messages ---

    def _route(self) -> None:
        for target, epoch, message in self.router.take():
            if target == TOKENIZER:
                if isinstance(message, TokenBatch):
                    self._deliver(message)
                continue
            at = self._now + self._lag_s
            self._at(at, self._arrive, target, epoch, message)

    def _arrive(self, target: int, epoch: int, message: Any) -> None:
        self._epochs[target] = epoch
        replica = self.replicas[target]
        if isinstance(message, PrefixComing):
            self._incoming[target][message.rid] = Incoming()
            return
        if isinstance(message, PrefixAsk):
            self._answer_peer(target, epoch, message)
            return
        if isinstance(message, PrefixPages):
            self._pull(target, message)
            return
        if isinstance(message, Request) and (coming := self._prefix_of(target, message)) is not None:
            coming.waiting.append(message)
            return
        replica.receive(message, self._now)
        if isinstance(message, Request):
            self._submit(target)
        else:
            self._report(target)

    # --- prefixes of other replicas ---

    def _prefix_of(self, target: int, message: Request) -> Incoming | None:
        """Return the prefix on its way that a request waits for."""
        incoming, tokens = self._incoming[target], message.tokens(0)
        if message.rid in incoming:
            incoming[message.rid].tokens = tokens
            return incoming[message.rid]
        cached = self.replicas[target].scheduler.kv.cache.match_len(tokens, "")
        for each in incoming.values():
            if each.tokens is not None and common_len(each.tokens, tokens) >= cached + GRANULE_TOKENS:
                return each
        return None

    def _answer_peer(self, source: int, epoch: int, message: PrefixAsk) -> None:
        """Answer how much of a prefix a replica has, after the steps before which it cannot be copied."""
        replica, tokens = self.replicas[source], unpack_i32(message.token_ids)
        length = replica.scheduler.kv.cache.match_len(tokens, message.namespace)
        found = PrefixPages(message.rid, tokens[: length - length % GRANULE_TOKENS].tobytes(), message.namespace)
        self._at(max(self._now, replica.free_at) + self._lag_s, self._receive, source, epoch, found)

    def _pull(self, target: int, message: PrefixPages) -> None:
        """Begin a transfer; transfers to one replica follow each other."""
        tokens = unpack_i32(message.token_ids)
        cached = self.replicas[target].scheduler.kv.cache.match_len(tokens, message.namespace)
        begin = max(self._now, self._link_free_at[target])
        end = self._link_free_at[target] = begin + max(len(tokens) - cached, 0) * self._move_s
        self._at(end, self._pulled, target, message.rid, len(tokens))

    def _pulled(self, target: int, rid: str, length: int) -> None:
        replica = self.replicas[target]
        if length:
            replica.fetched[rid] = length
        for request in self._incoming[target].pop(rid).waiting:
            replica.receive(request, self._now)
        self._submit(target)

    def _submit(self, target: int) -> None:
        replica = self.replicas[target]
        was_idle = replica.ends_at == float("inf")
        if replica.submit(self._now) and was_idle:
            self._at(replica.ends_at, self._answer, target)

    def _answer(self, target: int) -> None:
        replica = self.replicas[target]
        answer = replica.reply(self._now)
        replica.submit(self._now)
        if replica.ends_at != float("inf"):
            self._at(replica.ends_at, self._answer, target)
        for rid in answer.first:
            self._first_at[rid] = self._now + self._lag_s
        if answer.tokens is not None:
            self._at(self._now + self._lag_s, self._receive, target, self._epochs[target], answer.tokens)
        self._report(target)

    def _report(self, target: int) -> None:
        """Send what the replica tells of its cache, and now and then its load."""
        replica, at = self.replicas[target], self._now + self._lag_s + self._event_lag_s
        messages: list[object] = list(replica.events(self._now))
        if self._now >= self._stats_at[target]:
            self._stats_at[target] = self._now + STATS_INTERVAL_S
            messages.append(replica.stats(self._now))
        for message in messages:
            self._at(at, self._receive, target, self._epochs[target], message)

    def _receive(self, replica: int, epoch: int, message: object) -> None:
        self.router.receive(replica, epoch, message, self._now)
        self._route()

    def _measure_gaps(self, batch: TokenBatch, token_at: dict[str, float]) -> None:
        for rid in (*batch.rids, *(delta.rid for delta in batch.deltas if delta.token_ids)):
            if rid in token_at:
                self.outcome.gaps.append(self._now - token_at[rid])
            token_at[rid] = self._now

    def _deliver(self, batch: TokenBatch) -> None:
        outcome = self.outcome
        if self._token_at is not None:
            self._measure_gaps(batch, self._token_at)
        for delta in batch.deltas:
            if delta.finish is None:
                continue
            call = self._calls.pop(delta.rid)
            del self._outputs[delta.rid]
            first_at = self._first_at.pop(delta.rid, None)
            outcome.elapsed_s = self._now
            if delta.finish.error is not None or first_at is None or delta.usage is None:
                outcome.refused += 1
            else:
                outcome.ttft.append(first_at - call.sent_at)
                outcome.request_s.append(self._now - call.sent_at)
                outcome.prompt_tokens += delta.usage.prompt_tokens
                outcome.cached_tokens += delta.usage.cached_tokens
                outcome.output_tokens += delta.usage.completion_tokens
            call.program.pending -= 1
            if not call.program.pending:
                self._continue(call.program)
