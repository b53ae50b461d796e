"""`Controls`: commands of operators that go to every replica, and the one answer to each. Sans-io."""

from __future__ import annotations

from collections.abc import Collection

from radixrt.messages.scheduler import ControlReply, ControlReq


class _Asked:
    """Command that some replicas have not answered yet."""

    def __init__(self, waiting: set[int]) -> None:
        self.waiting = waiting
        self.failures: list[str] = []


class Controls:
    """Commands that are under way. A replica that dies owes no answer: nothing is left of what the command concerns."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}

    def ask(self, request: ControlReq, replicas: Collection[int]) -> list[ControlReply]:
        """Note that a command is sent to these replicas; returns the answer if there are none."""
        if not replicas:
            return [ControlReply(request.id, ok=True)]
        self._asked[request.id] = _Asked(set(replicas))
        return []

    def answered(self, replica: int, reply: ControlReply) -> list[ControlReply]:
        """Take the answer of a replica; returns that of all of them if it was the last."""
        asked = self._asked.get(reply.id)
        if asked is None or replica not in asked.waiting:
            return []
        if not reply.ok:
            asked.failures.append(f"replica {replica}: {reply.message}")
        return self._settle(reply.id, asked, replica)

    def lost(self, replica: int) -> list[ControlReply]:
        """Expect nothing of a replica any more; returns the answers that have become complete."""
        found = []
        for control_id, asked in list(self._asked.items()):
            if replica in asked.waiting:
                found += self._settle(control_id, asked, replica)
        return found

    def _settle(self, control_id: str, asked: _Asked, replica: int) -> list[ControlReply]:
        asked.waiting.discard(replica)
        if asked.waiting:
            return []
        del self._asked[control_id]
        return [ControlReply(control_id, ok=not asked.failures, message="; ".join(asked.failures))]
