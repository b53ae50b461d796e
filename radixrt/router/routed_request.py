"""`RoutedRequest`: a request between its arrival at the router and its finish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from radixrt.messages.scheduler import TokenizedEmbedReq, TokenizedReq, TokenizedScoreReq
from radixrt.router.replica_index import Prefix
from radixrt.scheduler.load import Arrival, arrival_of

Routable = TokenizedReq | TokenizedScoreReq | TokenizedEmbedReq


class Work(NamedTuple):
    """Work of a request on a replica, in tokens.

    Attributes:
        miss: input tokens to compute there.
        length: input tokens.
        output: tokens that it is expected to sample.
    """

    miss: int
    length: int
    output: float


class RoutedRequest:
    """One open request. Written by `Router` alone.

    Attributes:
        arrival: what it brings; `message.rid` and `arrival.rid` are the same.
        input_len: number of input tokens that it came with: a prompt, or all sequences of a group.
        seq: order of arrival.
        program_seq: that of its program's first request.
        arrived_at: time of its arrival.
        deadline: time at which it ends with an error.
        prefix: chain hashes of its input.
        replica: replica that it is bound to; None if no replica is up.
        is_sent: the replica has it; otherwise it waits in the router.
        work: on that replica.
        booked: booking in the index, while it is sent.
        resumed_ids: int32 column of output tokens that replicas sent before they died.
        is_aborted: its replica has been told to end it.
        has_started: anything has come back since it was sent.
        deaths: number of replicas that died while they had it.
    """

    def __init__(
        self, message: Routable, seq: int, program_seq: int, now: float, *, max_len: int, timeout_s: float
    ) -> None:  # fmt: skip
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
        """Number of input tokens on the next replica, with what came back of replicas that died."""
        return self.input_len + self.num_resumed

    @property
    def num_resumed(self) -> int:
        return len(self.resumed_ids) // 4

    @property
    def begins_program(self) -> bool:
        """It is the first of a program's calls, and others will follow."""
        hint = self.message.program
        return hint is not None and hint.will_continue and self.seq == self.program_seq and not self.deaths

    @property
    def slots(self) -> float:
        """Slots of the KV pool that it is expected to take where it is bound, beyond what is cached there."""
        return self.work.miss + self.work.output

    def resumed(self, now: float) -> Routable:
        """Return the message to send now: with the output so far, and the rest of its time. What the first output
        brought of the prompt is not asked for again."""
        changes: dict[str, object] = {}
        if self.resumed_ids:
            changes["resume_ids"] = self.resumed_ids
            if isinstance(self.message, TokenizedReq):
                changes["sampling"] = msgspec.structs.replace(
                    self.message.sampling, prompt_logprobs=None, return_hidden_states=None
                )
        if now > self.arrived_at:
            changes["timeout_s"] = max(self.deadline - now, 1e-3)
        return msgspec.structs.replace(self.message, **changes) if changes else self.message
