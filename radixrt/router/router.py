"""`Router`: requests in, replicas out. Sans-io: callers pass messages and `now`, in seconds, and send the messages of
`Router.take`.

A request is *bound* to the replica with the lowest price when the request arrives (`placement.py`), and sent once that
replica has few prompts ahead (`replica_load.py`). Until then the request waits in the router, and moves to a replica
that becomes idle if the price is lower there. So a sent request is computed soon, and all other requests can move.

When a replica dies, its requests continue on other replicas from the tokens that came back (`Request.resume_ids`).
A request that was open at two deaths ends with an error, because the request may be the cause. A replica that is silent
for `stall_s` while requests are open there is *fenced*: the replica counts as dead, and the router drops its messages
until the replica has been told to forget everything. Each *life* of a replica has an epoch, which tags its messages.

A replica may compute a prompt for another one (`roles.py`): the request is sent there for its prompt alone, and bound
to a replica that answers once the prompt has been computed, or could not be.

Every request has exactly one finish.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from radixrt.messages.cache_events import CacheAck, CacheEvents, WatchCacheReq
from radixrt.messages.parts import (
    FINISH_ABORT,
    FINISH_ERROR,
    FINISH_TIMEOUT,
    Finish,
    FinishError,
    Timings,
    Usage,
    deadline_passed,
)
from radixrt.messages.peers import FromPeer, HandedOver, PrefixComing, PrefixPages, PrefixTaken, ToPeer
from radixrt.messages.request import Request
from radixrt.messages.scheduler import AbortReq, ReleaseReq, Reset, TokenBatch, TokenDelta
from radixrt.messages.scheduler_stats import SchedulerStats
from radixrt.messages.wire import pack_i32
from radixrt.parts.overload.output_lengths import OutputLengths
from radixrt.parts.overload.scheduler import MIN_WAIT_SHARE, SERVICE_MARGIN
from radixrt.router.placement import Placement
from radixrt.router.replica_load import ReplicaInfo, ReplicaLoad, share_times
from radixrt.router.routed_request import Prefill, RoutedRequest

TOKENIZER = -1
"""Target of messages to the tokenizer."""
MAX_DEATHS = 2
"""Number of deaths of replicas at which a request that was open there ends with an error."""
MAX_TICK_S = 1.0
"""A longer time between two ticks means that the router itself did not run."""


class Send(NamedTuple):
    """Message to send.

    Attributes:
        target: a replica, or TOKENIZER.
        epoch: life of the replica; 0 for the tokenizer.
    """

    target: int
    epoch: int
    message: Request | AbortReq | ReleaseReq | WatchCacheReq | CacheAck | TokenBatch | Reset | ToPeer


class Router:
    """See the module's docstring.

    Args:
        context_length: longest sequence, in tokens.
        request_timeout_s: timeout of requests without a timeout.
        max_queue_wait_s: requests with a longer predicted wait are refused; None: only the timeout bounds the wait.
        max_queued_requests: maximum number of requests that wait in the router.
        stall_s: see the module's docstring.
        seed: seed from which requests without a seed get one, so that they continue elsewhere with the same draws.
        first_epoch: epoch of the first replica; above every epoch of an earlier router.
        placement: without replicas; default: a new `Placement`.

    Attributes:
        open: requests without a finish, by id.
        unbound: open requests that wait because no replica takes new requests.
    """

    def __init__(
        self,
        *,
        context_length: int,
        request_timeout_s: float = 600.0,
        max_queue_wait_s: float | None = None,
        max_queued_requests: int = 1_000_000,
        stall_s: float = 4.0,
        seed: int = 0,
        first_epoch: int = 1,
        placement: Placement | None = None,
    ) -> None:
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
        self._acks: dict[tuple[int, str], int] = {}  # by replica and tier
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
        load = ReplicaLoad(info, self._next_epoch, now, replica)
        load.is_draining = not takes_new
        self._next_epoch += 1
        self.placement.add(load)
        share_times(self.placement.loads.values())
        self._send(replica, self.placement.watch())
        self._bind_all(now)
        return load.epoch

    def drain(self, replica: int, now: float) -> None:
        """Send a replica no new requests, and bind the requests of its queue to other replicas."""
        load = self.placement.loads[replica]
        load.is_draining = True
        self._rebind(load, now)

    def hand_over(self, replica: int) -> None:
        """Let other replicas copy the prefixes of a replica without requests that is about to be stopped."""
        order = self.placement.transfers.hand_over(replica)
        if order is not None:
            self._send(replica, order)

    def resume(self, replica: int, now: float) -> None:
        """Send a replica that was drained new requests again."""
        self.placement.loads[replica].is_draining = False
        self._bind_all(now)

    def died(self, replica: int, now: float) -> None:
        """Forget a replica; its requests continue on other replicas."""
        load = self.placement.loads.pop(replica)
        for target, answer in self.placement.transfers.left(replica):
            self._send(target, answer)
        if not load.is_fenced:  # the index forgot a fenced replica when it was fenced
            self.placement.drop(replica)
        self._acks = {key: seq for key, seq in self._acks.items() if key[0] != replica}
        lost = list(load.open.values())
        self._rebind(load, now)
        self._rebind_prefilled(replica, now)
        for request in lost:
            request.deaths += 1
            if not request.is_prefill:
                request.resumed_ids += load.sampled.of(request.rid)
            request.booked, request.replica = (), None
            self.placement.transfers.ended(request.rid)
            request.is_sent = request.has_started = request.is_prefill = False
            if request.is_aborted:
                self._finish(request, Finish(FINISH_ABORT))
            elif request.deaths >= MAX_DEATHS:
                message = f"the request was open on {request.deaths} replicas that died, and is not sent to another one"
                self._finish(request, Finish(FINISH_ERROR, error=FinishError(message, code="replica_lost")))
            else:
                self._bind(request, now)
        self._share(now)

    def fence(self, replica: int, now: float) -> None:
        """Treat a silent replica as dead until the router hears from it."""
        load = self.placement.loads[replica]
        self.died(replica, now)
        fenced = self.placement.loads[replica] = ReplicaLoad(load.info, 0, now, replica)
        fenced.is_fenced, fenced.is_draining = True, load.is_draining

    def tick(self, now: float) -> dict[int, int]:
        """Fence silent replicas, end overdue requests and acknowledge events. Call it a few times a second: a pause of
        the calls does not count as silence of the replicas.

        Returns:
            Number of requests that each replica which is fenced now had.
        """
        if now - self._ticked_at > MAX_TICK_S:
            for load in self.placement.loads.values():
                load.heard_at += now - self._ticked_at
        self._ticked_at = now
        loads = self.placement.loads.items()
        silent = {n: len(each.open) + len(each.queue) for n, each in loads if each.open and self.is_silent(n, 0.0, now)}
        for replica in silent:
            self.fence(replica, now)
        # One acknowledgement for all batches since the last tick.
        for (replica, tier), seq in self._acks.items():
            self._send(replica, CacheAck(seq, tier))
        self._acks.clear()
        waiting = [request for load in self.placement.loads.values() for request in load.queue]
        for request in [*waiting, *self.unbound.values()]:
            if request.deadline <= now:
                self._finish(request, _overdue(request, now))
        self._share(now)
        return silent

    def is_silent(self, replica: int, since: float, now: float) -> bool:
        """Return True if a replica has sent nothing for `stall_s` after `since`, and is not fenced."""
        load = self.placement.loads[replica]
        return not load.is_fenced and now - max(since, load.heard_at) > self._stall_s

    # --- requests ---

    def submit(self, message: Request, now: float) -> None:
        """Take a request. A request that cannot be served ends with an error at once."""
        if message.rid in self.open:
            self._refuse(message, FinishError(f"request id {message.rid!r} is in use", param="rid", status=400))
            return
        # A seed of its own lets the request continue on another replica with the same draws.
        if message.sampling is not None and message.sampling.seed is None and message.sampling.temperature:
            sampling = msgspec.structs.replace(message.sampling, seed=self._seeds.getrandbits(63))
            message = msgspec.structs.replace(message, sampling=sampling)
        self._next_seq += 1
        program_seq = self.placement.program_seq(message.envelope.program, self._next_seq)
        asked_s = message.envelope.timeout_s
        timeout_s = self._timeout_s if asked_s is None else asked_s
        request = RoutedRequest(
            message, self._next_seq, program_seq, now, max_len=self._context_length, timeout_s=timeout_s
        )
        chosen = self.placement.choose(request, self._expected(request))
        error = self._queue_error(request, chosen)
        if error is not None:
            self._refuse(message, error)
            return
        self.open[request.rid] = request
        self._bind_to(request, chosen, now)

    def abort(self, message: AbortReq) -> None:
        """End a request in any state; an unknown request id does nothing."""
        request = self.open.get(message.rid)
        if request is None:
            return
        if request.is_sent and request.replica is not None:
            request.is_aborted = True
            self._send(request.replica, message)
        else:
            self._finish(request, Finish(FINISH_ABORT))

    def release(self, message: ReleaseReq) -> None:
        """Pass the end of a program, or of a branch, on to the replicas that served the program."""
        for replica in self.placement.released(message.program, message.branch):
            if replica in self.placement.loads:
                self._send(replica, message)

    # --- replicas' messages ---

    def receive(
        self, replica: int, epoch: int, message: TokenBatch | CacheEvents | SchedulerStats | FromPeer, now: float
    ) -> None:
        """Take a message of a replica; a message of an earlier epoch is dropped."""
        load = self.heard(replica, epoch, now)
        if load is None:
            return
        if isinstance(message, TokenBatch):
            self._take_tokens(load, message, now)
        elif isinstance(message, SchedulerStats):
            load.reported(message)
            share_times(self.placement.loads.values())
            self._fill(replica, load, now)
        elif isinstance(message, PrefixPages):
            target = self.placement.transfers.target(replica, message)
            if target in self.placement.loads:
                source = -1 if message.rid else replica
                self._send(target, msgspec.structs.replace(message, source=source))
        elif isinstance(message, HandedOver):
            self.placement.transfers.handed_over(replica)
        elif isinstance(message, PrefixTaken):
            self.placement.transfers.taken(message.source)
        elif self.placement.apply(replica, message):
            self._acks[replica, message.tier] = message.seq
        else:
            self._send(replica, self.placement.watch())

    def heard(self, replica: int, epoch: int, now: float) -> ReplicaLoad | None:
        """Note a sign of life of a replica; returns the replica's load if the epoch is the present one."""
        load = self.placement.loads.get(replica)
        if load is not None and load.is_fenced:
            self._rejoin(replica, load, now)
            return None
        if load is None or epoch != load.epoch:
            return None
        load.heard_at = now
        return load

    def _rejoin(self, replica: int, load: ReplicaLoad, now: float) -> None:
        """Begin a new life of a fenced replica, from which a message has just come."""
        del self.placement.loads[replica]
        epoch = self._next_epoch
        self._outgoing.append(Send(replica, epoch, Reset()))
        self.add_replica(replica, load.info, now, takes_new=not load.is_draining)

    def _take_tokens(self, load: ReplicaLoad, batch: TokenBatch, now: float) -> None:
        """Pass output on to the tokenizer, and count its tokens."""
        opened, sampled = load.open, load.sampled
        ended = False
        if load.prefilling:
            batch, prompts = _without_prompts(batch, opened)
            for delta in prompts:
                self._prefilled(opened[delta.rid], load, delta, now)
            ended = bool(prompts)
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
            if request.sent_at > request.arrived_at:
                batch.deltas[i] = request.whole(delta)
            self._close(request, load)
            if delta.usage is not None and delta.finish.error is None and request.arrival.max_output:
                self._outputs.ended(request.arrival.max_output, delta.usage.completion_tokens)
        if batch.deltas or batch.rids:
            self._outgoing.append(Send(TOKENIZER, 0, batch))
        if ended or load.queue.tokens or not load.unstarted_rows:
            self._share(now)

    def _prefilled(self, request: RoutedRequest, load: ReplicaLoad, delta: TokenDelta, now: float) -> None:
        """Bind a request to a replica that answers, now that another one has computed the prompt. If that one has ended
        the request with an error, the next replica computes the prompt, and reports the error if it is the prompt's."""
        assert delta.finish is not None
        self.placement.index.release(load.number, request.booked)
        self.placement.transfers.ended(request.rid)
        load.ended(request)
        request.booked, request.replica = (), None
        request.is_sent = request.is_prefill = False
        epoch = load.epoch if delta.finish.error is None else None
        request.prefilled = Prefill(load.number, epoch, delta.usage or Usage(), delta.timings or Timings())
        if request.is_aborted or delta.finish.reason == FINISH_ABORT:
            self._finish(request, Finish(FINISH_ABORT))
            return
        load.prefills += delta.finish.error is None
        self._bind(request, now)

    # --- binding and sending ---

    def _expected(self, request: RoutedRequest) -> float:
        most = request.arrival.max_output
        return self._outputs.expected(most, request.num_resumed) if most else 0.0

    def _queue_error(self, request: RoutedRequest, chosen: int | None) -> FinishError | None:
        """Return the error of a request that would have to wait too long on the chosen replica; None if it may wait."""
        loads, wait_s = self.placement.loads, None
        is_full = len(self.unbound) + sum(load.queue.size for load in loads.values()) >= self._max_queued
        if chosen is not None and (is_full or self.placement.has_queue(request, chosen)):
            wait_s = self.placement.predicted_wait_s(request, chosen)
        if is_full:
            message = f"the queue is full ({self._max_queued} requests wait); try again later"
            return FinishError(message, code="queue_full", status=429, retry_after_s=wait_s)
        if chosen is None or wait_s is None:
            return None

        # The timeout must leave time for the request's own output.
        load, timeout = loads[chosen], request.arrival.timeout_s
        service = request.work.output * load.times.seconds(len(load.open), load.context)
        longest = max(timeout - SERVICE_MARGIN * service, MIN_WAIT_SHARE * timeout)
        if self._max_queue_wait_s is not None:
            longest = min(longest, self._max_queue_wait_s)
        if wait_s <= longest:
            return None
        message = (
            f"the request would wait for {wait_s:.1f} s and may wait for {longest:.1f} s (bounded by its timeout and "
            "by max_queue_wait_s)"
        )
        return FinishError(message, code="queue_full", status=429, retry_after_s=wait_s)

    def _bind(self, request: RoutedRequest, now: float) -> None:
        if request.prefilled is not None and self.placement.transfers.is_lost(request.prefilled):
            request.prefilled = None
        self._bind_to(request, self.placement.choose(request, self._expected(request)), now)

    def _bind_to(self, request: RoutedRequest, replica: int | None, now: float) -> None:
        """Bind a request, and send it if the replica has room and an empty queue."""
        request.replica = replica
        if replica is None:
            self.unbound[request.rid] = request
            return
        load = self.placement.loads[replica]
        if not load.queue.size and load.takes(request, now):
            self._send_request(request, replica, load, now)
        else:
            load.queue.add(request)
            self._fill(replica, load, now)  # the request may be the first of the queue

    def _bind_all(self, now: float) -> None:
        """Bind the requests without a replica, and let a replica that has become ready take requests of others."""
        waiting, self.unbound = list(self.unbound.values()), {}
        for request in waiting:
            self._bind(request, now)
        self._share(now)

    def _rebind(self, load: ReplicaLoad, now: float) -> None:
        """Bind all requests of a replica's queue again."""
        for request in list(load.queue):
            load.queue.remove(request)
            self._bind(request, now)

    def _rebind_prefilled(self, replica: int, now: float) -> None:
        """Bind again the requests whose prompts a dead replica has computed, and that no other replica has yet."""
        waiting = [
            (load, request)
            for load in self.placement.loads.values()
            for request in load.queue
            if request.prefilled is not None and request.prefilled.replica == replica
        ]
        # Binding a request may send others of the same queue, so all of them leave their queues first.
        for load, request in waiting:
            load.queue.remove(request)
        for _, request in waiting:
            self._bind(request, now)

    def _share(self, now: float) -> None:
        """Send queued requests to the replicas with room: first each replica's own, then requests of other queues whose
        price falls by the move."""
        loads = self.placement.loads
        if not any(load.queue.size for load in loads.values()):
            return
        for replica, load in loads.items():
            self._fill(replica, load, now)
        for replica, load in loads.items():
            while load.takes_new and not load.queue.size and not load.shortage:
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
        request.is_prefill = self.placement.roles.prefills(request, load)
        hit = request.work.length - request.work.miss
        request.booked = self.placement.index.book(replica, request.prefix, hit)
        self.placement.went(request.message.envelope.program, replica)
        if not load.open:
            load.heard_at = now  # without requests the replica had nothing to send
        transfer = self.placement.transfers.find(request, replica, hit)
        if transfer is not None:  # what is moved is not computed
            request.work = request.work._replace(miss=request.work.miss - transfer.tokens)
        load.sent(request)
        if transfer is not None and transfer.source != replica:
            self._send(replica, PrefixComing(request.rid, transfer.end))
            self._send(transfer.source, self.placement.transfers.begin(request, replica, transfer))
        self._send(replica, request.prompt_alone(now) if request.is_prefill else request.resumed(now))
        if load.queue.size:
            self.placement.advance(replica, request.booked)

    def _send(self, replica: int, message: Request | AbortReq | ReleaseReq | WatchCacheReq | CacheAck | ToPeer) -> None:
        self._outgoing.append(Send(replica, self.placement.loads[replica].epoch, message))

    # --- ends ---

    def _close(self, request: RoutedRequest, load: ReplicaLoad | None) -> None:
        """Forget a request that has a finish."""
        del self.open[request.rid]
        self.placement.transfers.ended(request.rid)
        if load is not None and request.is_sent and request.replica is not None:
            self.placement.index.release(request.replica, request.booked)
            load.ended(request)

    def _finish(self, request: RoutedRequest, finish: Finish) -> None:
        """End a request that no replica has."""
        if request.replica is None:
            self.unbound.pop(request.rid, None)
        elif not request.is_sent and request.replica in self.placement.loads:
            self.placement.loads[request.replica].queue.remove(request)
        self._close(request, None)
        usage = Usage(request.length - request.num_resumed, request.num_resumed)
        self._write(request.rid, finish, usage)

    def _refuse(self, message: Request, error: FinishError) -> None:
        self._write(message.rid, Finish(FINISH_ERROR, error=error), Usage())

    def _write(self, rid: str, finish: Finish, usage: Usage) -> None:
        delta = TokenDelta(rid, pack_i32([]), finish=finish, usage=usage, timings=Timings())
        self._outgoing.append(Send(TOKENIZER, 0, TokenBatch([delta])))


def _without_prompts(batch: TokenBatch, opened: Mapping[str, RoutedRequest]) -> tuple[TokenBatch, list[TokenDelta]]:
    """Return a batch without the output of prompts that are computed for other replicas, and the last deltas of these
    prompts."""
    deltas = [delta for delta in batch.deltas if opened[delta.rid].is_prefill]
    if not deltas:
        return batch, []
    kept = [delta for delta in batch.deltas if not opened[delta.rid].is_prefill]
    return TokenBatch(kept, batch.rids, batch.token_ids), [delta for delta in deltas if delta.finish is not None]


def _overdue(request: RoutedRequest, now: float) -> Finish:
    """Return the finish of a request that no replica has and whose deadline has passed. Output that came back is the
    answer, unless it is the beginning of a constrained one, which only a replica can complete."""
    sampling = request.message.sampling
    if request.num_resumed and sampling is not None and sampling.constraint is None:
        return Finish(FINISH_TIMEOUT)
    return Finish(FINISH_ERROR, error=deadline_passed(now - request.arrived_at))
