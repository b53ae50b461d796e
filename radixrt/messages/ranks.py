"""Messages of the main process to ranks on other machines, over a connection that lives as long as the rank may."""

from __future__ import annotations

from radixrt.messages.wire import Message


class RankAddresses(Message, frozen=True, array_like=True, tag=True):
    """Addresses of the scheduler of an epoch, for one rank. A rank that serves an earlier scheduler connects to the new
    scheduler.

    Attributes:
        epoch: number of the epoch, larger than the number of every earlier epoch.
        steps: endpoint from which the rank reads messages.
        answers: endpoint to which the rank sends messages.
        key: public key of both endpoints (CurveZMQ, Z85).
    """

    epoch: int
    steps: str
    answers: str
    key: str
