"""A grammar whose every answer is a function of its history, and what a request bound by it must generate."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from radixrt.constrained.grammar import Bitmask, Grammar, bitmask_words
from radixrt.sampling_params import SamplingParams
from tests.scheduler.fake_runner import EOS, VOCAB, digest, next_token


class ScriptedGrammar(Grammar):
    """Forces runs of tokens now and then, needs a few more to come to an end, and ends itself at times."""

    def __init__(self, seed: int, *, heals: bool = False) -> None:
        self.history = [seed]
        self.runs: list[list[int]] = [[]]
        self.heals = heals
        self._new_run()

    def _value(self, history: list[int], salt: int) -> int:
        state = salt
        for token in history:
            state = digest(state, token)
        return state >> 9

    def _new_run(self) -> None:
        value = self._value(self.history, 1)
        self.run = [1 + (value >> (3 + i)) % (VOCAB - 1) for i in range(value % 6)] if value % 3 == 0 else []

    def reserve(self, history: list[int]) -> int:
        return self._value(history, 2) % 5

    def mask(self) -> Bitmask:
        row = np.full(bitmask_words(VOCAB), 0xFFFFFFFF, np.uint32)
        if self.run:
            row[:] = 0
            row[self.run[0] // 32] = 1 << (self.run[0] % 32)
        return row

    def accept(self, token: int) -> bool:
        if self.run and token != self.run[0]:
            return False
        self.runs.append(list(self.run))
        self.history.append(token)
        if self.run:
            self.run = self.run[1:]
        else:
            self._new_run()
        return True

    def is_terminated(self) -> bool:
        return not self.run and self._value(self.history, 3) % 13 == 0 and self.reserve(self.history) == 0

    def rollback(self, num_tokens: int) -> None:
        for _ in range(num_tokens):
            self.history.pop()
            self.run = self.runs.pop()

    def forced_continuation(self) -> list[int]:
        return list(self.run)

    def healed(self, last: int, forced: list[int]) -> list[int] | None:
        return [(last + 1) % VOCAB or 1, *forced] if self.heals else None

    def fits(self, token: int, remaining: int) -> bool:
        return self.reserve([*self.history, token]) <= remaining

    def accept_freely(self, token: int, remaining: int) -> bool:
        if not self.fits(token, remaining) or not self.accept(token):
            return False
        if self.is_terminated() or self.run:
            self.rollback(1)
            return False
        return True

    def closing(self) -> list[int]:
        return [VOCAB - 1] * self.reserve(self.history)


def expected_constrained(
    prompt: Iterable[int], sampling: SamplingParams, max_len: int, seed: int
) -> tuple[list[int], str, bool]:
    """Output, finish reason and whether it was closed early, computed with no engine at all."""
    ids = list(prompt)
    state = 0
    for token in ids:
        state = digest(state, token)
    most = max_len - len(ids) if sampling.max_tokens is None else min(sampling.max_tokens, max_len - len(ids))
    stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else {EOS})
    grammar = ScriptedGrammar(seed)
    out: list[int] = []
    while True:
        token = grammar.run[0] if grammar.run else next_token(state)
        if not grammar.fits(token, most - len(out) - 1):
            return out + grammar.closing(), "length", True
        assert grammar.accept(token)
        out.append(token)
        state = digest(state, token)
        if token in stops or grammar.is_terminated():
            return out, "stop", False
        if len(out) >= most:
            return out, "length", True
