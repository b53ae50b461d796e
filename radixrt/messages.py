"""Every message that crosses a process boundary, and its wire form (msgpack through msgspec; nothing is pickled).

    main -> tokenizer        GenerateReq, ScoreReq, TokenizeReq, DetokenizeReq, AbortReq, ReleaseReq, ControlReq
    tokenizer -> scheduler   TokenizedReq, TokenizedScoreReq, AbortReq, ReleaseReq, ControlReq
    scheduler -> runner      ForwardStep, GrammarMask, DebugReq
    runner -> scheduler      RunnerReady, StepOutput, StepFailed, DebugReply
    scheduler -> tokenizer   TokenBatch, SchedulerReady, ControlReply, SchedulerStats
    tokenizer -> main        TextBatch, EngineReady, ControlReply, SchedulerStats

Columns of numbers are little-endian bytes (`pack_i32`, `unpack_i32`, `pack_f32`, `unpack_f32`), so a decode step of 256
rows is a few byte strings and no per-row objects. A frame that does not decode (`radixrt.channel.UNDECODABLE`) is
dropped by its reader, which lives on.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from radixrt.sampling_params import SamplingParams

I32 = np.dtype("<i4")
F32 = np.dtype("<f4")
Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]

FINISH_STOP: Final = "stop"
FINISH_LENGTH: Final = "length"
FINISH_ABORT: Final = "abort"
FINISH_ERROR: Final = "error"


def pack_i32(values: npt.ArrayLike) -> bytes:
    return np.ascontiguousarray(values, dtype=I32).tobytes()


def unpack_i32(data: bytes) -> Int32Array:
    """A read-only int32 view of the column."""
    return np.frombuffer(data, dtype=I32)


def pack_f32(values: npt.ArrayLike) -> bytes:
    return np.ascontiguousarray(values, dtype=F32).tobytes()


def unpack_f32(data: bytes) -> Float32Array:
    """A read-only float32 view of the column."""
    return np.frombuffer(data, dtype=F32)


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages: a tagged array on the wire."""


# --- what requests and their ends are made of -----------------------------------------------------------------------


class FinishError(msgspec.Struct, frozen=True, array_like=True):
    """Why a request ended with an error: what `RequestError` is before a request is sent."""

    message: str
    param: str | None = None
    code: str | None = None
    status: int = 500


class Finish(msgspec.Struct, frozen=True, array_like=True):
    """The one end of a request.

    Attributes:
        reason: "stop" (end token, stop token or stop string), "length" (max_tokens or the context's end), "abort"
            (the client went away or asked), "error" (see `error`).
        matched: the stop token id or stop string that ended it, if one did.
        error: set exactly when `reason` is "error".
        forced_close: the output of a constrained request was brought to its end along the grammar's shortest way,
            because the end of max_tokens, of the context or of its time was near.
    """

    reason: Literal["stop", "length", "abort", "error"]
    matched: int | str | None = None
    error: FinishError | None = None
    forced_close: bool = False


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of one request. `cached_tokens` counts prompt tokens whose keys and values were found in the radix cache
    at first admission (a re-admission after retraction is not a hit)."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class ConstraintInfo(msgspec.Struct, frozen=True, array_like=True):
    """How a request's constraint was enforced, with its finish.

    Attributes:
        backend: whose masks were used.
        ignored: what was not enforced because the client said so: "pointer: keyword" each.
        forced_tokens: output tokens that the grammar left no choice about and that were not sampled.
        closing_tokens: output tokens appended to end the output early.
        compile_s: seconds from the request's arrival at the scheduler to its usable grammar.
        cached: the grammar was there already.
    """

    backend: str = ""
    ignored: list[str] = []
    forced_tokens: int = 0
    closing_tokens: int = 0
    compile_s: float = 0.0
    cached: bool = False


class Timings(msgspec.Struct, frozen=True, array_like=True):
    """Seconds spent by one request, measured by the scheduler.

    Attributes:
        queue_s: from arrival at the scheduler to first admission into a batch.
        prefill_s: from first admission to the first output token.
        decode_s: from the first output token to the last.
        retractions: how often the request was put back to waiting under memory pressure.
    """

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    retractions: int = 0


