"""`RouterLink`: the scheduler's end of the connection with a router of replicas; inbox and outbox of the loop.

A `Reset` message begins a new epoch and gives the router's address. From then on the link drops received messages of
other epochs, and tags sent messages with the current epoch. Before the first `Reset` the link drops sent messages.
"""

from __future__ import annotations

from collections.abc import Callable

from radixrt.channel import Outbox, Tag, TaggedInbox, TaggedOutbox
from radixrt.messages.client import ToTokenizer
from radixrt.messages.scheduler import Reset, SchedulerReady, ToScheduler


class RouterLink:
    """See the module's docstring.

    Args:
        inbox: reads the messages of the router and of the main process.
        connect: opens an outbox to the router at an endpoint.
        to_main: gets each `SchedulerReady`; the main process informs the router.
    """

    def __init__(
        self,
        inbox: TaggedInbox[ToScheduler],
        connect: Callable[[str], TaggedOutbox[ToTokenizer]],
        to_main: Outbox[SchedulerReady],
    ) -> None:
        self._inbox = inbox
        self._connect = connect
        self._to_main = to_main
        self._tag = Tag(0, 0)
        self._answers = ""
        self._outbox: TaggedOutbox[ToTokenizer] | None = None

    def recv(self, timeout_s: float | None = 0.0) -> ToScheduler | None:
        """Return the next message of this epoch, or the `Reset` that begins the next epoch; see `Inbox`."""
        while (found := self._inbox.recv_tagged(timeout_s)) is not None:
            tag, message = found
            if isinstance(message, Reset):
                if tag.epoch > self._tag.epoch:
                    self._begin(tag, message.answers)
                    return message
            elif tag.epoch in (0, self._tag.epoch):
                return message
        return None

    def _begin(self, tag: Tag, answers: str) -> None:
        self._tag = tag
        if answers != self._answers:  # another router
            if self._outbox is not None:
                self._outbox.close()
            self._answers, self._outbox = answers, self._connect(answers)

    def send(self, message: ToTokenizer) -> None:
        if isinstance(message, SchedulerReady):
            self._to_main.send(message)
        elif self._outbox is not None:
            self._outbox.send_tagged(self._tag, message)

    def close(self) -> None:
        self._inbox.close()
        if self._outbox is not None:
            self._outbox.close()
