"""Corrections: the conversation in which a model learns why its answer was not accepted, and answers again.

The conversation continues from the refused answer, so that no token is computed twice. Only the next attempt uses this
conversation: the program's own conversation continues with the accepted answer, as if it had been the first answer.
"""

from __future__ import annotations

import msgspec
import pydantic_core

from radixrt.lang.core.transcript import Answer, Begin, End, Image, Text, Transcript, append, backwards
from radixrt.lang.errors import describe
from radixrt.sampling_params import SamplingParams

MAX_REASON_CHARS = 1_000
LEAST_TEMPERATURE = 0.7
"""Temperature of a further attempt, at least, in a program without roles, where the model is not told the error."""


def correction(transcript: Transcript, answer: Answer, error: ValueError) -> Transcript:
    """The conversation of the next attempt, whose message begins in the same way; in a program without roles it is the
    transcript itself."""
    begun: list[Text | Image] = []
    role = None
    for entry in backwards(transcript):
        if isinstance(entry, Begin):
            role = entry.role
            break
        if isinstance(entry, End):
            break
        if isinstance(entry, Text | Answer):
            begun.append(Text(entry.text))
        elif isinstance(entry, Image):
            begun.append(entry)
    if role is None:
        return transcript
    after: Transcript = append(append(transcript, answer), End())
    told = f"This answer is not accepted: {_reason(error)[:MAX_REASON_CHARS]}\nAnswer again."
    for entry in (Begin("user"), Text(told), End(), Begin(role)):
        after = append(after, entry)
    for start in reversed(begun):
        after = append(after, start)
    return after


def _reason(error: ValueError) -> str:
    """The error for the model: of a pydantic type, each field with its rule."""
    if isinstance(error, pydantic_core.ValidationError):
        found = [(".".join(map(str, one["loc"])), one["msg"].removeprefix("Value error, ")) for one in error.errors()]
        return "; ".join(f"{field}: {message}" if field else message for field, message in found)
    return describe(error).removeprefix("ValueError: ")


def resampled(sampling: SamplingParams, attempt: int, *, told: bool) -> SamplingParams:
    """Sampling parameters of a further attempt: another seed; randomness where the model is not told of the error."""
    if sampling.seed is not None:
        sampling = msgspec.structs.replace(sampling, seed=sampling.seed + attempt)
    if not told and sampling.temperature < LEAST_TEMPERATURE:
        sampling = msgspec.structs.replace(sampling, temperature=LEAST_TEMPERATURE)
    return sampling
