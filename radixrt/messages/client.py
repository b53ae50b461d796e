"""Messages between the client (main process) and the tokenizer process.

client -> tokenizer   GenerateReq, ScoreReq, EmbedReq, ClassifyReq, RelevanceReq, TokenizeReq, DetokenizeReq, AbortReq,
                      ReleaseReq, ControlReq
tokenizer -> client   OutputBatch, EngineReady, ControlReply, SchedulerStats, FromRouter

Those of `radixrt.messages.cache_events` are passed on, both ways.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from radixrt.messages.cache_events import FromWatched, PageWatch, PageWatched, ToWatched
from radixrt.messages.fleet import FromRouter
from radixrt.messages.parts import (
    ChatPrompt,
    ConstraintInfo,
    FillInTokens,
    Finish,
    HiddenStates,
    ProgramHint,
    PromptPart,
    SelectMethod,
    Timings,
    Usage,
)
from radixrt.messages.scheduler import AbortReq, ControlReply, ControlReq, ReleaseReq, SchedulerReady, TokenBatch
from radixrt.messages.scheduler_stats import SchedulerStats
from radixrt.messages.wire import Message, unpack_i32
from radixrt.sampling_params import SamplingParams


class GenerateReq(Message, frozen=True, array_like=True, tag=True):
    """Request for one completion. Exactly one of prompt, input_ids, chat and parts is set.

    Attributes:
        rid: unique id of the request, at most 256 characters.
        prompt: text; the tokenizer adds the model's own special tokens.
        input_ids: int32[n] column of token ids.
        chat: conversation for the chat template.
        parts: the prompt in parts, in order. Adjacent texts are tokenized as one text. If the first part is a user's
            text, the model's own special tokens are added before it.
        sampling: sampling parameters with n = 1; the client sends n requests for n completions.
        stream: send an increment for every step; otherwise one RequestOutput carries the whole output.
        priority: requests with a higher priority are scheduled first and evicted later by priority eviction.
        cache_salt: namespace of the radix cache; requests share prefixes only within the same namespace.
        timeout_s: seconds after which the request ends with an error; None for the engine's default.
        program: position of the request in a program.
        return_prompt_ids: the first RequestOutput carries the prompt's token ids; False for a client that has them.
        truncate_prompt_tokens: a longer prompt is cut to its last tokens, so many; None for never.
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
    truncate_prompt_tokens: int | None = None


class ScoreReq(Message, frozen=True, array_like=True, tag=True):
    """Request to score choices after a prompt. Exactly one of prompt, input_ids, chat and parts is set.

    Other attributes: see `GenerateReq`.

    Attributes:
        choices: texts that may follow the prompt, at least one, all distinct and none empty. They are plain text:
            control tokens in them are not recognized. If the prompt ends in a text, its last run of texts is tokenized
            together with each choice.
        method: how one choice is selected; see `radixrt.tokenizer.selection`.
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


class EmbedReq(Message, frozen=True, array_like=True, tag=True):
    """Request to embed prompts. Exactly one of prompts and input_ids is set, and holds at least one prompt.

    Other attributes: see `GenerateReq`.

    Attributes:
        prompts: texts; the tokenizer adds the model's own special tokens.
        input_ids: int32 columns of token ids.
        dimensions: vectors are cut to their first numbers, so many (Matryoshka embeddings); None for whole vectors.
        normalize: scale vectors to length 1, after the cut; None for what the model's own files say.
        prompt_name: name of the model's prompt that is written before each text; None for its default one, if any.
        prompt_text: this text is written before each text, in place of a prompt of the model; "" for nothing.
    """

    rid: str
    prompts: list[str] | None = None
    input_ids: list[bytes] | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None
    program: ProgramHint | None = None
    prompt_name: str | None = None
    prompt_text: str | None = None


class ClassifyReq(Message, frozen=True, array_like=True, tag=True):
    """Request for the scores of prompts by a sequence classification model. Exactly one of prompts, input_ids and chat
    is set; the first two hold at least one prompt.

    Other attributes: see `EmbedReq`.

    Attributes:
        chat: one conversation for the chat template.
        activation: False for logits, True for what the model's own files say.
    """

    rid: str
    prompts: list[str] | None = None
    input_ids: list[bytes] | None = None
    chat: ChatPrompt | None = None
    activation: bool = True
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None
    program: ProgramHint | None = None


class RelevanceReq(Message, frozen=True, array_like=True, tag=True):
    """Request for the relevance of documents to queries, pair by pair; see `radixrt.tokenizer.relevance`.

    Other attributes: see `GenerateReq`.

    Attributes:
        queries, documents: equally many texts, or one on either side, which is paired with each of the other side.
        instruction: the task, for models whose template asks for one; None for the model's own.
        activation: False for logits, True for what the model's own files say.
        retrieves: an embedding model writes its prompts for queries and for documents before these; otherwise its
            default prompt before both.
    """

    rid: str
    queries: list[str]
    documents: list[str]
    instruction: str | None = None
    activation: bool = True
    retrieves: bool = False
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None
    program: ProgramHint | None = None


class TokenizeReq(Message, frozen=True, array_like=True, tag=True):
    """Request for the token ids of a prompt, given as in `GenerateReq`; the RequestOutput has `prompt_ids`."""

    rid: str
    prompt: str | None = None
    input_ids: bytes | None = None
    chat: ChatPrompt | None = None
    parts: list[PromptPart] | None = None


class DetokenizeReq(Message, frozen=True, array_like=True, tag=True):
    """Request for the text of token ids (int32[n] column); the RequestOutput has `text`."""

    rid: str
    token_ids: bytes
    skip_special_tokens: bool = True


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token (None for the first token of a prompt), with the alternatives at its position.

    Attributes:
        text, data: the token as text (with U+FFFD for bytes that are not UTF-8) and as bytes.
        top: the most probable tokens at the position, best first.
        allowed: number of tokens that the request's constraint allowed there; None without one.
        forced: the constraint determined the text that follows.
    """

    token_id: int
    text: str
    data: bytes
    logprob: float | None
    top: list[TokenLogprob] = []
    allowed: int | None = None
    forced: bool = False


