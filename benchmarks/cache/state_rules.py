"""Rules by which vLLM and SGLang place states of recurrent layers, as models that read a trace request by request.

The rules were read in the sources of vLLM 0.26 and SGLang 0.5.23 (`extra_buffer`). Keys and values are unlimited here;
states are evicted in LRU order, where a hit refreshes the one state that was used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence

from benchmarks.cache.hybrid_workloads import Request

VLLM_BLOCK = 528
"""Tokens of a block of Qwen3.5-4B: as much memory as a state."""
SGLANG_UNIT = 64
SGLANG_DECODE = 256
"""SGLang keeps states at multiples of 64 tokens from a chunk's start, and every 256 tokens of decoding."""


class StateRules(ABC):
    """A cache of states with the rules of one engine.

    Args:
        capacity: maximum number of states; None for any number.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self._capacity = capacity
        self._known: set[int] = set()  # hashes of all prefixes with keys and values
        self._states: OrderedDict[int, None] = OrderedDict()  # hashes of prefixes with a state, the oldest first

    def run(self, requests: Sequence[Request]) -> float:
        """Read a trace; returns the share of prompt tokens that must be computed."""
        return sum(map(self._serve, requests)) / sum(len(request.prompt) for request in requests)

    def _serve(self, request: Request) -> int:
        prefixes = prefix_hashes(request.prompt + request.output)
        length = len(request.prompt)
        matched = next((i for i in range(length - 1, 0, -1) if prefixes[i] in self._known), 0)
        start = next((i for i in range(matched, 0, -1) if prefixes[i] in self._states), 0)
        if start:
            self._states.move_to_end(prefixes[start])
        for at in self._places(start, matched, length, len(prefixes) - 1):
            self._states[prefixes[at]] = None
            self._states.move_to_end(prefixes[at])
            while self._capacity is not None and len(self._states) > self._capacity:
                self._states.popitem(last=False)
        self._known.update(prefixes[1:])
        return length - start

    @abstractmethod
    def _places(self, start: int, matched: int, prompt: int, end: int) -> list[int]:
        """Return the lengths at which a request leaves states.

        Args:
            start: tokens up to the state from which it went on.
            matched: tokens whose keys and values were cached.
            prompt, end: tokens of the prompt, and of prompt and output.
        """


class VLLM(StateRules):
    """A state at the last block's end within the prompt, and where the second request leaves cached blocks."""

    def _places(self, start: int, matched: int, prompt: int, end: int) -> list[int]:
        junction, last = (matched // VLLM_BLOCK * VLLM_BLOCK, (prompt - 1) // VLLM_BLOCK * VLLM_BLOCK)
        return sorted({place for place in (junction, last) if place > start})


class SGLang(StateRules):
    """States at multiples of 64 tokens from where the request began to compute: the last of the prompt, every 256
    tokens of the output, and where the second request leaves the cached tokens."""

    def _places(self, start: int, matched: int, prompt: int, end: int) -> list[int]:
        junction = matched // SGLANG_UNIT * SGLANG_UNIT
        last = start + (prompt - start) // SGLANG_UNIT * SGLANG_UNIT
        decoded = range(prompt + SGLANG_DECODE, end + 1, SGLANG_DECODE)
        return sorted({place for place in (junction, last, *decoded) if place > start})


def prefix_hashes(tokens: Sequence[int]) -> list[int]:
    """Hashes of the first 0, 1, 2, ... tokens."""
    hashes = [0]
    for token in tokens:
        hashes.append(hash((hashes[-1], token)))
    return hashes
