"""Structs that messages of several links share: prompts, finish reasons, usage, timings and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

FINISH_STOP: Final = "stop"
FINISH_LENGTH: Final = "length"
FINISH_TIMEOUT: Final = "timeout"
FINISH_ABORT: Final = "abort"
FINISH_ERROR: Final = "error"


class FinishError(msgspec.Struct, frozen=True, array_like=True):
    """Error that ended a request; the client raises it as a `RequestError` with the same fields."""

    message: str
    param: str | None = None
    code: str | None = None
    status: int = 500
    retry_after_s: float | None = None


class Finish(msgspec.Struct, frozen=True, array_like=True):
    """Finish of a request; every request has exactly one.

    Attributes:
        reason: "stop" (end token, stop token or stop string), "length" (max_tokens or the context's end), "timeout"
            (the deadline, with the output so far), "abort" (the client disconnected or aborted it), "error" (see
            `error`).
        matched: stop token id or stop string that ended the request, if one did.
        error: set if and only if `reason` is "error".
        forced_close: the output of a constrained request was closed early along the grammar's shortest completion,
            because max_tokens, the context or its time was nearly used up.
    """

    reason: Literal["stop", "length", "timeout", "abort", "error"]
    matched: int | str | None = None
    error: FinishError | None = None
    forced_close: bool = False


def deadline_passed(waited_s: float, meanwhile: str = "") -> FinishError:
    """Return the error of a request whose deadline has passed before it had any output.

    Args:
        meanwhile: clause about the work that the time was spent on, e.g. ", while ...".
    """
    message = (
        f"the request's deadline passed after {waited_s:.1f} s{meanwhile}, and nothing was generated; give it more "
        "time (its timeout, or the server's --request-timeout-s) or less work (a shorter prompt, fewer max_tokens)"
    )
    return FinishError(message, code="timeout", status=408)


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Token counts of one request.

    Attributes:
        cached_tokens: prompt tokens that were not computed, because the radix cache had them at first admission (a
            re-admission after retraction is not a hit).
        matched_tokens: prompt tokens whose keys and values were in the radix cache then. More than cached_tokens only
            for a model with recurrent layers: the nearest state was further up, after cached_tokens tokens. 0 for a
            request that generates nothing.
        fetched_tokens: the cached tokens that were copied into the KV pool for this request, by the tier that had them,
            "host", "disk", or "peer" for another replica. The other cached tokens were in the pool.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    matched_tokens: int = 0
    fetched_tokens: dict[str, int] = {}


class ConstraintInfo(msgspec.Struct, frozen=True, array_like=True):
    """Report on the enforcement of a request's constraint, sent with its finish.

    Attributes:
        backend: grammar library that computed the masks.
        ignored: keywords that were not enforced, at the client's request, each as "pointer: keyword".
        forced_tokens: output tokens that the grammar determined and that were appended without sampling.
        closing_tokens: output tokens appended to close the output early.
        compile_s: seconds from the request's arrival at the scheduler until its grammar was ready.
        cached: the compiled grammar was already in memory.
        repetition: the output was closed because it repeated itself (`StructuredOptions.max_repetition`).
    """

    backend: str = ""
    ignored: list[str] = []
    forced_tokens: int = 0
    closing_tokens: int = 0
    compile_s: float = 0.0
    cached: bool = False
    repetition: bool = False


class Timings(msgspec.Struct, frozen=True, array_like=True):
    """Times of one request in seconds, measured by the scheduler.

    Attributes:
        queue_s: from arrival at the scheduler to first admission into a batch.
        prefill_s: from first admission to the first output token.
        decode_s: from the first output token to the last.
        retractions: number of times the request was returned to the waiting queue under memory pressure.
        arrived_at: arrival at the scheduler, in seconds of this machine's monotonic clock; 0 if it never arrived.
    """

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    retractions: int = 0
    arrived_at: float = 0.0


class LogprobColumns(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of n tokens, natural log of the model's own distribution (before temperature and penalties).

    Attributes:
        token_logprobs: float32[n], log-probability of each token.
        top_ids: int32[n * k], ids of the k most probable tokens at each position, best first.
        top_logprobs: float32[n * k], log-probabilities of `top_ids`.
        k: number of alternatives per position; may be 0.
        allowed: int32[n], number of tokens that the mask of a constraint allowed at each position; empty without one.
        forced: uint8[n], 1 where the constraint determined the text that follows; empty without one.
    """

    token_logprobs: bytes
    top_ids: bytes
    top_logprobs: bytes
    k: int
    allowed: bytes = b""
    forced: bytes = b""

    @staticmethod
    def join(parts: Sequence[LogprobColumns]) -> LogprobColumns:
        """Return the columns of consecutive tokens, in order; `parts` holds at least one, all with equally many
        alternatives."""
        if len(parts) == 1:
            return parts[0]
        return LogprobColumns(
            b"".join(part.token_logprobs for part in parts),
            b"".join(part.top_ids for part in parts),
            b"".join(part.top_logprobs for part in parts),
            parts[0].k,
            b"".join(part.allowed for part in parts),
            b"".join(part.forced for part in parts),
        )


class ReadValues(msgspec.Struct, frozen=True, array_like=True):
    """Values that rows read from forward passes.

    Attributes:
        logprobs: columns of the targets' log-probabilities: an entry for each row of a step that reads any, in order,
            and one entry for all rows of a request.
        hidden: float32[n * hidden size], or float32[n * labels] of a model with a classification head: sums over spans
            of positions in the answer of a step, means in the answer to a request.
    """

    logprobs: list[LogprobColumns] = []
    hidden: bytes = b""

    @staticmethod
    def join(values: Sequence[ReadValues]) -> ReadValues:
        """Return the values of several rows as those of one request."""
        columns = [column for each in values for column in each.logprobs]
        joined = [LogprobColumns.join(columns)] if columns else []
        return ReadValues(joined, b"".join(each.hidden for each in values))


class FillInTokens(msgspec.Struct, frozen=True, array_like=True):
    """Control tokens of a model that can write the text between two others.

    Attributes:
        before_prefix, before_suffix, before_middle: texts of the tokens before the text in front, the text behind and
            the text to be written, in the order of the prompt.
        end_ids: ids of the tokens that end the written text, besides the model's own end tokens.
    """

    before_prefix: str
    before_suffix: str
    before_middle: str
    end_ids: list[int] = []


Detail = Literal["auto", "low", "high"]
"""Tokens that a picture may take, by the client's choice: "low" for few, else as the model's files say."""


class ImageInput(msgspec.Struct, frozen=True, array_like=True):
    """Encoded picture of a prompt: a PNG, JPEG or WEBP file.

    Attributes:
        param: the sender's name of the part of the prompt that holds the picture, for errors.
        url: from where the server fetches the picture before it sends the request; empty if `data` has it.
    """

    data: bytes
    detail: Detail = "auto"
    param: str = "images"
    url: str = ""


class ChatPrompt(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Conversation that the tokenizer process renders with the model's chat template.

    Attributes:
        messages: JSON array of {"role", "content", ...} objects whose contents are strings, null, or, in messages with
            pictures, lists of {"type": "text", "text"} and {"type": "image"} objects.
        add_generation_prompt: end the prompt with the header of an assistant turn.
        continue_final_message: leave the last message open, so that the output continues it.
        template_kwargs: JSON object of additional template variables.
        tools: JSON array of tool definitions for the template, or None.
        allow_control_tokens: recognize control tokens in every text; otherwise only those that the template writes.
        answer_markers: control tokens that the model writes within its answers (reasoning, tool calls); they are
            recognized in messages of the assistant and the system too.
        images: pictures of the {"type": "image"} objects, in their order.
    """

    messages: bytes
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: bytes = b"{}"
    tools: bytes | None = None
    allow_control_tokens: bool = False
    answer_markers: list[str] = []
    images: list[ImageInput] = []


class TemplateText(msgspec.Struct, frozen=True):
    """Part of a prompt that the chat template wrote: control tokens in it are recognized."""

    template: str


PromptPart = str | list[int] | TemplateText
"""Part of a prompt: a user's text, in which control tokens are not recognized; token ids, used unchanged; or a text of
the chat template."""


class ProgramHint(msgspec.Struct, frozen=True, array_like=True):
    """Hint about a request's position in a program of many requests. An absent or wrong hint affects speed only.

    Attributes:
        program: id of one run of a program, at most 256 characters.
        branch: id of the branch within the program, at most 1,024 characters.
        fork_len: number of tokens at the start of the prompt that sibling branches share; 0 if none or unknown.
        siblings: number of branches of the fork, this branch included, that have not sent all of their calls. A branch
            also counts while branches forked from it have not sent all of their calls.
        will_continue: a later request, of this branch or of a branch forked from it, is likely to continue from the
            output of this request.
    """

    program: str
    branch: str = ""
    fork_len: int = 0
    siblings: int = 1
    will_continue: bool = False


Pooling = Literal["last", "mean"]
"""Hidden states that make an embedding: the last token's, or the mean over all tokens."""

Activation = Literal["none", "sigmoid", "softmax"]
"""Function that turns logits into scores. The softmax is over all labels of a text."""

SelectMethod = Literal["token_length_normalized", "greedy", "unconditional_likelihood_normalized"]
"""Method to select a choice by the log-probabilities of its tokens; see `radixrt.tasks.score`."""
