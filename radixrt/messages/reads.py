"""Reads: values that the rows of a request read from forward passes, and the values that a generation reads of its
prompt (`PromptValues`), from the sampling parameters that ask for them to the client.
"""

from __future__ import annotations

from typing import NoReturn

import msgspec
import numpy as np

from radixrt.errors import RequestError
from radixrt.messages.parts import ReadValues
from radixrt.messages.wire import Float32Array, Int32Array, pack_i32, unpack_f32
from radixrt.sampling_params import MAX_HIDDEN_BYTES, SamplingParams


class LogprobRead(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of given tokens as the next token after positions of a row.

    Attributes:
        positions: int32[q], ascending positions in the row; several targets may have the same position.
        targets: int32[q], token ids.
        top: number of most probable tokens that are returned with each target.
    """

    positions: bytes
    targets: bytes
    top: int = 0


class HiddenRead(msgspec.Struct, frozen=True, array_like=True):
    """Means of final hidden states (the final norm applied), or their logits if the model has a classification head.

    Attributes:
        spans: int32[m * 2], (first, count) of the consecutive positions of each mean, in ascending order, disjoint.
    """

    spans: bytes


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


class HiddenStates(msgspec.Struct, frozen=True, array_like=True):
    """Final hidden states of consecutive tokens, the final norm applied.

    Attributes:
        size: numbers of one hidden state.
        data: float32[n * size] column.
    """

    size: int
    data: bytes

    @property
    def array(self) -> Float32Array:
        """Read-only view of the column, [n, size]."""
        return unpack_f32(self.data).reshape(-1, self.size)


class PromptValues(msgspec.Struct, frozen=True, array_like=True):
    """Values that a generation reads of its prompt, for which its sampling parameters ask.

    Attributes:
        logprobs: one entry for each token of the prompt.
        hidden_states: hidden states of the prompt's last token, or of all prompt tokens.
    """

    logprobs: list[TokenLogprob] | None = None
    hidden_states: HiddenStates | None = None

    @staticmethod
    def of(
        values: ReadValues, logprobs: list[TokenLogprob] | None, sampling: SamplingParams, prompt_tokens: int
    ) -> PromptValues:
        """Return the values of a prompt from the columns of its row.

        Args:
            logprobs: the row's log-probabilities, with the texts of the tokens.
        """
        if not values.hidden:
            return PromptValues(logprobs)
        count = prompt_tokens if sampling.return_hidden_states == "prompt" else 1
        return PromptValues(logprobs, HiddenStates(len(values.hidden) // (4 * count), values.hidden))

    @property
    def num_bytes(self) -> int:
        """Size of the columns, which `check_total` bounds."""
        return 0 if self.hidden_states is None else len(self.hidden_states.data)


class ReportsPrompt:
    """Mixin of outputs with `PromptValues`: the values by the names that clients know."""

    prompt_values: PromptValues | None

    @property
    def prompt_logprobs(self) -> list[TokenLogprob] | None:
        """One entry for each token of the prompt, if requested."""
        return None if self.prompt_values is None else self.prompt_values.logprobs

    @property
    def hidden_states(self) -> HiddenStates | None:
        """Hidden states of the prompt, if requested: `array` is float32 [1 or prompt tokens, hidden size]."""
        return None if self.prompt_values is None else self.prompt_values.hidden_states


PROMPT_READS = ("prompt_logprobs", "return_hidden_states")
"""Sampling parameters that ask for `PromptValues`; None asks for nothing."""


def prompt_reads(ids: Int32Array, sampling: SamplingParams) -> tuple[LogprobRead | None, HiddenRead | None]:
    """Return the reads of a prompt for which sampling parameters ask."""
    logprobs = hidden = None
    if sampling.prompt_logprobs is not None:
        logprobs = LogprobRead(pack_i32(np.arange(len(ids) - 1)), pack_i32(ids[1:]), sampling.prompt_logprobs)
    if sampling.return_hidden_states is not None:
        first = 0 if sampling.return_hidden_states == "prompt" else len(ids) - 1
        positions = np.arange(first, len(ids))
        hidden = HiddenRead(pack_i32(np.stack([positions, np.ones_like(positions)], axis=1).reshape(-1)))
    return logprobs, hidden


def check_prompt_reads(sampling: SamplingParams, prompt_tokens: int, size: int | None) -> None:
    """Limit the values of a prompt, which one frame carries; raises RequestError.

    Args:
        size: hidden size of the model; None if its folder does not say.
    """
    if sampling.return_hidden_states != "prompt":
        return
    if size is None:
        _refuse_hidden(
            "return_hidden_states of a whole prompt needs a model whose config.json names its hidden_size; ask for "
            '"last"'
        )
    most = MAX_HIDDEN_BYTES // (4 * size)
    if prompt_tokens > most:
        _refuse_hidden(
            f"the hidden states of {prompt_tokens} tokens take {4 * size * prompt_tokens} bytes; at most "
            f'{MAX_HIDDEN_BYTES} are returned, which are {most} tokens of this model; ask for "last", or cut the prompt'
        )


def check_total(num_bytes: int) -> None:
    """Limit the values of all prompts of one HTTP request; raises RequestError.

    Args:
        num_bytes: sum of `PromptValues.num_bytes`.
    """
    if num_bytes > MAX_HIDDEN_BYTES:
        _refuse_hidden(
            f"the hidden states of this request's completions take more than {MAX_HIDDEN_BYTES} bytes; ask for fewer "
            'completions at once, or for "last"'
        )


def _refuse_hidden(message: str) -> NoReturn:
    raise RequestError(message, param="return_hidden_states")
