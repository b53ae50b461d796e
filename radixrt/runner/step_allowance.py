"""`StepAllowance`: longest time without progress of a step, after which the ModelRunner counts as hung."""

from __future__ import annotations

MARGIN = 5.0
"""Factor on the longest pause measured for steps of similar size, because other processes may take the cores."""


class StepAllowance:
    """Allowances by the size of steps, in tokens, from the measured pauses between layers.

    A layer of a long prompt takes seconds on a slow CPU. On a GPU, the first step of each size may compile or load
    kernels; on a CPU, all kernels are compiled before the first step.

    Args:
        base_s: smallest allowance.
        step_timeout_s: allowance of the first step of each size if `compiles`.
        compiles: the first step of each size may compile or load kernels.

    Attributes:
        base_s: smallest allowance, and the allowance of all work besides steps.
        unknown_s: allowance of work whose time is unknown.
    """

    def __init__(self, base_s: float, step_timeout_s: float, *, compiles: bool = False) -> None:
        self.base_s = base_s
        self.unknown_s = max(base_s, step_timeout_s) if compiles else base_s
        self._compiles = compiles
        self._longest_s: dict[int, float] = {}  # by the number of bits of the step's tokens

    def of(self, tokens: int) -> float:
        """Return the allowance of a step with `tokens` tokens, in seconds."""
        size = tokens.bit_length()
        known = [bits for bits in self._longest_s if bits <= size]
        if not known or (self._compiles and size not in self._longest_s):
            return self.unknown_s
        nearest = max(known)
        return max(self.base_s, MARGIN * self._longest_s[nearest] * (1 << size - nearest))

    def measured(self, tokens: int, longest_pause_s: float) -> None:
        """Record the longest pause of a completed step."""
        size = tokens.bit_length()
        self._longest_s[size] = max(longest_pause_s, self._longest_s.get(size, 0.0))
