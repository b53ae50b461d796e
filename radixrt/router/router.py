"""`Router`: requests in, replicas out. Sans-io: callers pass messages and `now`, in seconds, and send what it returns.

A request is bound to the replica with the lowest price when it arrives (`placement.py`), and sent once that replica has
few prompts ahead (`replica_load.py`). Until then it waits here, and goes to another replica that becomes idle if it is
cheaper there. So what is sent is soon computed, and what is not can still be moved.

When a replica dies, its requests go on elsewhere from the tokens that came back (`TokenizedReq.resume_ids`); one that
was open at two deaths ends with an error, because it may be their cause. A replica that is silent for `stall_s` while
it has requests is *fenced*: it counts as dead, and its messages are dropped until it has been told to forget
everything. Each life of a replica has an epoch, with which its messages come.

Every request has exactly one finish.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import msgspec

from radixrt.messages.cache_events import CacheAck, CacheEvents, WatchCacheReq
from radixrt.messages.parts import FINISH_ABORT, FINISH_ERROR, Finish, FinishError, Timings, Usage
from radixrt.messages.scheduler import AbortReq, ReleaseReq, Reset, TokenBatch, TokenDelta, TokenizedReq
from radixrt.messages.scheduler_stats import SchedulerStats
from radixrt.messages.wire import pack_i32
from radixrt.router.placement import Placement
from radixrt.router.refusals import full_queue, long_wait
from radixrt.router.replica_load import ReplicaInfo, ReplicaLoad, share_times
from radixrt.router.routed_request import Routable, RoutedRequest
from radixrt.scheduler.output_lengths import OutputLengths

TOKENIZER = -1
"""Target of what goes back to the tokenizer."""
MAX_DEATHS = 2
MAX_TICK_S = 1.0
"""A longer time between two ticks means that the router itself did not run."""


class Send(NamedTuple):
    """Message to send.

    Attributes:
        target: a replica, or TOKENIZER.
        epoch: life of the replica that it is for; 0 for the tokenizer.
    """

    target: int
    epoch: int
    message: Routable | AbortReq | ReleaseReq | WatchCacheReq | CacheAck | TokenBatch | Reset


class Router:
    """See the module's docstring.

    Args:
        context_length: longest sequence, in tokens.
        request_timeout_s: timeout of requests that bring none.
        max_queue_wait_s: longest predicted wait of a request that is not refused; None: its timeout bounds it.
        max_queued_requests: number of requests that may wait here.
        stall_s: see the module's docstring.
        seed: seed of the seeds given to requests that bring none, so that they go on elsewhere with the same draws.
        first_epoch: epoch of the first replica; above every epoch of an earlier router.
        placement: without replicas; default: a new `Placement`.

    Attributes:
        unbound: open requests that wait because no replica takes new ones.
    """

    def __init__(
        self, *, context_length: int, request_timeout_s: float = 600.0, max_queue_wait_s: float | None = None,
        max_queued_requests: int = 1_000_000, stall_s: float = 4.0, seed: int = 0, first_epoch: int = 1,
        placement: Placement | None = None,
    ) -> None:  # fmt: skip
        self.placement = placement or Placement()
        self.open: dict[str, RoutedRequest] = {}
        self._context_length = context_length
        self._timeout_s = request_timeout_s
        self._max_queue_wait_s = max_queue_wait_s
        self._max_queued = max_queued_requests
        self._stall_s = stall_s
        self._seeds = random.Random(seed)
        self._outputs = OutputLengths()
        self.unbound: dict[str, RoutedRequest] = {}
        self._acks: dict[int, int] = {}
        self._next_seq = 0
        self._next_epoch = first_epoch
        self._outgoing: list[Send] = []
        self._ticked_at = float("inf")

    def take(self) -> list[Send]:
        """Return the messages to send since the last call, in order."""
        taken, self._outgoing = self._outgoing, []
        return taken

    # --- replicas ---

    def add_replica(self, replica: int, info: ReplicaInfo, now: float, *, takes_new: bool = True) -> int:
        """Add a replica without requests; returns its epoch."""
        load = self.placement.loads[replica] = ReplicaLoad(info, self._next_epoch, now)
        load.is_draining = not takes_new
        self._next_epoch += 1
        share_times(self.placement.loads.values())
        self.placement.index.add(replica)
        self._send(replica, WatchCacheReq(usage=False))
        self._bind_all(now)
        return load.epoch

    def drain(self, replica: int, now: float) -> None:
        """Give a replica no new requests, and those that it does not have yet to others."""
        load = self.placement.loads[replica]
        load.is_draining = True
        self._rebind(load, now)

    def resume(self, replica: int, now: float) -> None:
        """Give a replica that was drained new requests again."""
        self.placement.loads[replica].is_draining = False
        self._bind_all(now)

    def died(self, replica: int, now: float) -> None:
        """Forget a replica; its requests go on elsewhere."""
        load = self.placement.loads.pop(replica)
        if not load.is_fenced:  # a fenced one has been forgotten already
            self.placement.index.drop(replica)
        self._acks.pop(replica, None)
        lost = list(load.open.values())
        self._rebind(load, now)
        for request in lost:
            request.deaths += 1
            request.resumed_ids += load.sampled.of(request.rid)
            request.booked, request.replica = (), None
            request.is_sent = request.has_started = False
            if request.is_aborted:
                self._finish(request, None)
            elif request.deaths >= MAX_DEATHS:
                self._finish(
                    request,
                    FinishError(
                        f"the request was open on {request.deaths} replicas that died, and is not sent to another one",
                        code="replica_lost",
                    ),
                )  # fmt: skip
            else:
                self._bind(request, now)
        self._share(now)

    def fence(self, replica: int, now: float) -> None:
        """Treat a silent replica as dead until it is heard again."""
        load = self.placement.loads[replica]
        self.died(replica, now)
        fenced = self.placement.loads[replica] = ReplicaLoad(load.info, 0, now)
        fenced.is_fenced, fenced.is_draining = True, load.is_draining

    def tick(self, now: float) -> dict[int, int]:
        """Do what time demands: fence silent replicas, end overdue requests, acknowledge events; return the number of
        requests that each fenced one had. Call it a few times a second: time in which it was not is no silence."""
        if now - self._ticked_at > MAX_TICK_S:
            for load in self.placement.loads.values():
                load.heard_at += now - self._ticked_at
        self._ticked_at = now
        loads = self.placement.loads.items()
        silent = {n: len(each.open) + len(each.queue) for n, each in loads if each.open and self.is_silent(n, 0.0, now)}
        for replica in silent:
            self.fence(replica, now)
        for replica, seq in self._acks.items():
            self._send(replica, CacheAck(seq))
        self._acks.clear()
        waiting = [request for load in self.placement.loads.values() for request in load.queue]
        for request in [*waiting, *self.unbound.values()]:
            if request.deadline <= now:
                message = f"the request's deadline passed after {now - request.arrived_at:.1f} s"
                self._finish(request, FinishError(message, code="timeout", status=408))
        self._share(now)
        return silent

    def is_silent(self, replica: int, since: float, now: float) -> bool:
        """Return True if a replica that is not fenced has said nothing for too long, counted from `since` at least."""
        load = self.placement.loads[replica]
        return not load.is_fenced and now - max(since, load.heard_at) > self._stall_s

    # --- requests ---

    def submit(self, message: Routable, now: float) -> None:
        """Take a request; one that cannot be served gets its error finish instead."""
        if message.rid in self.open:
            self._refuse(message, FinishError(f"request id {message.rid!r} is in use", param="rid", status=400))
            return
        if isinstance(message, TokenizedReq) and message.sampling.seed is None and message.sampling.temperature:
            sampling = msgspec.structs.replace(message.sampling, seed=self._seeds.getrandbits(63))
            message = msgspec.structs.replace(message, sampling=sampling)
        self._next_seq += 1
        request = RoutedRequest(
            message, self._next_seq, self.placement.program_seq(message.program, self._next_seq), now,
            max_len=self._context_length, timeout_s=self._timeout_s if message.timeout_s is None else message.timeout_s,
        )  # fmt: skip
        chosen = self.placement.choose(request, self._expected(request))
        error = self._queue_error(request, chosen)
        if error is not None:
            self._refuse(message, error)
            return
        self.open[request.rid] = request
        self._bind_to(request, chosen, now)

    def abort(self, message: AbortReq) -> None:
        """End a request in whatever state it is; an unknown one does nothing."""
        request = self.open.get(message.rid)
        if request is None:
            return
        if request.is_sent and request.replica is not None:
            request.is_aborted = True
            self._send(request.replica, message)
        else:
            self._finish(request, None)

    def release(self, message: ReleaseReq) -> None:
        """Pass the end of a program, or of a branch, on to the replicas that served it."""
        for replica in self.placement.released(message.program, message.branch):
            if replica in self.placement.loads:
                self._send(replica, message)

    # --- replicas' messages ---

    def receive(self, replica: int, epoch: int, message: TokenBatch | CacheEvents | SchedulerStats, now: float) -> None:
        """Take a message of a replica; one of an earlier epoch is dropped."""
        load = self.heard(replica, epoch, now)
        if load is None:
            return
        if isinstance(message, TokenBatch):
            self._take_tokens(load, message, now)
        elif isinstance(message, SchedulerStats):
            load.reported(message)
            share_times(self.placement.loads.values())
            self._fill(replica, load, now)
        elif self.placement.index.apply(replica, message):
            self._acks[replica] = message.seq
        else:
            self._send(replica, WatchCacheReq(usage=False))

    def heard(self, replica: int, epoch: int, now: float) -> ReplicaLoad | None:
        """Note a sign of life of a replica; returns its load if the epoch is its present one."""
        load = self.placement.loads.get(replica)
        if load is not None and load.is_fenced:
            self._rejoin(replica, load, now)
            return None
        if load is None or epoch != load.epoch:
            return None
        load.heard_at = now
        return load

    def _rejoin(self, replica: int, load: ReplicaLoad, now: float) -> None:
        """Let a fenced replica, which has just been heard, begin a new life."""
        del self.placement.loads[replica]
        epoch = self._next_epoch
        self._outgoing.append(Send(replica, epoch, Reset()))
        self.add_replica(replica, load.info, now, takes_new=not load.is_draining)

    def _take_tokens(self, load: ReplicaLoad, batch: TokenBatch, now: float) -> None:
        """Pass output on, and count it."""
        opened, sampled = load.open, load.sampled
        ended = False
        if batch.rids:
            for rid in sampled.step(batch.rids, batch.token_ids):
                load.started(opened[rid])
        for i, delta in enumerate(batch.deltas):
            request = opened[delta.rid]
            if delta.finish is None:
                if sampled.extend(delta.rid, delta.token_ids):
                    load.started(request)
                continue
            ended = True
            if request.sent_at > request.arrived_at and delta.timings is not None:
                waited = delta.timings.queue_s + request.sent_at - request.arrived_at
                timings = msgspec.structs.replace(delta.timings, queue_s=waited)
                batch.deltas[i] = msgspec.structs.replace(delta, timings=timings)
            self._close(request, load)
            if delta.usage is not None and delta.finish.error is None and request.arrival.max_output:
                self._outputs.ended(request.arrival.max_output, delta.usage.completion_tokens)
        self._outgoing.append(Send(TOKENIZER, 0, batch))
        if ended or load.queue.tokens or not load.unstarted_rows:
            self._share(now)

    # --- binding and sending ---

    def _expected(self, request: RoutedRequest) -> float:
        most = request.arrival.max_output
        return self._outputs.expected(most, request.num_resumed) if most else 0.0

    def _queue_error(self, request: RoutedRequest, chosen: int | None) -> FinishError | None:
        queued = len(self.unbound) + sum(load.queue.size for load in self.placement.loads.values())
        if queued >= self._max_queued:
            wait = None if chosen is None else self.placement.predicted_wait_s(request, chosen)
            return full_queue(self._max_queued, wait)
        if chosen is None or not self.placement.loads[chosen].queue.size:
            return None
        wait = self.placement.predicted_wait_s(request, chosen)
        return long_wait(request, self.placement.loads[chosen], wait, self._max_queue_wait_s)

    def _bind(self, request: RoutedRequest, now: float) -> None:
        self._bind_to(request, self.placement.choose(request, self._expected(request)), now)

    def _bind_to(self, request: RoutedRequest, replica: int | None, now: float) -> None:
        """Bind a request, and send it if the replica has room and nothing waits before it."""
        request.replica = replica
        if replica is None:
            self.unbound[request.rid] = request
            return
        load = self.placement.loads[replica]
        if not load.queue.size and load.takes(request, now):
            self._send_request(request, replica, load, now)
        else:
            load.queue.add(request)
            self._fill(replica, load, now)  # it may go before those that wait

    def _bind_all(self, now: float) -> None:
        """Bind what waits for any replica, and let a replica that has become ready take from others."""
        waiting, self.unbound = list(self.unbound.values()), {}
        for request in waiting:
            self._bind(request, now)
        self._share(now)

    def _rebind(self, load: ReplicaLoad, now: float) -> None:
        """Bind everything in a replica's queue anew."""
        for request in list(load.queue):
            load.queue.remove(request)
            self._bind(request, now)

    def _share(self, now: float) -> None:
        """Send queued requests to the replicas with room, their own first, then those of others that are cheaper
        there."""
        loads = self.placement.loads
        if not any(load.queue.size for load in loads.values()):
            return
        for replica, load in loads.items():
            self._fill(replica, load, now)
        for replica, load in loads.items():
            while load.takes_new and not load.queue.size and load.has_room:
                request = self.placement.bargain(replica, [r for r, other in loads.items() if other.queue.size], now)
                if request is None or request.replica is None:
                    break
                loads[request.replica].queue.remove(request)
                request.work = self.placement.work(request, replica)
                self._bind_to(request, replica, now)

    def _fill(self, replica: int, load: ReplicaLoad, now: float) -> None:
        """Send a replica's queued requests while it takes them."""
        while (request := load.next(now)) is not None:
            load.queue.remove(request)
            request.work = self.placement.work(request, replica)
            self._send_request(request, replica, load, now)

    def _send_request(self, request: RoutedRequest, replica: int, load: ReplicaLoad, now: float) -> None:
        request.is_sent = True
        request.sent_at = now
        hit = request.work.length - request.work.miss
        request.booked = self.placement.index.book(replica, request.prefix, hit)
        self.placement.went(request.message.program, replica)
        if not load.open:
            load.heard_at = now  # it had nothing to say before
        load.sent(request)
        self._send(replica, request.resumed(now))
        if load.queue.size:
            self.placement.advance(replica, request.booked)

    def _send(self, replica: int, message: Routable | AbortReq | ReleaseReq | WatchCacheReq | CacheAck) -> None:
        self._outgoing.append(Send(replica, self.placement.loads[replica].epoch, message))

    # --- ends ---

    def _close(self, request: RoutedRequest, load: ReplicaLoad | None) -> None:
        """Forget a request that has its finish."""
        del self.open[request.rid]
        if load is not None and request.is_sent and request.replica is not None:
            self.placement.index.release(request.replica, request.booked)
            load.ended(request)

    def _finish(self, request: RoutedRequest, error: FinishError | None) -> None:
        """End a request that no replica has, with an error or as aborted."""
        if request.replica is None:
            self.unbound.pop(request.rid, None)
        elif not request.is_sent and request.replica in self.placement.loads:
            self.placement.loads[request.replica].queue.remove(request)
        self._close(request, None)
        usage = Usage(request.length - request.num_resumed, request.num_resumed)
        self._write(request.rid, Finish(FINISH_ABORT) if error is None else Finish(FINISH_ERROR, error=error), usage)

    def _refuse(self, message: Routable, error: FinishError) -> None:
        self._write(message.rid, Finish(FINISH_ERROR, error=error), Usage())

    def _write(self, rid: str, finish: Finish, usage: Usage) -> None:
        delta = TokenDelta(rid, pack_i32([]), finish=finish, usage=usage, timings=Timings())
        self._outgoing.append(Send(TOKENIZER, 0, TokenBatch([delta])))
