"""Messages between the client (main process) and the tokenizer process.

client -> tokenizer   ClientRequest, AbortReq, ReleaseReq, ControlReq
tokenizer -> client   OutputBatch, EngineReady, ControlReply, SchedulerStats, FromRouter

The tokenizer process also forwards the messages of `radixrt.messages.cache_events`, in both directions.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import msgspec

from radixrt.messages.cache_events import FromWatched, PageWatch, PageWatched, ToWatched
from radixrt.messages.fleet import FromRouter
from radixrt.messages.parts import (
    Activation,
    ChatPrompt,
    ConstraintInfo,
    FillInTokens,
    Finish,
    ImageInput,
    Pooling,
    PromptPart,
    Timings,
    Usage,
)
from radixrt.messages.reads import PromptValues, ReportsPrompt, TokenLogprob
from radixrt.messages.request import Envelope
from radixrt.messages.runner import WeightsInfo
from radixrt.messages.scheduler import AbortReq, ControlReply, ControlReq, ReleaseReq, SchedulerReady, TokenBatch
from radixrt.messages.scheduler_stats import SchedulerStats
from radixrt.messages.wire import Message, unpack_i32
from radixrt.sampling_params import SamplingParams

Task = Literal["generate", "score", "embed", "classify", "rerank", "tokenize"]


class TextInput(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Text, before which the tokenizer writes the model's own special tokens. Control tokens in texts are recognized.

    Attributes:
        param: the sender's name of the text, for errors.
        before: index of another text of the request, which is written before this text; -1 for none.
    """

    text: str
    param: str = "prompt"
    before: int = -1


