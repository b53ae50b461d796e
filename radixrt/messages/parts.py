"""Structs that messages of several links carry: prompts, finish reasons, usage, timings and log-probabilities."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

FINISH_STOP: Final = "stop"
FINISH_LENGTH: Final = "length"
FINISH_ABORT: Final = "abort"
FINISH_ERROR: Final = "error"


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


SelectMethod = Literal["token_length_normalized", "greedy", "unconditional_likelihood_normalized"]
"""How one of several choices is selected by its tokens' log-probabilities; see `radixrt.tokenizer.selection`."""
