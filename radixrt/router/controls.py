"""`Controls`: commands of operators that go to every replica, and the one answer to each. Sans-io.

A replica that is dead owes no answer: nothing is left of what the command concerns. One that counts as dead because it
is silent owes none either, since it forgets everything before it serves again; the answer says so. One that is silent
and has nothing else to do makes the command fail.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from radixrt.messages.scheduler import ControlReply, ControlReq


class _Asked:
    """Command that some replicas have not answered yet.

    Attributes:
        at: time at which it was sent to them.
    """

    def __init__(self, waiting: set[int], at: float) -> None:
        self.waiting = waiting
        self.at = at
        self.failures: list[str] = []
        self.remarks: list[str] = []


class Controls:
    """Commands that are under way; see the module's docstring."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}

    def ask(
        self, request: ControlReq, replicas: Collection[int], now: float, *, fenced: Collection[int] = ()
    ) -> list[ControlReply]:  # fmt: skip
        """Note that a command is sent to these replicas; returns the answer if there are none.

        Args:
            fenced: replicas that count as dead, to which it is not sent.
        """
        asked = self._asked[request.id] = _Asked(set(replicas), now)
        asked.remarks += map(_fenced, sorted(fenced))
        return [] if replicas else self._settle(request.id, asked)

    def owing(self) -> Iterator[tuple[int, float]]:
        """Yield each replica that owes an answer, and since when."""
        for asked in list(self._asked.values()):
            for replica in list(asked.waiting):
                yield replica, asked.at

    def answered(self, replica: int, reply: ControlReply) -> list[ControlReply]:
        """Take the answer of a replica; returns that of all of them if it was the last."""
        asked = self._asked.get(reply.id)
        if asked is None or replica not in asked.waiting:
            return []
        if not reply.ok:
            asked.failures.append(f"replica {replica}: {reply.message}")
        asked.waiting.discard(replica)
        return self._settle(reply.id, asked)

    def lost(self, replica: int) -> list[ControlReply]:
        """Expect nothing of a dead replica any more; returns the answers that have become complete."""
        return self._excuse(replica)

    def fenced(self, replica: int) -> list[ControlReply]:
        """The same for a replica that counts as dead from now on."""
        return self._excuse(replica, remark=_fenced(replica))

    def silent(self, replica: int, for_s: float) -> list[ControlReply]:
        """The same for one that should answer and does not: its commands fail."""
        return self._excuse(
            replica, failure=f"replica {replica} has not answered for {for_s:.0f} s; its process may be stopped"
        )

    def _excuse(self, replica: int, *, remark: str = "", failure: str = "") -> list[ControlReply]:
        found = []
        for control_id, asked in list(self._asked.items()):
            if replica in asked.waiting:
                asked.waiting.discard(replica)
                asked.remarks += [remark] if remark else []
                asked.failures += [failure] if failure else []
                found += self._settle(control_id, asked)
        return found

    def _settle(self, control_id: str, asked: _Asked) -> list[ControlReply]:
        if asked.waiting:
            return []
        del self._asked[control_id]
        message = "; ".join([*asked.failures, *asked.remarks])
        return [ControlReply(control_id, ok=not asked.failures, message=message)]


def _fenced(replica: int) -> str:
    return f"replica {replica} is silent and counts as dead; it begins with an empty cache once it is heard"
