"""`Placement`: choice of a replica for each request by price; one choice for all branches of a fork."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from radixrt.mem_cache.granules import GRANULE_TOKENS
from radixrt.messages.cache_events import CacheEvents, WatchCacheReq
from radixrt.messages.parts import ProgramHint
from radixrt.parts.tiers.policy import DISK, HOST
from radixrt.router.prices import EVICTION, divide_fork, price_s, wait_s
from radixrt.router.replica_index import ReplicaIndex
from radixrt.router.replica_load import ReplicaLoad
from radixrt.router.roles import Roles
from radixrt.router.routed_request import RoutedRequest, Work
from radixrt.router.transfers import Transfer, Transfers

MAX_PROGRAMS = 65_536
"""Maximum number of programs, and of forks, that are remembered; the least recently seen are forgotten first."""
MAX_LOOK = 8
"""Requests of a replica's queue that an idle replica looks at."""

_ForkKey = tuple[str, int]


class _Answer(NamedTuple):
    """Answer of a replica to a prompt that another replica computes.

    Attributes:
        work: work there, in which what is moved counts as computed.
        transfer: move of the prompt; None if computing the prompt there takes less time.
    """

    price_s: float
    load: ReplicaLoad
    work: Work
    transfer: Transfer | None


class Placement:
    """See the module's docstring.

    Args:
        moves: replicas have host tiers, and can get prefixes from one another.

    Attributes:
        loads: replicas by number, fenced and draining ones too.
        index: prefixes in the KV pools of these replicas.
        tiers: prefixes in their other memories, by tier.
        transfers: prefixes that replicas get from their tiers and from one another.
        roles: replicas that compute prompts for others.
    """

    def __init__(self, *, moves: bool = False) -> None:
        self.loads: dict[int, ReplicaLoad] = {}
        self.index = ReplicaIndex()
        self.tiers = {tier: ReplicaIndex() for tier in (HOST, DISK)} if moves else {}
        self.transfers = Transfers(self.loads, self.index, self.tiers)
        self.roles = Roles(self.loads)
        self._forks: OrderedDict[_ForkKey, dict[int, int]] = OrderedDict()
        self._programs: OrderedDict[str, tuple[int, set[int]]] = OrderedDict()  # first seq, replicas

    # --- what replicas have ---

    def watch(self) -> WatchCacheReq:
        """Return the request for all events that a replica must report."""
        return WatchCacheReq(usage=False, tiers=bool(self.tiers))

    def add(self, load: ReplicaLoad) -> None:
        """Add a replica, or the next life of one, of which nothing is known yet."""
        self.loads[load.number] = load
        for index in (self.index, *self.tiers.values()):
            index.add(load.number)

    def drop(self, replica: int) -> None:
        """Forget what a replica has."""
        for index in (self.index, *self.tiers.values()):
            index.drop(replica)

    def apply(self, replica: int, batch: CacheEvents) -> bool:
        """Apply a batch of a replica's events; see `ReplicaIndex.apply`."""
        return (self.tiers[batch.tier] if batch.tier else self.index).apply(replica, batch)

    # --- programs ---

    def program_seq(self, hint: ProgramHint | None, seq: int) -> int:
        """Return the order of arrival of a program's first request, which may be this one."""
        if hint is None:
            return seq
        entry = self._programs.setdefault(hint.program, (seq, set()))
        self._programs.move_to_end(hint.program)
        if len(self._programs) > MAX_PROGRAMS:
            self._programs.popitem(last=False)
        return entry[0]

    def went(self, hint: ProgramHint | None, replica: int) -> None:
        """Remember that a request of a program was sent to a replica."""
        if hint is not None and hint.program in self._programs:
            self._programs[hint.program][1].add(replica)

    def released(self, program: str, branch: str | None) -> Iterable[int]:
        """Return the replicas that have served a program. The program ends here, or with `branch` only this branch."""
        if branch is not None:
            return self._programs.get(program, (0, set()))[1]
        return self._programs.pop(program, (0, set()))[1]

    # --- choices ---

    def choose(self, request: RoutedRequest, output: float) -> int | None:
        """Return the replica of a request, and set its `work` there; None if no replica takes new requests.

        Args:
            output: expected number of output tokens.
        """
        loads = {replica: load for replica, load in self.loads.items() if load.takes_new}
        if not loads:
            return None
        request.output = output
        loads = self.roles.candidates(request, loads)
        hits = self.hits(request, loads)
        if self.tiers:
            loads = {replica: loads[replica] for replica in self.transfers.nearest(request, loads, hits)}

        def price(replica: int) -> float:
            load, hit = loads[replica], hits.get(replica, 0)
            if load.queue.size:
                hit += load.queue.shared(request.prefix, hit)
            return self.price_s(request, load, self._work(request, load, hit))

        best = next(iter(loads))
        if len(loads) > 1:
            prefill = self.roles.prefilling(request)
            answering = {replica: load for replica, load in loads.items() if replica not in prefill}
            place = request.place = self._fork_place(request, answering, hits, output)
            if place is None:
                best = min(loads, key=price)
            else:  # only decode replicas get prompts that other replicas compute
                best = min([place, *(prefill if place in self.roles.decoding() else ())], key=price)
        request.work = self._work(request, loads[best], hits.get(best, 0))
        return best

    def price_s(self, request: RoutedRequest, load: ReplicaLoad, work: Work, *, is_first: bool = False) -> float:
        """Return the price of a replica for a request; see `prices.py`. Simulations override it to compare prices.

        If the replica computes the prompt for another one, the price includes the move and the answer there.
        """
        hit = work.length - work.miss
        transfer = self.transfers.find(request, load.number, hit)
        price = price_s(load, work, is_first=is_first)
        if transfer is not None:
            price = self._moved_price_s(load, work, transfer, is_first=is_first)
        if self.roles.prefills(request, load):
            price += self._answer_s(request, load)
        return price

    def _moved_price_s(self, load: ReplicaLoad, work: Work, transfer: Transfer, *, is_first: bool = False) -> float:
        """Return the price of a replica that gets a prefix by a transfer."""
        price = price_s(load, work._replace(miss=work.miss - transfer.tokens), is_first=is_first) + transfer.seconds
        if load.free < work.miss:  # moved and computed prefixes evict the same number of tokens
            others = len(load.open) + load.queue.size
            price += (EVICTION - 1) * transfer.tokens * load.times.token * others
        return price

    def _answer_s(self, request: RoutedRequest, source: ReplicaLoad) -> float:
        """Return the price of the answer once another replica has computed the prompt."""
        return self._answering(request, source.number).price_s

    def _answering(self, request: RoutedRequest, source: int) -> _Answer:
        """Return the answer of the decode replica with the lowest price, or of the one that a fork's division has
        chosen, once another replica has computed the prompt."""
        decoding = self.roles.decoding()
        if request.place in decoding:
            decoding = {request.place: decoding[request.place]}
        hits = self.hits(request, decoding)
        answers = []
        for number, load in decoding.items():
            work = Work(request.length - hits.get(number, 0), request.length, request.output, request.arrival.images)
            transfer = self.transfers.of_prompt(request, source, load, hits.get(number, 0))
            price = price_s(load, work) if transfer is None else self._moved_price_s(load, work, transfer)
            answers.append(_Answer(price, load, work, transfer))
        return min(answers, key=lambda answer: answer.price_s)

    def _work(self, request: RoutedRequest, load: ReplicaLoad, hit: int) -> Work:
        """Return the request's work on a replica that has the first `hit` tokens."""
        output = 1.0 if self.roles.prefills(request, load) else request.output
        return Work(request.length - hit, request.length, output, request.arrival.images)

    def hits(self, request: RoutedRequest, loads: Iterable[int]) -> dict[int, int]:
        """Return the number of cached input tokens on each replica; replicas without any may be missing."""
        return self.index.hits(request.prefix, {each: self.loads[each].info.has_states for each in loads})

    def work(self, request: RoutedRequest, replica: int) -> Work:
        """Return the request's work on a replica with its present cache."""
        return self._work(request, self.loads[replica], self.hits(request, (replica,)).get(replica, 0))

    def has_queue(self, request: RoutedRequest, replica: int) -> bool:
        """Return True if a request would wait in the router: for the replica, or for a decode replica once the replica
        has computed the prompt."""
        load = self.loads[replica]
        if load.queue.size or not self.roles.prefills(request, load):
            return load.queue.size > 0
        answering = self._answering(request, replica).load
        rows = len(answering.open) + self.roles.coming
        return answering.queue.size > 0 or rows >= answering.info.max_running_requests

    def predicted_wait_s(self, request: RoutedRequest, replica: int) -> float:
        """Return the predicted seconds until a replica has computed the input of a request that arrives now, and, if
        that replica computes the prompt for a decode replica, until the decode replica has a row and the prefix."""
        load, work = self.loads[replica], request.work
        shared = load.queue.shared(request.prefix, work.length - work.miss)
        wait = wait_s(load, work._replace(miss=work.miss - shared))
        if not self.roles.prefills(request, load):
            return wait
        # Requests of the decode replica end while the prompt is computed.
        _, answering, work, transfer = self._answering(request, replica)
        if transfer is not None:
            work = work._replace(miss=work.miss - transfer.tokens)
        there = wait_s(answering, work, coming=self.roles.coming)
        return max(wait, there) + (0.0 if transfer is None else transfer.seconds)

    def advance(self, replica: int, hashes: Iterable[int]) -> None:
        """Update the work of queued requests that were waiting for granules, which the replica has or computes now."""
        queue = self.loads[replica].queue
        for request in queue.waiting_for(hashes):
            queue.changed(request, self.work(request, replica))

    def bargain(self, idle: int, donors: Iterable[int], now: float) -> RoutedRequest | None:
        """Return the queued request whose price falls the most by moving to a replica without a queue; None if no price
        falls. `work` of the request does not change.

        Args:
            idle: the replica without a queue.
            donors: replicas with queues.
        """
        best: RoutedRequest | None = None
        best_gain = 0.0
        for donor in donors:
            load = self.loads[donor]
            for i, request in enumerate(load.queue):
                if i == MAX_LOOK:
                    break
                if not self.roles.may_get(request, self.loads[idle]) or not self.loads[idle].takes(request, now):
                    continue
                here = self.price_s(request, load, request.work, is_first=i == 0)
                if here <= best_gain:
                    continue
                gain = here - self.price_s(request, self.loads[idle], self.work(request, idle))
                if gain > best_gain:
                    best, best_gain = request, gain
        return best

    # --- forks ---

    def _nearly(self, request: RoutedRequest, replica: int, hit: int) -> int:
        """Return the hit of a replica that would compute as long as this one moves and computes. Prefill replicas
        compute a prompt once for all decode replicas."""
        transfer, load = self.transfers.find(request, replica, hit), self.loads[replica]
        if transfer is None and load.info.role == "decode":
            sources = self.roles.prefilling(request)
            moves = (self.transfers.of_prompt(request, source, load, hit) for source in sources)
            transfer = min((each for each in moves if each is not None), key=lambda each: each.seconds, default=None)
        return hit if transfer is None else hit + transfer.saved

    def _fork_place(
        self, request: RoutedRequest, loads: dict[int, ReplicaLoad], hits: dict[int, int], output: float
    ) -> int | None:
        """Return the replica for this branch by the division of the fork, the same one each time that it is among
        `loads`.

        None outside of forks, and for branches beyond the announced number.
        """
        if request.place in loads and not request.deaths:
            return request.place
        hint = request.message.envelope.program
        granules = 0 if hint is None else min(hint.fork_len // GRANULE_TOKENS, len(request.prefix.hashes))
        if hint is None or hint.siblings < 2 or not granules or request.deaths or request.prefilled is not None:
            return None
        key = (hint.program, request.prefix.hashes[granules - 1])
        left = self._forks.get(key)
        if left is None:
            hits = {replica: self._nearly(request, replica, hits.get(replica, 0)) for replica in loads}
            # The first branch decides for all of the fork.
            shared = granules * GRANULE_TOKENS
            branch = Work(max(request.length - shared, 1), request.length, output, request.arrival.images)
            left = self._forks[key] = divide_fork(loads, hits, shared, branch, hint.siblings)
            if len(self._forks) > MAX_PROGRAMS:
                self._forks.popitem(last=False)
        usable = [replica for replica, count in left.items() if count > 0 and replica in loads]
        if not usable:
            return None
        chosen = max(usable, key=left.__getitem__)
        left[chosen] -= 1
        return chosen
