"""Messages between the tokenizer process and the scheduler process, and of main to the scheduler.

tokenizer -> scheduler   TokenizedReq, TokenizedScoreReq, TokenizedEmbedReq, AbortReq, ReleaseReq, ControlReq
main      -> scheduler   RunnerRestarted
router    -> scheduler   Reset, in place of the tokenizer (`radixrt.messages.fleet`)
scheduler -> tokenizer   TokenBatch, SchedulerReady, ControlReply, SchedulerStats (`radixrt.messages.scheduler_stats`)

Those of `radixrt.messages.cache_events` travel both ways too, to and from whoever watches the cache.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from radixrt.messages.cache_events import PageWatch, ToWatched
from radixrt.messages.parts import ConstraintInfo, Finish, LogprobColumns, Pooling, ProgramHint, Timings, Usage
from radixrt.messages.wire import Message
from radixrt.sampling_params import SamplingParams


class TokenizedReq(Message, frozen=True, array_like=True, tag=True):
    """Generation request whose prompt is an int32[n] column of token ids, all within the vocabulary and the context.

    Attributes:
        turn_len: number of leading tokens of a conversation up to the end of its last message, before the generation
            prompt; 0 if unknown.
        resume_ids: int32 column of output tokens that another scheduler has sent for this request before it died. They
            count as output everywhere (max_tokens, penalties, positions, grammar), and are not sent again.

    Other attributes: see `GenerateReq`.
    """

    rid: str
    input_ids: bytes
    sampling: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None
    program: ProgramHint | None = None
    turn_len: int = 0
    resume_ids: bytes = b""


class ScoreRow(msgspec.Struct, frozen=True, array_like=True):
    """Sequence of a scoring request, and the tokens to score in it.

    Attributes:
        prefix: index of the prefix that the sequence begins with, among the request's prefixes.
        path: int32[m], tokens after the prefix; may be empty.
        positions: int32[q], ascending positions in the sequence.
        targets: int32[q], token at each position whose log-probability as the next token is returned.
    """

    prefix: int
    path: bytes
    positions: bytes
    targets: bytes


class TokenizedScoreReq(Message, frozen=True, array_like=True, tag=True):
    """Request to score rows. One TokenDelta answers it; its `values` are the log-probabilities, row by row.

    Attributes:
        prefixes: int32 columns of token ids, none of them empty.
        rows: sequences to score; those with the same prefix are adjacent.
    """

    rid: str
    prefixes: list[bytes]
    rows: list[ScoreRow]
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None
    program: ProgramHint | None = None


class TokenizedEmbedReq(Message, frozen=True, array_like=True, tag=True):
    """Request for the pooled final hidden states of prompts. One TokenDelta answers it; its `values` are these, prompt
    by prompt, or their logits if the model has a classification head.

    Attributes:
        prompts: int32 columns of token ids, none of them empty.
        pooling: "last" for the hidden state of a prompt's last token, "mean" for the mean over all its tokens.
    """

    rid: str
    prompts: list[bytes]
    pooling: Pooling
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None
    program: ProgramHint | None = None


class AbortReq(Message, frozen=True, array_like=True, tag=True):
    """Request to stop generating for `rid`; an unknown `rid` is not an error.

    Attributes:
        reason: "stop" if the tokenizer found a stop string, so that the output is complete; otherwise "abort".
    """

    rid: str
    reason: Literal["abort", "stop"] = "abort"


class ReleaseReq(Message, frozen=True, array_like=True, tag=True):
    """Notice that a program (see `ProgramHint`), or one branch of it, sends no more requests.

    Unknown ids have no effect, and there is no reply.
    """

    program: str
    branch: str | None = None


class ControlReq(Message, frozen=True, array_like=True, tag=True):
    """Command of an operator to the scheduler, answered by one ControlReply with the same id.

    Attributes:
        op: "flush_cache" evicts all unlocked nodes of the prefix cache; "check" checks the invariants and reports the
            first that fails; "drain" refuses new requests from now on and replies when the last request has finished.
    """

    id: str
    op: Literal["flush_cache", "check", "drain"]


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
        prompt_logprobs: rows for prompt tokens 1..len-1 (the first has none), if requested; on the first delta.
        hidden_states: float32 column of the hidden states that the request asked for; on the first delta.
        values: float32 column that answers a TokenizedScoreReq or a TokenizedEmbedReq; None after an error or an abort.
    """

    rid: str
    token_ids: bytes = b""
    finish: Finish | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    logprobs: LogprobColumns | None = None
    prompt_logprobs: LogprobColumns | None = None
    constraint: ConstraintInfo | None = None
    values: bytes | None = None
    hidden_states: bytes | None = None


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
        num_states: see `RunnerReady`.
    """

    num_slots: int
    max_running_requests: int
    device: str
    dtype: str
    epoch: int = 0
    num_states: int = 0


class ControlReply(Message, frozen=True, array_like=True, tag=True):
    id: str
    ok: bool
    message: str = ""


ToScheduler = (
    TokenizedReq | TokenizedScoreReq | TokenizedEmbedReq | AbortReq | ReleaseReq | ControlReq | RunnerRestarted | Reset
    | ToWatched | PageWatch
)  # fmt: skip
