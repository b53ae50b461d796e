"""`Roles`: replicas that compute prompts for other replicas, which answer.

    prefill   computes prompts, and requests without output. The prefix goes to a decode replica, which answers
    decode    answers; computes a prompt by itself where that is cheaper than moving the prefix
    both      computes what it answers

A chunk of a prompt delays every row that decodes in the same step, so long prompts beside many rows make gaps between
their tokens. A prefill replica has no such rows.

Roles count while a prefill replica and a decode replica take requests. Otherwise each replica serves every request, so
the death of the last replica of a role costs time and no answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from radixrt.config.roles import Role
from radixrt.router.replica_load import ReplicaLoad
from radixrt.router.routed_request import RoutedRequest
from radixrt.router.transfers import LEAST_TOKENS


class Roles:
    """See the module's docstring.

    Args:
        loads: replicas by number.
    """

    def __init__(self, loads: Mapping[int, ReplicaLoad]) -> None:
        self._loads = loads

    @property
    def count(self) -> bool:
        """Roles count now."""
        roles = {load.info.role for load in self._loads.values() if load.takes_new}
        return "prefill" in roles and "decode" in roles

    def prefills(self, request: RoutedRequest, load: ReplicaLoad) -> bool:
        """Return True if a replica would compute the prompt of a request for another replica."""
        if load.info.role != "prefill" or not request.can_prefill or request.prefix.length < LEAST_TOKENS:
            return False
        # The only state is saved one token before the prompt's end, behind the tokens that a read leaves to the cache.
        return self.count and not (load.info.has_states and request.reads_prompt)

    def may_get(self, request: RoutedRequest, load: ReplicaLoad) -> bool:
        """Return True if a replica may get a request next."""
        if load.info.role == "both" or not self.count:
            return True
        if request.message.sampling is None:
            return load.info.role == "prefill"
        return load.info.role == "decode" or self.prefills(request, load)

    def candidates(self, request: RoutedRequest, loads: dict[int, ReplicaLoad]) -> dict[int, ReplicaLoad]:
        """Return the replicas among `loads` that may get a request next."""
        if not self.count:
            return loads
        return {number: load for number, load in loads.items() if self.may_get(request, load)}

    def decoding(self) -> dict[int, ReplicaLoad]:
        """Return the decode replicas that take requests, by number."""
        return self._taking("decode")

    def prefilling(self, request: RoutedRequest) -> dict[int, ReplicaLoad]:
        """Return the replicas that would compute the prompt of a request for another replica, by number."""
        return {number: load for number, load in self._taking("prefill").items() if self.prefills(request, load)}

    def _taking(self, role: Role) -> dict[int, ReplicaLoad]:
        return {n: load for n, load in self._loads.items() if load.takes_new and load.info.role == role}

    @property
    def coming(self) -> int:
        """Number of requests that each decode replica gets, on average, once their prompts are computed."""
        coming = sum(load.prefilling + load.queue.size for load in self._taking("prefill").values())
        return -(-coming // max(len(self.decoding()), 1))