class ChoiceScores(msgspec.Struct, frozen=True, array_like=True):
    """Scores of the choices of a ScoreReq, in its order.

    Attributes:
        choice: index of the selected choice.
        logprobs: natural logarithm of the probability of each choice's tokens.
        scores: value of each choice that the method compares; the highest is selected.
        probabilities: softmax of `scores`.
        token_ids: token ids of each choice as scored, after the prompt's first `kept` tokens.
        kept: number of prompt tokens before the choices; fewer than the prompt has if the end of its last text is
            tokenized differently together with a choice.
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
        embeddings: result of an EmbedReq, on its only output: float32 column of all vectors, prompt by prompt.
        pooled_scores: result of a ClassifyReq or RelevanceReq, on its only output: float32 column with a number for
            each label of each prompt, or for each pair.
        hidden_states: of the prompt's last token or of all its tokens, if requested; on the first increment.
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
    embeddings: bytes | None = None
    pooled_scores: bytes | None = None
    hidden_states: HiddenStates | None = None

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
        """True if a constrained output was closed early because max_tokens, the context or the time was used up."""
        return self.finish is not None and self.finish.forced_close


class OutputBatch(Message, frozen=True, array_like=True, tag=True):
    """Outputs of one or more requests (tokenizer to client), at most one increment for each."""

    outputs: list[RequestOutput]


class EngineReady(Message, frozen=True, array_like=True, tag=True):
    """Announcement that tokenizer, scheduler and runners are ready (tokenizer to client), after each of their starts.

    Attributes:
        vocab_size, context_length: sizes of the model, in tokens.
        max_input_tokens: length of the longest prompt that can be served, bounded by the context and the KV pool.
        num_slots: tokens that the KV pool holds.
        chat_templates: Jinja sources by name, e.g. "default".
        special_tokens: texts of special tokens by name, e.g. "bos_token".
        tokenizer_info: JSON object, tokenizer_config.json as it is in use; empty without a tokenizer.
        epoch: the runners' epoch; see `RunnerRestarted`.
        generates: False for a model without an output head, which embeds or classifies only.
        labels: names of the labels of a sequence classification model; empty for any other.
        num_states: slots of recurrent states; see `RunnerReady`.
        fill_in: None for a tokenizer without tokens for filling in the middle.
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
    tokenizer_info: bytes = b""
    epoch: int = 0
    generates: bool = True
    labels: tuple[str, ...] = ()
    num_states: int = 0
    fill_in: FillInTokens | None = None


ToTokenizer = (
    GenerateReq
    | ScoreReq
    | EmbedReq
    | ClassifyReq
    | RelevanceReq
    | TokenizeReq
    | DetokenizeReq
    | AbortReq
    | ReleaseReq
    | ControlReq
    | TokenBatch
    | SchedulerReady
    | ControlReply
    | SchedulerStats
    | FromRouter
    | ToWatched
    | FromWatched
    | PageWatch
    | PageWatched
)
ToMain = OutputBatch | EngineReady | ControlReply | SchedulerStats | FromRouter | FromWatched | PageWatched
