"""`Transfers`: prefixes that move from one replica to another instead of being computed again.

A request may go to a replica although another one has more of its prefix: because that one is busy, or because a fork
is divided. Then the router asks the replica that has the prefix for its pages, and passes the answer on. The prefix
comes by way of host memory (`radixrt.parts.tiers.peers`). Replicas that get no new requests are asked as well.

A transfer delays the request that waits for it, whereas a computation delays every request of the replica. So with many
requests a transfer pays that takes longer than the computation. What comes from another replica takes slots, as a miss
does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from radixrt.mem_cache.granules import GRANULE_TOKENS
from radixrt.messages.peers import HandOver, PrefixAsk, PrefixPages
from radixrt.parts.tiers.policy import PEER
from radixrt.router.replica_index import ReplicaIndex
from radixrt.router.replica_load import ReplicaLoad
from radixrt.router.routed_request import Prefill, RoutedRequest

LEAST_TOKENS = 256
"""Smallest number of tokens of a transfer. Messages and pages of the tiers cost as much as computing fewer tokens."""


class Transfer(NamedTuple):
    """Transfer to a replica.

    Attributes:
        source: replica that has the prefix.
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
        loads, index: see `Placement`.
        is_on: the replicas have host tiers.
    """

    def __init__(self, loads: Mapping[int, ReplicaLoad], index: ReplicaIndex, *, is_on: bool) -> None:
        self._loads = loads
        self._index = index
        self._is_on = is_on
        self._asked: dict[str, tuple[int, int]] = {}  # source and target, by request
        self._leaving: dict[int, _HandOver] = {}

    def find(self, request: RoutedRequest, target: int, hit: int) -> Transfer | None:
        """Return the transfer that a request would begin on a replica; None if computing takes less time.

        Args:
            hit: tokens of the request that the replica has.
        """
        if not self._is_on or request.length - hit < LEAST_TOKENS or request.message.sampling is None:
            return None
        has_states = self._loads[target].info.has_states
        end, holders = (self._index.longest_state if has_states else self._index.longest)(request.prefix)
        if request.prefilled is not None and self._has_prompt(request.prefilled):
            end, holders = _prompt_end(request, has_states=has_states), [request.prefilled.replica]
        sources = [replica for replica in holders if replica != target and not self._loads[replica].is_fenced]
        if end - hit < LEAST_TOKENS or not sources or target in holders:
            return None
        return self._transfer(min(sources, key=self._answer_s), self._loads[target], end, hit)

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
        return self._transfer(source, target, end, hit) if end - hit >= LEAST_TOKENS else None

    def _transfer(self, source: int, target: ReplicaLoad, end: int, hit: int) -> Transfer | None:
        """Return a transfer of the tokens [hit, end); None if computing them takes less time, of all requests."""
        tokens, token_s = end - hit, target.times.token
        seconds = self._answer_s(source) + tokens * target.fetch_token_s.get(PEER, 0.0)
        if seconds >= tokens * token_s * (1 + len(target.open)):
            return None
        return Transfer(source, end, tokens, seconds, max(tokens - round(seconds / token_s), 0))

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


def _prompt_end(request: RoutedRequest, *, has_states: bool) -> int:
    """Return the length of the longest prefix that a replica has after the computation of a prompt: whole granules, or
    all tokens up to the last state. This state lies one token before the prompt's end, or a few tokens further up."""
    return request.prefix.length if has_states else len(request.prefix.hashes) * GRANULE_TOKENS
