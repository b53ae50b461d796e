"""`Forgets`: commands to drop prompts, which reach every replica, also the replicas that are not up now.

The host and disk tiers of a replica outlive its processes, so a replica that is dead or fenced during a command would
bring the prompts back. The router sends such a replica the command when the replica joins, before any request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from radixrt.messages.scheduler import ControlReply, ControlReq, is_forgotten
from radixrt.router.routed_request import RoutedRequest

OPS = ("forget", "forget_owner")
MAX_FORGETS = 65_536
"""Largest number of commands that are kept, about 30 MB. The oldest one is dropped first."""


@dataclass
class _Forget:
    """Command, and the replicas that have executed it."""

    request: ControlReq
    done: set[int] = field(default_factory=set)


class Forgets:
    """See the module's docstring. Of equal commands the last one is kept."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, str], _Forget] = {}
        self._by_id: dict[str, _Forget] = {}

    def ask(self, request: ControlReq) -> None:
        """Note a command that is sent to all replicas now."""
        if request.op not in OPS:
            return
        key = request.op, request.namespace
        self._drop(key)
        self._asked[key] = self._by_id[request.id] = _Forget(request)
        if len(self._asked) > MAX_FORGETS:
            self._drop(next(iter(self._asked)))

    def _drop(self, key: tuple[str, str]) -> None:
        known = self._asked.pop(key, None)
        if known is not None:
            self._by_id.pop(known.request.id, None)

    def answered(self, replica: int, reply: ControlReply) -> None:
        """Take an answer of a replica to any command."""
        known = self._by_id.get(reply.id)
        if known is not None and reply.ok:
            known.done.add(replica)

    def owed(self, replica: int) -> list[ControlReq]:
        """Return the commands that a replica has not executed."""
        return [each.request for each in self._asked.values() if replica not in each.done]


def still_open(request: ControlReq, held: Iterable[RoutedRequest]) -> str:
    """Return why a command fails: requests that the router holds will leave prompts again. "" if it does not.

    Args:
        held: open requests that no replica has.
    """
    if request.op not in OPS:
        return ""
    whole_owner = request.op == "forget_owner"
    names = (each.arrival.namespace for each in held)
    count = sum(is_forgotten(name, request.namespace, whole_owner=whole_owner) for name in names)
    return f"{count} requests wait and would leave it again" if count else ""
