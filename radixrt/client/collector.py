"""`OutputCollector`: merges the increments of one request into its whole `RequestOutput`."""

from __future__ import annotations

import msgspec

from radixrt.messages.client import RequestOutput, TokenLogprob
from radixrt.messages.parts import HiddenStates


class OutputCollector:
    """Accumulates the increments of one request, in order.

    A request that does not stream has a single increment, the whole output, which is returned unchanged.
    """

    __slots__ = ("_first", "_hidden_states", "_logprobs", "_output_ids", "_prompt_ids", "_prompt_logprobs", "_texts")

    def __init__(self) -> None:
        self._first = True
        self._texts: list[str] = []
        self._output_ids = bytearray()
        self._logprobs: list[TokenLogprob] | None = None
        self._prompt_logprobs: list[TokenLogprob] | None = None
        self._prompt_ids: bytes | None = None
        self._hidden_states: HiddenStates | None = None

    def add(self, output: RequestOutput) -> RequestOutput | None:
        """Take the next increment. Return the whole output after the last increment, otherwise None."""
        if self._first and output.finish is not None:
            return output
        self._first = False
        self._texts.append(output.text)
        self._output_ids += output.output_ids
        if output.logprobs is not None:
            self._logprobs = self._logprobs or []
            self._logprobs += output.logprobs
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs
        if output.hidden_states is not None:
            self._hidden_states = output.hidden_states
        if output.prompt_ids is not None:
            self._prompt_ids = output.prompt_ids
        return None if output.finish is None else self._merged(output)

    def _merged(self, last: RequestOutput) -> RequestOutput:
        return msgspec.structs.replace(
            last,
            text="".join(self._texts),
            output_ids=bytes(self._output_ids),
            logprobs=self._logprobs,
            prompt_logprobs=self._prompt_logprobs,
            prompt_ids=self._prompt_ids,
            hidden_states=self._hidden_states,
        )