class LogprobColumns(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of n tokens, natural log of the model's own distribution (before temperature and penalties).

    Attributes:
        token_logprobs: float32[n], of the token itself.
        top_ids: int32[n * k], ids of the k most probable tokens at each position, best first.
        top_logprobs: float32[n * k], theirs.
        k: alternatives per position; may be 0.
    """

    token_logprobs: bytes
    top_ids: bytes
    top_logprobs: bytes
    k: int


class ChatPrompt(msgspec.Struct, frozen=True, array_like=True):
    """A conversation to be rendered by the model's chat template in the tokenizer process.

    Attributes:
        messages: JSON array of {"role", "content", ...} objects, contents already plain strings (or null).
        add_generation_prompt: end with the header of an assistant turn.
        continue_final_message: leave the last message open, so that the answer goes on with it.
        template_kwargs: JSON object of further template variables.
        tools: JSON array of tool definitions offered to the template, or None.
    """

    messages: bytes
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: bytes = b"{}"
    tools: bytes | None = None


class TemplateText(msgspec.Struct, frozen=True):
    """Part of a prompt that the model's chat template wrote: control tokens in it are control tokens."""

    template: str


PromptPart = str | list[int] | TemplateText
"""Part of a prompt: a user's text, in which nothing is a control token; token ids, taken as they are; or a template's
text."""


# --- main -> tokenizer -> scheduler ---------------------------------------------------------------------------------


class ProgramHint(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a request's place in a program of many. Harmless when absent or wrong.

    Attributes:
        program: id of one run of a program, at most 128 characters.
        branch: id of the branch within it, at most 1,024 characters.
        fork_len: tokens at the start of the prompt that sibling branches start with too; 0 for none or not known.
        siblings: branches of that fork that are still to send calls, this one included.
        will_continue: another call is likely to go on from this one's output.
    """

    program: str
    branch: str = ""
    fork_len: int = 0
    siblings: int = 1
    will_continue: bool = False


class GenerateReq(Message, frozen=True, array_like=True, tag=True):
    """One completion to generate. Exactly one of prompt, input_ids, chat and parts is set.

    Attributes:
        rid: unique id of the request, at most 128 characters.
        prompt: text, tokenized with the model's own special tokens added.
        input_ids: int32[n] column.
        chat: conversation for the chat template.
        parts: the prompt in parts, in order. Neighbouring texts are tokenized as one; the model's own special tokens
            come before a user's text that begins the prompt.
        sampling: n is 1 here; the client sends n requests for n completions.
        stream: text is wanted as it comes; otherwise one TextDelta ends the request and carries everything.
        priority: higher is scheduled first, and kept longer by priority eviction.
        cache_salt: namespace of the radix cache; requests share prefixes only within one.
        timeout_s: the request ends with an error after this long, wherever it is; None for the engine's default.
        program: where it stands in a program.
        return_prompt_ids: its first TextDelta brings the prompt's token ids; False for a client that has them.
    """

    rid: str
    sampling: SamplingParams
    prompt: str | None = None
    input_ids: bytes | None = None
    chat: ChatPrompt | None = None
    stream: bool = False
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None
    parts: list[PromptPart] | None = None
    program: ProgramHint | None = None
    return_prompt_ids: bool = True


class TokenizedReq(Message, frozen=True, array_like=True, tag=True):
    """A request whose prompt is token ids, all within the vocabulary and the context. See `GenerateReq`."""

    rid: str
    input_ids: bytes
    sampling: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None
    program: ProgramHint | None = None


SelectMethod = Literal["token_length_normalized", "greedy", "unconditional_likelihood_normalized"]
"""How one of several choices is selected by its tokens' log-probabilities; see `radixrt.tokenizer.selection`."""


class ScoreReq(Message, frozen=True, array_like=True, tag=True):
    """Choices to be scored after a prompt. Exactly one of prompt, input_ids, chat and parts is set.

    Attributes:
        choices: texts that may follow the prompt, at least one, all different and none empty. Control tokens in them
            are not read. Where the prompt ends in a text, its last run of texts is tokenized together with each choice.
        others: see `GenerateReq`.
    """

    rid: str
    choices: list[str]
    method: SelectMethod = "token_length_normalized"
    prompt: str | None = None
    input_ids: bytes | None = None
    chat: ChatPrompt | None = None
    parts: list[PromptPart] | None = None
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None
    program: ProgramHint | None = None


class TokenizeReq(Message, frozen=True, array_like=True, tag=True):
    """The token ids of a prompt, given as in `GenerateReq`; answered by one TextDelta with `prompt_ids`."""

    rid: str
    prompt: str | None = None
    input_ids: bytes | None = None
    chat: ChatPrompt | None = None
    parts: list[PromptPart] | None = None


class DetokenizeReq(Message, frozen=True, array_like=True, tag=True):
    """The text of token ids (int32 column); answered by one TextDelta with `text`."""

    rid: str
    token_ids: bytes
    skip_special_tokens: bool = True


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


# --- scheduler -> tokenizer -> main ---------------------------------------------------------------------------------


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


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One token with its log-probability (None for a prompt's first token) and the alternatives at its position."""

    token_id: int
    text: str
    data: bytes
    logprob: float | None
    top: list[TokenLogprob] = []


class ChoiceScores(msgspec.Struct, frozen=True, array_like=True):
    """The scored choices of a ScoreReq, in its order.

    Attributes:
        choice: index of the selected one.
        logprobs: natural logarithm of the probability of each choice's tokens.
        scores: what the method compares, higher is better.
        probabilities: softmax of `scores`.
        token_ids: of each choice, as scored: what follows the prompt's first `kept` tokens.
        kept: tokens of the prompt before the choices; fewer than it has where its last text is tokenized otherwise with
            a choice behind it.
    """

    choice: int
    logprobs: list[float]
    scores: list[float]
    probabilities: list[float]
    token_ids: list[list[int]]
    kept: int


class TextDelta(msgspec.Struct, frozen=True, array_like=True):
    """New text of one request (tokenizer to main). `text` never ends inside a code point or inside a text that a stop
    string could still claim; token_ids run ahead of it by what is held back.

    Attributes:
        token_ids: int32[n] column of the new output tokens.
        prompt_ids: int32[n] column of the prompt as tokenized, on the first delta of the request unless it said not to.
        finish, usage, timings, constraint: on the last delta, and there only.
        decision: of a ScoreReq, on its only delta, unless it ended with an error or an abort.
    """

    rid: str
    text: str = ""
    token_ids: bytes = b""
    finish: Finish | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    prompt_ids: bytes | None = None
    constraint: ConstraintInfo | None = None
    decision: ChoiceScores | None = None


class TextBatch(Message, frozen=True, array_like=True, tag=True):
    deltas: list[TextDelta]


class SchedulerReady(Message, frozen=True, array_like=True, tag=True):
    """The scheduler and all its runners are ready (scheduler to tokenizer)."""

    num_slots: int
    max_running_requests: int
    device: str
    dtype: str


class EngineReady(Message, frozen=True, array_like=True, tag=True):
    """Tokenizer, scheduler and runners are ready (tokenizer to main).

    max_input_tokens is the longest prompt that can be served: the context and the KV pool both bound it.
    chat_templates holds Jinja sources by name ("default", ...), special_tokens texts by name ("bos_token", ...).
    """

    model: str
    vocab_size: int
    context_length: int
    max_input_tokens: int
    num_slots: int
    max_running_requests: int
    device: str
    dtype: str
    has_chat_template: bool
    chat_templates: dict[str, str] = {}
    special_tokens: dict[str, str] = {}


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


# --- scheduler <-> runner -------------------------------------------------------------------------------------------


class RowWrite(msgspec.Struct, frozen=True, array_like=True):
    """req_to_token[req_pool_idx, start : start + len(slots)] = slots, on the runner's mirror, before the step runs."""

    req_pool_idx: int
    start: int
    slots: bytes


class SamplingRow(msgspec.Struct, frozen=True, array_like=True):
    """A request's sampling parameters, written into the runner's tables at req_pool_idx before the step runs.

    Attributes:
        seed: always set, 64-bit.
        min_seq_len: no end or stop token is sampled while the sequence is shorter than this.
        stop_ids: int32[m], the ids held back by min_seq_len (empty when it does not apply).
        prompt_ids, output_ids: int32 columns, the tokens so far; only for a request with penalties.
        logprobs: alternatives per output token, or -1 for no log-probabilities.
        prompt_logprobs: alternatives per prompt token, or -1.
    """

    req_pool_idx: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    seed: int
    logit_bias: dict[int, float] = {}
    min_seq_len: int = 0
    stop_ids: bytes = b""
    prompt_ids: bytes = b""
    output_ids: bytes = b""
    logprobs: int = -1
    prompt_logprobs: int = -1


class ForwardStep(Message, frozen=True, array_like=True, tag=True):
    """One step for every rank, in order. B rows; T = sum of extend_lens new tokens.

    Attributes:
        mode: a `ForwardMode` value. In DECODE every row extends by its one future token: extend_lens and input_ids are
            empty, and every row samples.
        req_pool_idx: int32[B].
        seq_lens: int32[B], length of each sequence including this step's tokens.
        out_cache_loc: int32[T], the slots that the new keys and values go to; also what the mirror of req_to_token gets
            at positions [seq_len - extend_len, seq_len).
        extend_lens: int32[B], new tokens of each row.
        input_ids: int32[T]; -1 means the row's future token.
        samples: uint8[B], 1 for a row whose last position is sampled (a chunk in mid-prompt samples nothing).
        row_writes: what else changes in req_to_token, applied first.
        sampling_rows: parameters of rows that are new or changed, applied first.
        logprob_rows: int32[P], rows whose prompt log-probabilities are wanted at every new position.
        logprob_targets: int32[sum of their extend_lens], the next prompt token at each position, -1 at a prompt's last.
        score_index: int32[Q] ascending, which of the T new tokens are followed by something that is to be scored.
        score_targets: int32[Q], the token to score at each.
        has_grammar: a GrammarMask for this step follows; the runner samples only when it has come.
        shared_segments: int32[G * 4], (start, length, first, count) of each group: positions [start, start + length)
            hold the same slots for the rows shared_rows[first : first + count], two or more. Groups of one row are
            disjoint in positions; together they cover a prefix of it, without this step's tokens. Empty where sharing
            does not pay. In an EXTEND step the rows of a group have either several new tokens each, or one each.
        shared_rows: int32[N], indices of the step's rows, in depth-first order: of two groups, the rows are apart or
            those of one are a part of the other's.
    """

    step_id: int
    mode: int
    req_pool_idx: bytes
    seq_lens: bytes
    out_cache_loc: bytes
    extend_lens: bytes = b""
    input_ids: bytes = b""
    samples: bytes = b""
    row_writes: list[RowWrite] = []
    sampling_rows: list[SamplingRow] = []
    logprob_rows: bytes = b""
    logprob_targets: bytes = b""
    score_index: bytes = b""
    score_targets: bytes = b""
    has_grammar: bool = False
    shared_segments: bytes = b""
    shared_rows: bytes = b""


class GrammarMask(Message, frozen=True, array_like=True, tag=True):
    """Allowed tokens of the constrained rows of one step. A mask that several rows have is there once.

    Attributes:
        rows: int32[m], distinct indices among the step's sampling rows. Any other row may sample anything.
        index: int32[m], which of the masks each row has.
        bits: uint32[num_masks * ceil(vocab / 32)] as bytes; bit t % 32 of word t // 32 is 1 when token t is allowed.
            Empty where the ranks map a `radixrt.executor.mask_buffer.MaskBuffer`: then they are at `offset` there.
        num_masks: how many there are.
    """

    step_id: int
    rows: bytes
    index: bytes
    bits: bytes = b""
    num_masks: int = 0
    offset: int = -1


class RunnerReady(Message, frozen=True, array_like=True, tag=True):
    """A rank can take steps.

    Attributes:
        kv_layer_bytes: keys and values of one token in one layer of this rank, for weighing what rows should read once;
            0 if no layer can share.
        query_size: elements of one token's queries in such a layer, likewise.
    """

    rank: int
    num_slots: int
    vocab_size: int
    device: str
    dtype: str
    kv_layer_bytes: int = 0
    query_size: int = 0


class StepOutput(Message, frozen=True, array_like=True, tag=True):
    """What a step sampled. S rows, the step's rows with samples == 1, in order.

    Attributes:
        token_ids: int32[S].
        logprobs: one entry for each sampling row that asked for logprobs, in order; each holds one position.
        prompt_logprobs: one entry for each of the step's logprob_rows, in order.
        scores: float32[Q], log-probability of each of the step's score_targets.
        row_errors: (sampling row, message) of rows whose sampling failed (their logits were not finite); their token id
            is 0 and means nothing.
        forward_s: seconds from the runner's taking the step to its having the answer.
    """

    step_id: int
    token_ids: bytes
    logprobs: list[LogprobColumns] = []
    prompt_logprobs: list[LogprobColumns] = []
    row_errors: list[tuple[int, str]] = []
    scores: bytes = b""
    forward_s: float = 0.0


class StepFailed(Message, frozen=True, array_like=True, tag=True):
    """A step raised on a rank. Not fatal: the device's state is intact and only that step's requests are lost; so it is
    on a rank that has the model to itself."""

    step_id: int
    rank: int
    error: str
    fatal: bool


class DebugReq(Message, frozen=True, array_like=True, tag=True):
    """Asks a runner for its mirror of req_to_token (tests): rows int32[m], lens int32[m]."""

    rows: bytes
    lens: bytes


class DebugReply(Message, frozen=True, array_like=True, tag=True):
    """The rows' slots, concatenated."""

    slots: bytes


ToTokenizer = (
    GenerateReq
    | ScoreReq
    | TokenizeReq
    | DetokenizeReq
    | AbortReq
    | ReleaseReq
    | ControlReq
    | TokenBatch
    | SchedulerReady
    | ControlReply
    | SchedulerStats
)
ToScheduler = TokenizedReq | TokenizedScoreReq | AbortReq | ReleaseReq | ControlReq
ToRunner = ForwardStep | GrammarMask | DebugReq
FromRunner = RunnerReady | StepOutput | StepFailed | DebugReply
ToMain = TextBatch | EngineReady | ControlReply | SchedulerStats
