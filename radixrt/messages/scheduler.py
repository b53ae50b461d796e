"""Messages between the tokenizer process and the scheduler process, and of main to the scheduler.

tokenizer -> scheduler   Request (`radixrt.messages.request`), AbortReq, ReleaseReq, ControlReq
main      -> scheduler   RunnerRestarted
router    -> scheduler   Reset, in place of the tokenizer (`radixrt.messages.fleet`), and `radixrt.messages.peers`
scheduler -> tokenizer   TokenBatch, SchedulerReady, ControlReply, SchedulerStats (`radixrt.messages.scheduler_stats`)

The messages of `radixrt.messages.cache_events` travel in both directions too, between the scheduler and readers of
cache events.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from radixrt.messages.cache_events import PageWatch, ToWatched
from radixrt.messages.parts import ConstraintInfo, Finish, LogprobColumns, ReadValues, Timings, Usage
from radixrt.messages.peers import ToPeer
from radixrt.messages.request import Request
from radixrt.messages.runner import WeightsInfo
from radixrt.messages.wire import Message


class AbortReq(Message, frozen=True, array_like=True, tag=True):
    """Request to stop generating for `rid`; an unknown `rid` is not an error.

    Attributes:
        reason: "stop" if the tokenizer found a stop string, so that the output is complete; otherwise "abort".
    """

    rid: str
    reason: Literal["abort", "stop"] = "abort"


class ReleaseReq(Message, frozen=True, array_like=True, tag=True):
    """Notice that a program (see `ProgramHint`), or a branch of the program, sends no more requests.

    Unknown ids have no effect, and there is no reply.
    """

    program: str
    branch: str | None = None


class ControlReq(Message, frozen=True, array_like=True, tag=True):
    """Command of an operator to the scheduler, answered by one ControlReply with the same id.

    Attributes:
        op: "flush_cache" evicts all unlocked nodes of the prefix cache; "check" checks the invariants and reports the
            first that fails; "drain" refuses new requests from now on and replies when the last request has finished;
            "forget" drops a namespace from the prefix cache, host memory and disk, "forget_owner" all namespaces that
            begin with `namespace`, and both fail if requests of such a namespace are open.
    """

    id: str
    op: Literal["flush_cache", "check", "drain", "forget", "forget_owner"]
    namespace: str = ""


def is_forgotten(name: str, namespace: str, *, whole_owner: bool) -> bool:
    """Return True if "forget", or with `whole_owner` "forget_owner", of `namespace` drops the namespace `name`."""
    return name.startswith(namespace) if whole_owner else name == namespace


class RunnerRestarted(Message, frozen=True, array_like=True, tag=True):
    """Notice of main that all ranks of earlier epochs are dead, and that those of this epoch are starting.

    The scheduler drops the steps in flight, connects to the endpoints of the epoch, and submits steps again when every
    rank has sent its RunnerReady there.

    Attributes:
        epoch: number of this life of the ranks; larger than every earlier one.
        reason: cause of the restart, for the log: the process that failed and how.
    """

    epoch: int
    reason: str


class Reset(Message, frozen=True, array_like=True, tag=True):
    """Order of a router: forget all requests, without an answer to any, and go on with messages of the epoch with which
    this one came.

    Attributes:
        keeps_cache: the prefix cache stays as it is; otherwise it is emptied.
        answers: inbox of the router.
    """

    keeps_cache: bool = False
    answers: str = ""


class TokenDelta(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one request (scheduler to tokenizer).

    Attributes:
        token_ids: int32[n] column of new output tokens; a stop token that ended the request is the last of them.
        finish: set on the request's last delta only.
        usage, timings: set together with `finish`; `constraint` too, if the request has one.
        logprobs: n rows, if requested.
        values: values that the request's rows read, all rows joined in order. They come with the first token of a
            request that samples, otherwise with the finish; None if nothing is read, after an error or an abort.
    """

    rid: str
    token_ids: bytes = b""
    finish: Finish | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    logprobs: LogprobColumns | None = None
    constraint: ConstraintInfo | None = None
    values: ReadValues | None = None


class TokenBatch(Message, frozen=True, array_like=True, tag=True):
    """New tokens of one step (scheduler to tokenizer). Each request appears once, in one of two forms.

    Attributes:
        deltas: requests with anything other than a single output token.
        rids: requests with exactly one output token and nothing else.
        token_ids: int32[len(rids)] column of the output tokens of `rids`.
    """

    deltas: list[TokenDelta] = []
    rids: list[str] = []
    token_ids: bytes = b""


class SchedulerReady(Message, frozen=True, array_like=True, tag=True):
    """Announcement that the scheduler and all its runners are ready (scheduler to tokenizer), after each start of the
    runners.

    Attributes:
        epoch: the runners' epoch; see `RunnerRestarted`.
        num_states, kv_cache_dtype, weights: see `RunnerReady`.
    """

    num_slots: int
    max_running_requests: int
    device: str
    dtype: str
    epoch: int = 0
    num_states: int = 0
    kv_cache_dtype: str = ""
    weights: WeightsInfo = WeightsInfo()


class ControlReply(Message, frozen=True, array_like=True, tag=True):
    id: str
    ok: bool
    message: str = ""


ToScheduler = Request | AbortReq | ReleaseReq | ControlReq | RunnerRestarted | Reset | ToWatched | PageWatch | ToPeer
