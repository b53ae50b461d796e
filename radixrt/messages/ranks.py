"""Messages of the main process to ranks on other machines, over a connection that lives as long as the rank may."""

from __future__ import annotations

from radixrt.messages.wire import Message


class RankAddresses(Message, frozen=True, array_like=True, tag=True):
    """Addresses of the scheduler of an epoch, for one rank. A rank that serves an earlier scheduler turns to this one.

    Attributes:
        epoch: larger than every earlier one.
        steps: endpoint from which the rank reads its messages.
        answers: endpoint for what the rank sends.
        key: public key of both (CurveZMQ, Z85).
    """

    epoch: int
    steps: str
    answers: str
    key: str
