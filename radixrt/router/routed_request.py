"""`RoutedRequest`: a request between its arrival at the router and its finish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from radixrt.messages.images import RowImage, images_to_encode
from radixrt.messages.parts import Timings, Usage
from radixrt.messages.request import Request
from radixrt.messages.scheduler import TokenDelta
from radixrt.parts.overload.prediction import Arrival, arrival_of
from radixrt.router.replica_index import Prefix
from radixrt.sampling_params import SamplingParams

PROMPT_ALONE = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
"""Sampling parameters with which a replica computes a prompt for another one. The token is dropped."""


class Work(NamedTuple):
    """Work of a request on a replica, in tokens.

    Attributes:
        miss: input tokens that the replica has to compute.
        length: input tokens.
        output: expected output tokens.
        images: images of the input.
    """

    miss: int
    length: int
    output: float
    images: Sequence[RowImage] = ()

    @property
    def encode(self) -> int:
        """Positions of the images that the replica has to encode, because it misses positions of theirs."""
        return sum(image.count for image in images_to_encode(self.images, self.length - self.miss))


class Prefill(NamedTuple):
    """Report on a prompt that a replica has computed for another one.

    Attributes:
        replica: the replica that has computed it.
        epoch: life of the replica, with which its prefix ends; None if the computation ended with an error.
    """

    replica: int
    epoch: int | None
    usage: Usage
    timings: Timings


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
        output: expected number of output tokens.
        is_prefill: the replica computes the prompt for another replica.
        prefilled: set once a replica has done that; None again if the replica dies before the request is sent to the
            replica that answers.
        place: replica that the request gets by the division of its fork; None outside of forks.
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
        self.output = 0.0
        self.is_prefill = False
        self.prefilled: Prefill | None = None
        self.place: int | None = None
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

    @property
    def can_prefill(self) -> bool:
        """A replica may compute the prompt for another one, which has not been done yet."""
        return self.message.sampling is not None and self.prefilled is None and not self.resumed_ids

    @property
    def reads_prompt(self) -> bool:
        """Log-probabilities or hidden states of tokens before the prompt's last one are read."""
        return self.input_len - self.prefix.length > 1

    def prompt_alone(self, now: float) -> Request:
        """Return the message with which a replica computes the prompt for another one."""
        message = self.resumed(now)
        rows = [msgspec.structs.replace(row, logprobs=None, hidden=None) for row in message.rows]
        envelope = msgspec.structs.replace(message.envelope, program=None)
        return msgspec.structs.replace(message, envelope=envelope, rows=rows, sampling=PROMPT_ALONE)

    def whole(self, delta: TokenDelta) -> TokenDelta:
        """Return the last output with the counts and times of all replicas: the wait in the router is time in the
        queue, and a token that any replica has computed for this request is no cached token."""
        timings, usage = delta.timings, delta.usage
        before = Timings() if self.prefilled is None else self.prefilled.timings
        if timings is not None and self.sent_at > self.arrived_at:
            waited = timings.queue_s + self.sent_at - self.arrived_at - before.prefill_s
            prefill_s = timings.prefill_s + before.prefill_s
            timings = msgspec.structs.replace(timings, queue_s=max(waited, 0.0), prefill_s=prefill_s)
        if usage is not None and self.prefilled is not None:
            usage = _not_twice(usage, self.prefilled.usage)
        return msgspec.structs.replace(delta, timings=timings, usage=usage)

    def resumed(self, now: float) -> Request:
        """Return the message to send now: with the output so far, and the rest of the request's time."""
        changes: dict[str, object] = {}
        if self.resumed_ids:
            changes["resume_ids"] = self.resumed_ids
            # The first output brought the prompt's log-probabilities and hidden states already.
            rows = self.message.rows
            changes["rows"] = [msgspec.structs.replace(row, logprobs=None, hidden=None) for row in rows]
        if now > self.arrived_at:
            left = max(self.deadline - now, 1e-3)
            changes["envelope"] = msgspec.structs.replace(self.message.envelope, timeout_s=left)
        return msgspec.structs.replace(self.message, **changes) if changes else self.message


def _not_twice(usage: Usage, before: Usage) -> Usage:
    """Return the usage of a request whose prompt another replica has computed before.

    Args:
        before: usage there.
    """
    computed = before.prompt_tokens - before.cached_tokens
    cached = max(usage.cached_tokens - computed, 0)
    # Computed tokens came from the other replica, so they count as fetched from there.
    excess, fetched = usage.cached_tokens - cached, dict(usage.fetched_tokens)
    for tier in sorted(fetched, key="peer".__ne__):
        taken = min(fetched[tier], excess)
        fetched[tier] -= taken
        excess -= taken
    return msgspec.structs.replace(
        usage,
        cached_tokens=cached,
        matched_tokens=usage.matched_tokens - usage.cached_tokens + cached,
        fetched_tokens={tier: tokens for tier, tokens in fetched.items() if tokens},
    )
