"""`Transfers`: prefixes that move into the KV pool of a replica instead of being computed again.

A replica fetches a prefix from its own tiers without being told. A request may also go to a replica although another
one has more of its prefix: because that one is busy, or because a fork is divided. Then the router asks the replica
with the prefix for its pages, and passes the answer on. The prefix comes by way of host memory
(`radixrt.parts.tiers.peers`), so a prefix that is on disk alone is of use to its own replica only. Replicas that get no
new requests are asked as well.

A transfer delays the request that waits for it, whereas a computation delays every request of the replica. So with many
requests a transfer pays that takes longer than the computation, but from disk, as for the replicas
(`radixrt.parts.tiers.policy`). What is moved takes slots, as a miss does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from radixrt.mem_cache.granules import GRANULE_TOKENS
from radixrt.messages.peers import HandOver, PrefixAsk, PrefixPages
from radixrt.parts.tiers.policy import DISK, HOST, PEER
from radixrt.router.replica_index import ReplicaIndex
from radixrt.router.replica_load import ReplicaLoad
from radixrt.router.routed_request import Prefill, RoutedRequest

LEAST_TOKENS = 256
"""Smallest number of tokens of a transfer from another replica. Messages and pages of the tiers cost as much as
computing fewer tokens."""


class Transfer(NamedTuple):
    """Transfer to a replica.

    Attributes:
        source: replica that has the prefix; the target itself for a prefix in its tiers.
        end: length of the prefix.
        tokens: number of tokens of the prefix that the target lacks.
        seconds: predicted time of the transfer.
        saved: number of tokens that the target could not compute in that time.
    """

    source: int
    end: int
    tokens: int
    seconds: float
    saved: int


@dataclass
class _HandOver:
    """Prefixes that a replica hands over before it leaves.

    Attributes:
        targets: replica that gets the prefixes with the same first page, by this page.
        untaken: number of prefixes that their targets have not copied.
        is_complete: the replica has named all of them.
    """

    targets: dict[bytes, int] = field(default_factory=dict)
    untaken: int = 0
    is_complete: bool = False


class Transfers:
    """See the module's docstring.

    Args:
        loads, index, tiers: see `Placement`.
    """

    def __init__(
        self, loads: Mapping[int, ReplicaLoad], index: ReplicaIndex, tiers: Mapping[str, ReplicaIndex]
    ) -> None:
        self._loads = loads
        self._index = index
        self._tiers = tiers
        self._is_on = bool(tiers)
        self._asked: dict[str, tuple[int, int]] = {}  # source and target, by request
        self._leaving: dict[int, _HandOver] = {}

    def find(self, request: RoutedRequest, target: int, hit: int) -> Transfer | None:
        """Return the transfer that a request would begin on a replica; None if computing takes less time.

        Args:
            hit: tokens of the request that the pool of the replica has.
        """
        if not self._is_on:
            return None
        load = self._loads[target]
        found = [*self._from_tiers(request, load, hit), self._from_peers(request, load, hit)]
        second_s = load.times.token * (1 + len(load.open))
        # Of equal transfers the first one wins: from the host tier, from disk, from another replica.
        known = [each for each in found if each is not None]
        return min(known, key=lambda each: each.seconds - each.tokens * second_s, default=None)

    def nearest(self, request: RoutedRequest, replicas: Iterable[int], hits: Mapping[int, int]) -> list[int]:
        """Return replicas in the order in which they are chosen at equal prices: first the replicas that have the most
        of a request's prefix in their pools and tiers, so that no prefix moves for nothing.

        Args:
            hits: tokens that the pools have.
        """
        most = dict(hits)
        for tier in self._tiers:
            for replica, tokens in self.kept(request, tier, replicas).items():
                most[replica] = max(most.get(replica, 0), tokens)
        return sorted(replicas, key=lambda each: (-most.get(each, 0), -hits.get(each, 0)))

    def kept(self, request: RoutedRequest, tier: str, replicas: Iterable[int]) -> dict[int, int]:
        """Return the number of leading tokens of a request that a tier of each replica has reported; replicas without
        any are missing."""
        index = self._tiers[tier]
        return index.hits(request.prefix, {each: self._loads[each].info.has_states for each in replicas})

    def _from_tiers(self, request: RoutedRequest, target: ReplicaLoad, hit: int) -> Iterator[Transfer | None]:
        for tier, index in self._tiers.items():
            if not len(index):
                continue
            end = self.kept(request, tier, (target.number,)).get(target.number, 0)
            if end - hit >= GRANULE_TOKENS:
                seconds = target.move_s(tier, end - hit)
                others = 0 if tier == DISK else len(target.open)
                yield _transfer(target.number, target, end, hit, seconds, others)

    def _from_peers(self, request: RoutedRequest, target: ReplicaLoad, hit: int) -> Transfer | None:
        if request.length - hit < LEAST_TOKENS or request.message.sampling is None:
            return None
        end, holders = self._longest(request, target.info.has_states)
        if request.prefilled is not None and self._has_prompt(request.prefilled):
            end, holders = _prompt_end(request, has_states=target.info.has_states), {request.prefilled.replica}
        sources = [each for each in sorted(holders) if each != target.number and not self._loads[each].is_fenced]
        if end - hit < LEAST_TOKENS or not sources:
            return None
        return self._pull(min(sources, key=self._answer_s), target, end, hit)

    def _longest(self, request: RoutedRequest, has_states: bool) -> tuple[int, set[int]]:
        """Return the length of the longest prefix in any KV pool or host tier, and the replicas with this prefix."""
        longest, holders = 0, set[int]()
        for index in (self._index, self._tiers[HOST]):
            end, found = index.longest_state(request.prefix) if has_states else index.longest(request.prefix)
            if end >= longest:
                holders = {*found, *(holders if end == longest else ())}
                longest = end
        return longest, holders

    def _has_prompt(self, prefill: Prefill) -> bool:
        """Return True if the replica that has computed a prompt has not begun another life since."""
        load = self._loads.get(prefill.replica)
        return load is not None and load.epoch == prefill.epoch

    def is_lost(self, prefill: Prefill) -> bool:
        """Return True if a prompt was computed, and the replica that has computed the prompt died."""
        return prefill.epoch is not None and not self._has_prompt(prefill)

    def of_prompt(self, request: RoutedRequest, source: int, target: ReplicaLoad, hit: int) -> Transfer | None:
        """Return the transfer of a prompt that a replica is about to compute for another one; None if computing the
        prompt there would take less time.

        Args:
            hit: as for `find`.
        """
        end = _prompt_end(request, has_states=target.info.has_states)
        return self._pull(source, target, end, hit) if end - hit >= LEAST_TOKENS else None

    def _pull(self, source: int, target: ReplicaLoad, end: int, hit: int) -> Transfer | None:
        """Return a transfer of the tokens [hit, end) from another replica; None if computing them takes less time."""
        seconds = self._answer_s(source) + target.move_s(PEER, end - hit)
        return _transfer(source, target, end, hit, seconds, len(target.open))

    def _answer_s(self, replica: int) -> float:
        """Return the predicted seconds until a replica can copy: the time of its steps in flight."""
        load = self._loads[replica]
        if not load.open:
            return 0.0
        times, prompt = load.times, min(load.unstarted_tokens, load.info.chunked_prefill_size)
        started = len(load.open) - load.unstarted_rows
        return times.step + times.row * started + times.context * load.context + times.token * prompt

    def begin(self, request: RoutedRequest, target: int, transfer: Transfer) -> PrefixAsk:
        """Note a transfer that begins; return the question for its source."""
        self._asked[request.rid] = transfer.source, target
        arrival = request.arrival
        return PrefixAsk(request.rid, arrival.ids[: transfer.end].tobytes(), arrival.namespace)

    # --- replicas that leave ---

    def hand_over(self, replica: int) -> HandOver | None:
        """Return the order for a replica that is about to leave; None if it hands nothing over."""
        if replica in self._leaving:
            return None
        found = self._leaving[replica] = _HandOver()
        room = sum(load.info.num_slots for each, load in self._loads.items() if each != replica and load.takes_new)
        found.is_complete = not self._is_on or not room
        return None if found.is_complete else HandOver(room)

    def has_handed_over(self, replica: int) -> bool:
        """Return True once other replicas have what they take of a replica that leaves."""
        found = self._leaving.get(replica)
        return found is not None and found.is_complete and not found.untaken

    def handed_over(self, replica: int) -> None:
        """Note that a replica has named all of its prefixes."""
        if replica in self._leaving:
            self._leaving[replica].is_complete = True

    def taken(self, source: int) -> None:
        """Note that a prefix of a replica that leaves was copied."""
        if source in self._leaving:
            self._leaving[source].untaken -= 1

    def left(self, replica: int) -> list[tuple[int, PrefixPages]]:
        """Forget a replica. What it has not copied, nobody waits for.

        Returns:
            Answers in its place, with their targets: that nothing comes.
        """
        unanswered = [(rid, target) for rid, (source, target) in self._asked.items() if source == replica]
        for rid, _ in unanswered:
            del self._asked[rid]
        self._leaving.pop(replica, None)
        for each in self._leaving.values():
            if replica in each.targets.values():
                each.untaken, each.is_complete = 0, True
        return [(target, PrefixPages(rid)) for rid, target in unanswered if target in self._loads]

    def _heir(self, source: int, message: PrefixPages) -> int | None:
        """Return the replica that gets a prefix: prefixes that begin alike go to the same one, others in turns."""
        found = self._leaving.get(source)
        takers = [each for each, load in self._loads.items() if each != source and load.takes_new]
        if found is None or found.is_complete or not takers or not message.pages:
            return None
        counts = Counter(found.targets.values())
        fewest = min(takers, key=lambda each: counts[each])
        target = found.targets.setdefault(message.token_ids[: 4 * GRANULE_TOKENS], fewest)
        if target not in takers:
            return None
        found.untaken += 1
        return target

    # --- answers ---

    def target(self, source: int, message: PrefixPages) -> int | None:
        """Return the replica that gets an answer; None if none waits for the answer any more."""
        if not message.rid:
            return self._heir(source, message)
        asked = self._asked.get(message.rid)
        if asked is None or asked[0] != source:
            return None
        del self._asked[message.rid]
        return asked[1]

    def ended(self, rid: str) -> None:
        """Forget a request."""
        self._asked.pop(rid, None)

    def clear(self) -> None:
        """Pass on no answer to the questions so far, and end what replicas hand over."""
        self._asked.clear()
        self._leaving = {replica: _HandOver(is_complete=True) for replica in self._leaving}


def _transfer(source: int, target: ReplicaLoad, end: int, hit: int, seconds: float, others: int) -> Transfer | None:
    """Return a transfer of the tokens [hit, end) that takes so many seconds; None if computing them costs the request
    and `others` less time together."""
    tokens, token_s = end - hit, target.times.token
    if seconds >= tokens * token_s * (1 + others):
        return None
    return Transfer(source, end, tokens, seconds, max(tokens - round(seconds / token_s), 0))


def _prompt_end(request: RoutedRequest, *, has_states: bool) -> int:
    """Return the length of the longest prefix that a replica has after the computation of a prompt: whole granules, or
    all tokens up to the last state. This state lies one token before the prompt's end, or a few tokens further up."""
    return request.prefix.length if has_states else len(request.prefix.hashes) * GRANULE_TOKENS
