"""Tokenization: the token ids of a prompt, as a request with it has them, and the text of token ids."""

from __future__ import annotations

from collections.abc import Sequence

from radixrt.messages.client import ClientRequest, Input, InputRow, RequestOutput, TokenInput
from radixrt.messages.request import Envelope
from radixrt.messages.wire import pack_i32
from radixrt.tasks.prompts import token_ids


class Tokenize:
    """A call of the task; see `TaskCall`."""

    def __init__(self, prompt: Input, envelope: Envelope) -> None:
        self.requests = [ClientRequest(envelope, [InputRow(prompt)], task="tokenize")]

    def answer(self, outputs: Sequence[RequestOutput]) -> list[int]:
        """Return the token ids of the prompt."""
        return outputs[0].prompt_token_ids


class Detokenize:
    """A call of the task; see `TaskCall`. Raises RequestError if `tokens` are not integers."""

    def __init__(self, tokens: Sequence[int], envelope: Envelope, *, skip_special_tokens: bool) -> None:
        given = TokenInput(pack_i32(token_ids(tokens, "tokens")), "tokens")
        row = InputRow(given, decode=skip_special_tokens)
        self.requests = [ClientRequest(envelope, [row], return_prompt_ids=False, task="tokenize")]

    def answer(self, outputs: Sequence[RequestOutput]) -> str:
        """Return the text of the token ids."""
        return outputs[0].text
