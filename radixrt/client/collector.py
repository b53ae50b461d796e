"""`OutputCollector`: merges the increments of one request into its whole `RequestOutput`."""

from __future__ import annotations

import msgspec

from radixrt.messages.client import RequestOutput
from radixrt.messages.reads import PromptValues, TokenLogprob


class OutputCollector:
    """Accumulates the increments of one request, in order.

    A request that does not stream has a single increment, the whole output, which is returned unchanged.
    """

    __slots__ = ("_first", "_logprobs", "_output_ids", "_prompt_ids", "_prompt_values", "_texts")

    def __init__(self) -> None:
        self._first = True
        self._texts: list[str] = []
        self._output_ids = bytearray()
        self._logprobs: list[TokenLogprob] | None = None
        self._prompt_values: PromptValues | None = None
        self._prompt_ids: bytes | None = None

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
        if output.prompt_values is not None:
            self._prompt_values = output.prompt_values
        if output.prompt_ids is not None:
            self._prompt_ids = output.prompt_ids
        return None if output.finish is None else self._merged(output)

    def _merged(self, last: RequestOutput) -> RequestOutput:
        return msgspec.structs.replace(
            last,
            text="".join(self._texts),
            output_ids=bytes(self._output_ids),
            logprobs=self._logprobs,
            prompt_values=self._prompt_values,
            prompt_ids=self._prompt_ids,
        )