class TokenInput(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Token ids, an int32[n] column; `param` is the sender's name of the column, for errors."""

    ids: bytes
    param: str = "input_ids"


class PartsInput(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Prompt in parts, in order. Adjacent texts are tokenized as one text. If the first part is a user's text, the
    model's own special tokens are added before it.

    Attributes:
        images: pictures of the prompt, in its order. Texts of the chat template have the model's image token for each
            picture; token ids have the keys of the picture's positions (`radixrt.messages.images`), as `prompt_ids` of
            an earlier output reports them.
    """

    parts: list[PromptPart]
    images: list[ImageInput] = []


class PairInput(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Query and document in one prompt, by the model's template of pairs or the tokenizer's own encoding of a pair.

    Attributes:
        query, document, instruction: indices of texts of the request; -1 for the model's own instruction.
    """

    query: int
    document: int
    instruction: int = -1


Input = TextInput | TokenInput | PartsInput | PairInput | ChatPrompt
"""Prompt of a row."""


class Continuations(msgspec.Struct, frozen=True, array_like=True):
    """Texts that may follow a prompt; the log-probability of each of their tokens is read.

    Attributes:
        texts: at least one, all distinct and none empty. They are plain text: control tokens in them are not
            recognized. If the prompt ends in a text, its last run of texts is tokenized together with each of them.
        unconditional: the same tokens are also read after the tokens that begin a text, without the prompt.
    """

    texts: list[str]
    unconditional: bool = False


class InputRow(msgspec.Struct, frozen=True, array_like=True):
    """Prompt, and the values that are read from its forward pass.

    At most one of pooling, targets and continuations is set.

    Attributes:
        pooling: read the pooled final hidden states, or their logits if the model has a classification head.
        targets: token ids whose log-probabilities as the next token after the prompt are read.
        continuations: texts whose tokens are read; the request has no other row then.
        keep_last: maximum number of prompt tokens; a longer prompt is cut to its last `keep_last` tokens. None: never
            cut.
        decode: the output has the text of the prompt's token ids, without special tokens if True; None for no text.
    """

    input: Input
    pooling: Pooling | None = None
    targets: list[int] = []
    continuations: Continuations | None = None
    keep_last: int | None = None
    decode: bool | None = None

    @property
    def images(self) -> list[ImageInput]:
        """Pictures of the prompt, in its order."""
        return self.input.images if isinstance(self.input, (ChatPrompt, PartsInput)) else []


class ClientRequest(Message, frozen=True, array_like=True, tag=True):
    """Request of a client: rows to compute. `radixrt.tasks` makes requests, and makes answers from their outputs.

    A request with sampling parameters has a single row, which is continued. A request without sampling parameters is
    answered with one RequestOutput, whose `values` hold the values that the rows read. If no row reads a value, the
    tokenizer process answers without a forward pass.

    Attributes:
        sampling: sampling parameters with n = 1; a client sends n requests for n completions.
        stream: send an increment for every step; otherwise one RequestOutput carries the whole output.
        return_prompt_ids: the first RequestOutput carries the token ids of the only row's prompt; False if the client
            has the ids already.
        texts: texts that inputs refer to by index, so that each text is sent once.
        task: name of the task, for traces.
    """

    envelope: Envelope
    rows: list[InputRow]
    sampling: SamplingParams | None = None
    stream: bool = False
    return_prompt_ids: bool = True
    texts: list[TextInput] = []
    task: Task = "generate"

    @property
    def rid(self) -> str:
        """Id of the request."""
        return self.envelope.rid

    @property
    def computes(self) -> bool:
        """Whether the request needs a forward pass; otherwise the tokenizer answers it."""
        return self.sampling is not None or any(row.pooling or row.targets or row.continuations for row in self.rows)


class ContinuationTokens(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of continuations.

    Attributes:
        token_ids: token ids of each text as read, after the prompt's first `kept` tokens.
        kept: number of prompt tokens before the texts; fewer than the prompt has if the end of its last text is
            tokenized differently together with one of them.
    """

    token_ids: list[list[int]]
    kept: int


class RequestOutput(msgspec.Struct, ReportsPrompt, frozen=True, array_like=True, dict=True):
    """Output of a request: an increment, or the whole output (`radixrt.client.collector` merges increments).

    The text of an increment never ends inside a code point or inside a text that a stop string could still match. Such
    text is held back for the next increment; the token ids are not held back.

    Attributes:
        text: output text, without the stop string or end token unless the request asked for it.
        output_ids: int32[n] column of output token ids, the stop token included if one ended the request.
        finish: set on the last increment only.
        usage, timings, constraint: set together with `finish`.
        logprobs: one entry for each token of `output_ids`, if requested.
        prompt_values: values read of the prompt, if requested; on the first increment.
        prompt_ids: int32[n] column of the tokenized prompt, on the first increment, unless the request declined it.
            At positions of images it has their keys for a prompt in parts, and the model's image token for a chat.
        values: float32 column of the values that the rows of a request without sampling read, row by row, on its only
            output: pooled hidden states or logits, log-probabilities of targets, or log-probabilities of each token of
            each continuation, followed by the log-probabilities without the prompt, if requested. None after an error
            or an abort.
        continuations: tokens of a row's continuations.
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
    prompt_values: PromptValues | None = None
    prompt_ids: bytes | None = None
    constraint: ConstraintInfo | None = None
    kept: int | None = None
    tail: str = ""
    values: bytes | None = None
    continuations: ContinuationTokens | None = None

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
        """ "stop", "length", "timeout", "abort" or "error"; None for an increment that is not the last."""
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


class EmbeddingInfo(msgspec.Struct, frozen=True, array_like=True):
    """Conversion of final hidden states to embeddings, as the model's files define it.

    Attributes:
        pooling: the hidden states that are pooled.
        normalize: whether vectors are scaled to length 1, unless a call says otherwise.
        size: length of a vector, the model's hidden size; None if the configuration does not name the size.
        prompts: texts to write before an embedded text, by name.
        default_prompt: name of the prompt for calls that name no prompt; None for no prompt.
    """

    pooling: Pooling = "last"
    normalize: bool = True
    size: int | None = None
    prompts: dict[str, str] = {}
    default_prompt: str | None = None


class RelevanceInfo(msgspec.Struct, frozen=True, array_like=True):
    """Method to score pairs of a query and a document, as the model's files define it.

    Attributes:
        scorer: "cosine" of two vectors, "classifier" for the logit of the only label, "tokens" for the log-odds of two
            tokens after the pair; None for a model that scores no pairs.
        activation: function that turns a logit or log-odds into a score.
        tokens: (id of the token for "relevant", id of the token for "irrelevant").
    """

    scorer: Literal["cosine", "classifier", "tokens"] | None = None
    activation: Activation = "none"
    tokens: tuple[int, int] = (0, 0)


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
        kv_cache_dtype: see `RunnerReady`.
        fill_in: None for a tokenizer without tokens for filling in the middle.
        embedding, relevance: definitions of embeddings and scores of pairs in the model's files.
        activation: function that turns the logits of `labels` into scores.
        weights: formats of the weights; see `RunnerReady`.
        max_images: images of a request, at most; 0 for a model that reads no images.
        image_token: text that the chat template writes for an image; empty for a model that reads no images.
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
    embedding: EmbeddingInfo = EmbeddingInfo()
    activation: Activation = "none"
    relevance: RelevanceInfo = RelevanceInfo()
    kv_cache_dtype: str = ""
    weights: WeightsInfo = WeightsInfo()
    max_images: int = 0
    image_token: str = ""


ToTokenizer = (
    ClientRequest
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
