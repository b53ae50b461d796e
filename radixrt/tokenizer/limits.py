"""Limits of the fields that every request has, and of answers, so that a channel takes the frame that carries one."""

from __future__ import annotations

import math

from radixrt.errors import RequestError
from radixrt.messages.request import Envelope
from radixrt.sampling_params import MAX_HIDDEN_BYTES, SamplingParams

MAX_RID_CHARS = 256
"""More than the server lets its clients choose: it puts the tenant's name in front of a program, and a number behind
the id of each completion."""

MAX_BRANCH_CHARS = 1_024
MAX_ALTERNATIVES = 1_000_000
"""Largest number of log-probabilities of one request: about 40 MB, below `channel.MAX_FRAME_BYTES`."""


def check_envelope(envelope: Envelope) -> None:
    """Check the fields that every request has; raises RequestError naming the field."""
    if not 1 <= len(envelope.rid) <= MAX_RID_CHARS or "\0" in envelope.rid:
        raise RequestError(f"rid must have 1 to {MAX_RID_CHARS} characters, none of them NUL", param="rid")
    if envelope.timeout_s is not None and not (math.isfinite(envelope.timeout_s) and envelope.timeout_s > 0):
        raise RequestError(f"timeout_s must be a number above 0, not {envelope.timeout_s}", param="timeout_s")
    hint = envelope.program
    if hint is not None and not (1 <= len(hint.program) <= MAX_RID_CHARS and len(hint.branch) <= MAX_BRANCH_CHARS):
        raise RequestError(
            f"program must have an id of 1 to {MAX_RID_CHARS} characters, and a branch of at most {MAX_BRANCH_CHARS}",
            param="program",
        )


def check_logprobs(sampling: SamplingParams, prompt_tokens: int, context_length: int) -> None:
    """Limit the log-probabilities of a request, because a frame carries them all unless the request streams.

    Raises:
        RequestError: the request asks for too many alternatives.
    """
    room = context_length - prompt_tokens
    output_tokens = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
    for name, tokens in (("prompt_logprobs", prompt_tokens), ("logprobs", output_tokens)):
        wanted = getattr(sampling, name)
        if wanted is not None and tokens * wanted > MAX_ALTERNATIVES:
            raise RequestError(
                f"{name}={wanted} for {tokens} tokens makes more than {MAX_ALTERNATIVES} alternatives; "
                f"ask for at most {MAX_ALTERNATIVES // tokens} of each",
                param=name,
            )


def check_hidden_states(sampling: SamplingParams, prompt_tokens: int, size: int | None) -> None:
    """Limit the hidden states of a request, which one frame carries; raises RequestError.

    Args:
        size: hidden size of the model; None if its folder does not say.
    """
    if sampling.return_hidden_states != "prompt":
        return
    if size is None:
        raise RequestError(
            "return_hidden_states of a whole prompt needs a model whose config.json names its hidden_size; ask for "
            '"last"',
            param="return_hidden_states",
        )
    most = MAX_HIDDEN_BYTES // (4 * size)
    if prompt_tokens > most:
        raise RequestError(
            f"the hidden states of {prompt_tokens} tokens take {4 * size * prompt_tokens} bytes; at most "
            f'{MAX_HIDDEN_BYTES} are returned, which are {most} tokens of this model; ask for "last", or cut the '
            "prompt",
            param="return_hidden_states",
        )
