"""Limits of the fields that every request has, and of answers, so that a channel takes the frame that carries one."""

from __future__ import annotations

import math

from radixrt.errors import RequestError
from radixrt.messages.request import Envelope
from radixrt.sampling_params import SamplingParams

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
