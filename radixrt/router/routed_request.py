"""`RoutedRequest`: a request between its arrival at the router and its finish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from radixrt.messages.request import Request, Row
from radixrt.parts.overload.prediction import Arrival, arrival_of
from radixrt.router.replica_index import Prefix


class Work(NamedTuple):
    """Work of a request on a replica, in tokens.

    Attributes:
        miss: input tokens that the replica has to compute.
        length: input tokens.
        output: expected output tokens.
    """

    miss: int
    length: int
    output: float


class RoutedRequest:
    """One open request. Written by `Router` alone.

    Attributes:
        arrival: the request's tokens and limits; `message.rid` and `arrival.rid` are the same.
        input_len: number of input tokens at arrival: of a prompt, or of all sequences of a group.
        seq: order of arrival.
        program_seq: `seq` of the first request of the same program.
        arrived_at, sent_at: times of the arrival and of the latest sending.
        deadline: time at which the request ends with an error.
        prefix: chain hashes of the input.
        replica: replica to which the request is bound; None if no replica is up.
        is_sent: the replica has the request; otherwise the request waits in the router.
        work: work on this replica.
        booked: booking in the index, while the request is sent.
        resumed_ids: int32 column of output tokens that replicas sent before they died.
        is_aborted: the replica has been told to end the request.
        has_started: the replica has sent output since the request was sent.
        deaths: number of replicas that died while the request was open there.
    """

    def __init__(
        self, message: Request, seq: int, program_seq: int, now: float, *, max_len: int, timeout_s: float
    ) -> None:
        self.message = message
        self.arrival: Arrival = arrival_of(message, max_len, timeout_s)
        self.input_len = len(self.arrival.ids) + self.arrival.new_tokens
        self.seq = seq
        self.program_seq = program_seq
        self.arrived_at = now
        self.deadline = now + timeout_s
        self.prefix = Prefix(self.arrival.ids.tobytes(), self.arrival.namespace, len(self.arrival.ids))
        self.replica: int | None = None
        self.is_sent = False
        self.sent_at = now
        self.work = Work(0, 0, 0.0)
        self.booked: Sequence[int] = ()
        self.resumed_ids = b""
        self.is_aborted = False
        self.has_started = False
        self.deaths = 0

    @property
    def rid(self) -> str:
        return self.message.rid

    @property
    def length(self) -> int:
        """Number of input tokens on the next replica: the input, and the output of replicas that died."""
        return self.input_len + self.num_resumed

    @property
    def num_resumed(self) -> int:
        return len(self.resumed_ids) // 4

    @property
    def begins_program(self) -> bool:
        """The request is the first of its program, and other requests will follow."""
        hint = self.message.envelope.program
        return hint is not None and hint.will_continue and self.seq == self.program_seq and not self.deaths

    @property
    def slots(self) -> float:
        """KV slots that the request is expected to take on its replica, beyond the cached prefix."""
        return self.work.miss + self.work.output

    def resumed(self, now: float) -> Request:
        """Return the message to send now: with the output so far, and the rest of the request's time."""
        changes: dict[str, object] = {}
        if self.resumed_ids:
            changes["resume_ids"] = self.resumed_ids
            # The first output brought the prompt's log-probabilities and hidden states already.
            changes["rows"] = [Row(row.ids, row.prefix) for row in self.message.rows]
        if now > self.arrived_at:
            left = max(self.deadline - now, 1e-3)
            changes["envelope"] = msgspec.structs.replace(self.message.envelope, timeout_s=left)
        return msgspec.structs.replace(self.message, **changes) if changes else self.message
