"""Messages between the client (main process) and the tokenizer process.

client -> tokenizer   GenerateReq, ScoreReq, TokenizeReq, DetokenizeReq, AbortReq, ReleaseReq, ControlReq
tokenizer -> client   OutputBatch, EngineReady, ControlReply, SchedulerStats
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from radixrt.messages.parts import (
    ChatPrompt,
    ConstraintInfo,
    Finish,
    ProgramHint,
    PromptPart,
    SelectMethod,
    Timings,
    Usage,
)
from radixrt.messages.scheduler import (
    AbortReq,
    ControlReply,
    ControlReq,
    ReleaseReq,
    SchedulerReady,
    SchedulerStats,
    TokenBatch,
)
from radixrt.messages.wire import Message, unpack_i32
from radixrt.sampling_params import SamplingParams


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
        stream: text is wanted as it comes; otherwise one RequestOutput ends the request and carries everything.
        priority: higher is scheduled first, and kept longer by priority eviction.
        cache_salt: namespace of the radix cache; requests share prefixes only within one.
        timeout_s: the request ends with an error after this long, wherever it is; None for the engine's default.
        program: where it stands in a program.
        return_prompt_ids: its first RequestOutput brings the prompt's token ids; False for a client that has them.
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
    """The token ids of a prompt, given as in `GenerateReq`; answered by one RequestOutput with `prompt_ids`."""

    rid: str
    prompt: str | None = None
    input_ids: bytes | None = None
    chat: ChatPrompt | None = None
    parts: list[PromptPart] | None = None


class DetokenizeReq(Message, frozen=True, array_like=True, tag=True):
    """The text of token ids (int32 column); answered by one RequestOutput with `text`."""

    rid: str
    token_ids: bytes
    skip_special_tokens: bool = True


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


class RequestOutput(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """Output of one request: an increment of it, or all of it (`radixrt.client.collector` merges increments).

    The text of an increment never ends inside a code point or inside a text that a stop string could still match;
    its token ids run ahead of its text by what is held back.

    Attributes:
        text: output text, without the stop string or end token unless the request asked for it.
        output_ids: int32[n] column of output token ids, the stop token included if one ended the request.
        finish: set on the last increment only.
        usage, timings, constraint: set together with `finish`.
        logprobs: one entry for each token of `output_ids`, if requested.
        prompt_logprobs: one entry for each token of the prompt, if requested; on the first increment.
        prompt_ids: int32[n] column of the tokenized prompt, on the first increment, unless the request declined it.
        decision: result of a ScoreReq, on its only output; None after an error or an abort.
        kept: number of leading output tokens whose text is a prefix of the whole `text`; set together with `finish`
            for a generated text. Fewer than the output tokens if a stop token was excluded from the text, if a stop
            string begins inside a token, or after a special token that the text hides.
        tail: rest of the whole text after these tokens.
    """

    rid: str
    text: str = ""
    output_ids: bytes = b""
    finish: Finish | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    prompt_ids: bytes | None = None
    constraint: ConstraintInfo | None = None
    decision: ChoiceScores | None = None
    kept: int | None = None
    tail: str = ""

    @cached_property
    def token_ids(self) -> list[int]:
        """Output token ids, decoded from the column on first use."""
        return unpack_i32(self.output_ids).tolist()  # type: ignore[no-any-return]

    @cached_property
    def prompt_token_ids(self) -> list[int]:
        """Token ids of the prompt, decoded from the column on first use; empty if the output does not carry them."""
        return [] if self.prompt_ids is None else unpack_i32(self.prompt_ids).tolist()

    @property
    def finish_reason(self) -> str | None:
        """ "stop", "length", "abort" or "error"; None for an increment that is not the last."""
        return None if self.finish is None else self.finish.reason

    @property
    def matched_stop(self) -> int | str | None:
        """Stop string or stop token id that ended the request."""
        return None if self.finish is None else self.finish.matched

    @property
    def forced_close(self) -> bool:
        """Whether a constrained output was closed early because max_tokens, the context or the time was used up."""
        return self.finish is not None and self.finish.forced_close


class OutputBatch(Message, frozen=True, array_like=True, tag=True):
    """Outputs of one or more requests (tokenizer to client), at most one increment for each."""

    outputs: list[RequestOutput]


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
ToMain = OutputBatch | EngineReady | ControlReply | SchedulerStats
