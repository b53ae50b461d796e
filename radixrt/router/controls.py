"""`Controls`: commands of operators that go to every replica, and the one answer to each command. Sans-io.

A dead replica owes no answer, because nothing is left for the command to act on. A fenced replica, which is silent and
counts as dead, owes no answer either: the replica forgets everything before it serves again, and the answer says so. A
replica that is silent but not fenced, because it has no requests, makes the command fail.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from radixrt.messages.scheduler import ControlReply, ControlReq


@dataclass
class _Asked:
    """Command that some replicas have not answered yet.

    Attributes:
        waiting: replicas that owe an answer.
        at: time at which the router sent the command.
    """

    waiting: set[int]
    at: float
    failures: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


class Controls:
    """Commands that are under way; see the module's docstring."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}

    def ask(
        self,
        request: ControlReq,
        replicas: Collection[int],
        now: float,
        *,
        fenced: Collection[int] = (),
        failure: str = "",
    ) -> list[ControlReply]:
        """Note that a command is sent to these replicas; returns the answer if there are no replicas.

        Args:
            fenced: replicas that count as dead and do not get the command.
            failure: reason why the command fails in any case; "" for none.
        """
        remarks = [_fenced(replica) for replica in sorted(fenced)]
        asked = _Asked(set(replicas), now, [failure] if failure else [], remarks)
        self._asked[request.id] = asked
        return self._answer(request.id, asked)

    def owing(self) -> Iterator[tuple[int, float]]:
        """Yield each replica that owes an answer, and the time since when."""
        for asked in list(self._asked.values()):
            for replica in list(asked.waiting):
                yield replica, asked.at

    def answered(self, replica: int, reply: ControlReply) -> list[ControlReply]:
        """Take a replica's answer; returns the command's answer if no replica owes one any more."""
        asked = self._asked.get(reply.id)
        if asked is None or replica not in asked.waiting:
            return []
        if not reply.ok:
            asked.failures.append(f"replica {replica}: {reply.message}")
        asked.waiting.discard(replica)
        return self._answer(reply.id, asked)

    def lost(self, replica: int, *, is_fenced: bool = False, silent_s: float | None = None) -> list[ControlReply]:
        """Expect nothing of a replica any more; returns the answers that become complete by that.

        Args:
            is_fenced: the replica counts as dead, but may be heard again.
            silent_s: seconds for which a replica that should answer has not answered: its commands fail.
        """
        found = []
        for control_id, asked in list(self._asked.items()):
            if replica not in asked.waiting:
                continue
            asked.waiting.discard(replica)
            if is_fenced:
                asked.remarks.append(_fenced(replica))
            if silent_s is not None:
                failure = f"replica {replica} has not answered for {silent_s:.0f} s; its process may be stopped"
                asked.failures.append(failure)
            found += self._answer(control_id, asked)
        return found

    def _answer(self, control_id: str, asked: _Asked) -> list[ControlReply]:
        """Return the command's answer if no replica owes one any more."""
        if asked.waiting:
            return []
        del self._asked[control_id]
        message = "; ".join([*asked.failures, *asked.remarks])
        return [ControlReply(control_id, ok=not asked.failures, message=message)]


def _fenced(replica: int) -> str:
    return f"replica {replica} is silent and counts as dead; it begins with an empty cache once it is heard"
