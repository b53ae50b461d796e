"""Messages between the tokenizer process and the scheduler process.

tokenizer -> scheduler   TokenizedReq, TokenizedScoreReq, AbortReq, ReleaseReq, ControlReq
scheduler -> tokenizer   TokenBatch, SchedulerReady, ControlReply, SchedulerStats
"""

from __future__ import annotations

from typing import Literal

import msgspec

from radixrt.messages.parts import ConstraintInfo, Finish, LogprobColumns, ProgramHint, Timings, Usage
from radixrt.messages.wire import Message
from radixrt.sampling_params import SamplingParams


class TokenizedReq(Message, frozen=True, array_like=True, tag=True):
    """A request whose prompt is token ids, all within the vocabulary and the context. See `GenerateReq`."""

    rid: str
    input_ids: bytes
    sampling: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None
    program: ProgramHint | None = None


class ScoreRow(msgspec.Struct, frozen=True, array_like=True):
    """A sequence to compute, and what is wanted of it.

    Attributes:
        prefix: index into the request's prefixes; the sequence begins with that.
        path: int32[m], the tokens behind the prefix; may be empty.
        positions: int32[q] ascending, positions of the sequence.
        targets: int32[q], for each of them a token whose log-probability as the next one is wanted.
    """

    prefix: int
    path: bytes
    positions: bytes
    targets: bytes


class TokenizedScoreReq(Message, frozen=True, array_like=True, tag=True):
    """Rows to be scored. Answered by one TokenDelta, whose `scores` holds their log-probabilities, row by row.

    Attributes:
        prefixes: int32 columns, none of them empty.
        rows: those of one prefix are neighbours.
    """

    rid: str
    prefixes: list[bytes]
    rows: list[ScoreRow]
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None
    program: ProgramHint | None = None


class AbortReq(Message, frozen=True, array_like=True, tag=True):
    """Stop generating for rid; an unknown rid is not an error. reason "stop" means that the tokenizer saw a stop string
    and has already ended the request towards its client."""

    rid: str
    reason: Literal["abort", "stop"] = "abort"


class ReleaseReq(Message, frozen=True, array_like=True, tag=True):
    """A program (see `ProgramHint`), or one branch of it, makes no more calls. Not answered; unknown ids do nothing."""

    program: str
    branch: str | None = None


class ControlReq(Message, frozen=True, array_like=True, tag=True):
    """An operator's question or order to the scheduler, answered by one ControlReply with the same id.

    op: "flush_cache" drops everything unlocked from the prefix cache; "check" runs the invariants and answers with the
    first that fails; "drain" refuses new requests from now on and answers when the last running one has ended.
    """

    id: str
    op: Literal["flush_cache", "check", "drain"]


class TokenDelta(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one request (scheduler to tokenizer).

    Attributes:
        token_ids: int32[n] column of new output tokens; the stop token that ended the request is the last of them.
        finish: set on the request's last delta, and there only.
        usage, timings: set together with finish; `constraint` too, for a request that has one.
        logprobs: n rows, for a request that asked.
        prompt_logprobs: once, with the first output; rows for prompt tokens 1..len-1 (the first has none).
        scores: float32 column, the answer to a TokenizedScoreReq that did not end with an error or an abort.
    """

    rid: str
    token_ids: bytes = b""
    finish: Finish | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    logprobs: LogprobColumns | None = None
    prompt_logprobs: LogprobColumns | None = None
    constraint: ConstraintInfo | None = None
    scores: bytes | None = None


class TokenBatch(Message, frozen=True, array_like=True, tag=True):
    """New tokens of a step (scheduler to tokenizer); a request is in one of the two forms, and only once.

    Attributes:
        deltas: of requests with more to say than one token.
        rids: the others, which have got one output token each, and nothing else.
        token_ids: int32[len(rids)] column of these tokens.
    """

    deltas: list[TokenDelta] = []
    rids: list[str] = []
    token_ids: bytes = b""


class SchedulerReady(Message, frozen=True, array_like=True, tag=True):
    """The scheduler and all its runners are ready (scheduler to tokenizer)."""

    num_slots: int
    max_running_requests: int
    device: str
    dtype: str


class ControlReply(Message, frozen=True, array_like=True, tag=True):
    id: str
    ok: bool
    message: str = ""


class GrammarStats(msgspec.Struct, frozen=True, array_like=True):
    """Compiled constraints since the scheduler started.

    Attributes:
        compiles: constraints compiled; `compile_s` is the time that took, summed.
        hits: requests whose grammar was in memory, or being compiled for another request.
        disk_hits: constraints found compiled on disk.
        refusals: constraints refused, by the keyword at fault ("regex", "ebnf", ... where it is not a schema).
        timeouts: compiles that were ended because they took too long.
        cache_bytes, cache_entries: what is kept in memory.
    """

    compiles: int = 0
    compile_s: float = 0.0
    hits: int = 0
    disk_hits: int = 0
    refusals: dict[str, int] = {}
    timeouts: int = 0
    cache_bytes: int = 0
    cache_entries: int = 0


class ProgramStats(msgspec.Struct, frozen=True, array_like=True):
    """What programs' hints have come to. The first three are of the moment, the others since the scheduler started.

    Attributes:
        programs: programs that are known now.
        holds: nodes of the tree kept for one of their next calls; held_tokens is what these count for.
        prompt_tokens, cached_tokens: of requests with a hint.
        leases: fork prefixes that were held.
        refused_holds: hints that were ignored because their program, or all of them, held too much already.
        releases: programs and branches that said that they were done.
        expired: programs that never did.
    """

    programs: int = 0
    holds: int = 0
    held_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    leases: int = 0
    refused_holds: int = 0
    releases: int = 0
    expired: int = 0


class SchedulerStats(Message, frozen=True, array_like=True, tag=True):
    """A snapshot: gauges of the moment, and counters since the scheduler started."""

    waiting: int
    running: int
    slots_total: int
    slots_free: int
    slots_evictable: int
    slots_protected: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    evicted_tokens: int
    retractions: int
    finished: int
    extend_steps: int
    decode_steps: int
    schedule_s: float
    runner_s: float
    commit_s: float
    compiling: int = 0
    forced_tokens: int = 0
    forced_closes: int = 0
    mask_rows: int = 0
    mask_s: float = 0.0
    grammars: GrammarStats | None = None
    programs: ProgramStats | None = None


ToScheduler = TokenizedReq | TokenizedScoreReq | AbortReq | ReleaseReq | ControlReq
