"""`Checkpoints`: positions at which prompts leave a state of the recurrent layers to the cache.

A state is exact to the token: a request can continue from a state only if all tokens before the state are the same. So
states are placed where requests diverge. A chunk leaves a state at each of these positions (`RowStates.cuts`), inside
the chunk or at its end:

- the length of the prefix that the request shares with siblings, by a program's hint or within a scoring request;
- the end of a conversation's last message, behind which chat templates may render the next request differently;
- the length at which a waiting request diverges from this request (look-ahead over the queue): the common prefix is
  computed once, and the waiting request is deferred until the state is cached (`promises`);
- the end of the cached keys and values, if they reach beyond the deepest cached state: another request diverged there,
  and its state was not known to be needed, or was evicted;
- the token before the last prompt token, from which the same prompt continues when a client sends it again: the last
  token is always computed.

If two positions are close, the position that comes first in this list is kept.

Further states need no extra slot: the states at the end of every request and at its retraction
(`HybridKVManager.leaves`), and the states at the ends of long prompts' chunks while slots are free
(`HybridKVManager.chunk_published`).
"""

from __future__ import annotations

from collections import Counter

from radixrt.parts.states.row_states import states_of
from radixrt.scheduler.prefix_index import PrefixIndex, common_len
from radixrt.scheduler.req import Req, ReqState

MIN_GAP = 32
"""A state that saves fewer tokens than this is not worth its slot."""
MAX_CUTS = 8
"""Maximum number of positions ahead of a request, because each takes a slot and many waiting requests may diverge."""


class Checkpoints:
    """See the module's docstring.

    Args:
        min_gap: smallest number of tokens between two checkpoints of a request.
    """

    def __init__(self, min_gap: int = MIN_GAP) -> None:
        self.min_gap = min_gap

    def place(self, req: Req, matched: int, queued: PrefixIndex) -> None:
        """Decide the cuts of a request that was just admitted.

        Args:
            matched: number of tokens whose keys and values are cached.
            queued: index of the queue; requests in the index that are not waiting any more are ignored.
        """
        held = states_of(req)
        held.cuts.clear()
        if req.fork_uses > 1:
            self._add(req, req.fork_len, req.fork_uses)
        self._add(req, req.turn_len, 1)
        partings: Counter[int] = Counter()
        for other in queued.like(req.namespace, req.ids[: req.known_len - 1], held.length):
            if other.state is ReqState.WAITING:
                partings[self._parting(req, other, held.length)] += 1
        for length, count in partings.most_common(MAX_CUTS):
            self._add(req, length, count + 1)
        self._add(req, matched, 1)
        if req.member is None:
            self._add(req, req.prompt_len - 1, 1)

    def promises(self, active: Req, req: Req, cached: int) -> bool:
        """Return True if an active request in PREFILL will leave a state from which a waiting request should continue.

        A cut is added where the two requests diverge, unless the active request is past that position.

        Args:
            req: the waiting request.
            cached: number of tokens up to the state from which `req` could continue now. Both requests have these
                tokens in common.
        """
        parting = self._parting(active, req, cached)
        if parting < cached + self.min_gap:
            return False
        self._add(active, parting, 2)
        return self._has_cut(active, parting, cached)

    def has_promised(self, active: Req, req: Req, cached: int) -> bool:
        """Return True if the active request has a cut from which the waiting request `req` should continue. Unlike
        `promises`, the method adds no cut."""
        return self._has_cut(active, self._parting(active, req, cached), cached)

    def _has_cut(self, active: Req, parting: int, cached: int) -> bool:
        # Cuts of the chunk planned for this step are included, because `chunk_published` removes them later.
        return any(cached + self.min_gap <= cut <= parting for cut in states_of(active).cuts)

    def _parting(self, req: Req, other: Req, start: int) -> int:
        """Return the length of the prefix of `req` that a waiting request `other` could reuse; 0 if the prefix is not
        at least min_gap tokens longer than `start`."""
        theirs, ours = other.reusable_ids, req.ids[: req.known_len - 1]
        if req.namespace != other.namespace or min(len(theirs), len(ours)) < start + self.min_gap:
            return 0
        window = slice(start, start + self.min_gap)
        if theirs[window].tobytes() != ours[window].tobytes():
            return 0
        common = common_len(theirs, ours)
        return common if common >= start + self.min_gap else 0

    def _add(self, req: Req, length: int, uses: int) -> None:
        """Add a cut, unless another cut or the request's state is close, or the request has MAX_CUTS cuts."""
        held = states_of(req)
        if len(held.cuts) >= MAX_CUTS or not held.length + self.min_gap <= length < req.known_len:
            return
        if all(abs(length - cut) >= self.min_gap for cut in held.cuts):
            held.cuts[length] = uses
