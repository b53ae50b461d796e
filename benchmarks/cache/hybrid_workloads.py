"""Traces of requests to a hybrid model: prompts and answers are given, so that every policy reads the same tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass

from radixrt.messages.parts import ProgramHint

VOCAB = 50_000
END = 1
"""Token that ends every answer."""


@dataclass(frozen=True)
class Request:
    """One request of a trace.

    Attributes:
        output: its answer; the last token is END.
        hint: what a program says about it; None if it says nothing.
    """

    prompt: list[int]
    output: list[int]
    hint: ProgramHint | None = None


class Texts:
    """Random texts, which share no tokens by chance at their beginnings."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._next = 2

    def text(self, length: int) -> list[int]:
        self._next += 1
        return [self._next, *(self._rng.randrange(VOCAB, 2 * VOCAB) for _ in range(length - 1))]

    def answer(self, length: int) -> list[int]:
        return [*self.text(length - 1), END]


def fork(
    branches: int, shared: int, own: int, *, groups: int = 4, hinted: bool = False, seed: int = 0
) -> list[Request]:
    """Groups of branches, each with its own tokens behind those that its group shares."""
    texts, requests = Texts(seed), []
    for group in range(groups):
        prefix = texts.text(shared)
        for branch in range(branches):
            hint = ProgramHint(f"p{group}", str(branch), fork_len=shared, siblings=branches - branch)
            requests.append(Request(prefix + texts.text(own), texts.answer(8), hint if hinted else None))
    return requests


def chats(count: int = 16, turns: int = 8, system: int = 300, user: int = 60, answer: int = 120) -> list[Request]:
    """Conversations with one system prompt, one after another."""
    texts, requests = Texts(0), []
    prefix = texts.text(system)
    for _ in range(count):
        prompt = prefix
        for _ in range(turns):
            prompt = prompt + texts.text(user)
            requests.append(Request(prompt, texts.answer(answer)))
            prompt = prompt + requests[-1].output
    return requests


def interleaved(
    conversations: int = 60, open_at_once: int = 20, systems: int = 3, groups: int = 12, *, seed: int = 0
) -> list[Request]:
    """Conversations of 2 to 10 turns that are open at the same time, some much busier than others, and between them
    groups of 6 branches (1,000 + 80) whose calls come one by one."""
    texts, rng = Texts(seed), random.Random(seed)
    prefixes = [texts.text(300) for _ in range(systems)]
    pending: list[list[Request]] = []
    for _ in range(conversations):
        prompt, calls = prefixes[rng.randrange(systems)], []
        for _ in range(rng.randint(2, 10)):
            prompt = prompt + texts.text(rng.randint(20, 120))
            calls.append(Request(prompt, texts.answer(rng.randint(10, 60))))
            prompt = prompt + calls[-1].output
        pending.append(calls)
    for _ in range(groups):
        shared = texts.text(1000)
        pending.append([Request(shared + texts.text(80), texts.answer(8)) for _ in range(6)])
    rng.shuffle(pending)
    requests: list[Request] = []
    running: list[list[Request]] = []
    while pending or running:
        while pending and len(running) < open_at_once:
            running.append(pending.pop())
        at = min(int(rng.paretovariate(1.0)) - 1, len(running) - 1)  # the first ones are the busiest
        requests.append(running[at].pop(0))
        if not running[at]:
            running.pop(at)
    return requests
