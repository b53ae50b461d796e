"""Synthetic traces for `benchmarks.cache.tiers`: sessions of calls with growing contexts and pauses between calls.

The public traces are not copied here. Each generator draws from published figures, with lengths and pauses divided by
SCALE so that a simulation takes seconds: work, pauses and pool shrink together.

- `agents`: 30 turns, a context of about 80,000 tokens at the last turn, 131 input tokens per output token (traces of
  Codex on SWE-bench Pro, vLLM blog, May 2026).
- `forks`: a call, 2 to 8 branches of four turns behind a common prefix, a join.
- `chats`: inputs of 12,000 tokens and outputs of 343 in the mean, of which 40 % could be cached (conversation trace of
  Mooncake, Qin et al., FAST 2025); most sessions have one turn.
- `mixed`: consumers' chats, whose next turn comes within 10 minutes in 80 % of cases, and calls of an API behind a few
  system prompts, so that 62 % could be cached and a tenth of the blocks gets three quarters of the hits (Qwen-Bailian
  trace A, Wang et al., ATC 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from radixrt.messages.parts import ProgramHint
from radixrt.messages.wire import Int32Array

SCALE = 16
LONGEST_PAUSE_S = 200.0
FIRST_TOKEN = 8
"""The smallest token; 0 is the end token."""


@dataclass(frozen=True)
class Call:
    """One request.

    Attributes:
        output: int32[n], the tokens that the request samples.
    """

    prompt: Int32Array
    output: Int32Array
    hint: ProgramHint | None = None


@dataclass(frozen=True)
class Wave:
    """Calls that are sent together, `pause_s` seconds after the last call of the wave before has ended."""

    pause_s: float
    calls: Sequence[Call]


@dataclass(frozen=True)
class Session:
    """Waves of calls, the first of which begins at second `at` plus its pause."""

    at: float
    waves: Sequence[Wave]


def agents(count: int = 32, turns: int = 30, seed: int = 1) -> list[Session]:
    """Return agents that work at the same time, behind one system prompt."""
    rng = np.random.default_rng(seed)
    system = _tokens(rng, 8000 // SCALE)
    sessions = []
    for _ in range(count):
        context = np.concatenate([system, _tokens(rng, 4000 // SCALE)])
        waves = []
        for _ in range(turns):
            output = _tokens(rng, _length(rng, 300, 0.5))
            waves.append(Wave(_seconds(rng, 4.0, 1.0), [Call(context, output)]))
            context = np.concatenate([context, output, _tokens(rng, _length(rng, 1900, 0.8))])
        sessions.append(Session(float(rng.uniform(0, 4)), waves))
    return sessions


def forks(count: int = 32, rate: float = 1.6, seed: int = 1) -> list[Session]:
    """Return programs that fork into branches of four turns with tool calls between, and join; with hints."""
    rng = np.random.default_rng(seed)
    apps = [_tokens(rng, 12_000 // SCALE) for _ in range(6)]
    at, sessions = 0.0, []
    for number in range(count):
        at += float(rng.exponential(1 / rate))
        name, branches = f"p{number}", int(rng.choice((2, 4, 8)))
        trunk = np.concatenate([apps[int(rng.integers(len(apps)))], _tokens(rng, 20_000 // SCALE)])
        plan = _tokens(rng, 800 // SCALE)
        waves = [Wave(0.0, [Call(trunk, plan, ProgramHint(name, "", 0, 1, will_continue=True))])]
        trunk = np.concatenate([trunk, plan])
        contexts = [trunk] * branches
        for turn in range(4):
            calls = []
            for i in range(branches):
                prompt, output = np.concatenate([contexts[i], _tokens(rng, 1600 // SCALE)]), _tokens(rng, 400 // SCALE)
                fork = len(trunk) if turn == 0 else 0
                hint = ProgramHint(name, f"{i}", fork, branches if fork else 1, will_continue=turn < 3)
                calls.append(Call(prompt, output, hint))
                contexts[i] = np.concatenate([prompt, output])
            waves.append(Wave(_seconds(rng, 8.0, 1.0), calls))
        joined = np.concatenate([trunk, *(context[len(trunk) :] for context in contexts)])
        waves.append(Wave(0.0, [Call(joined, _tokens(rng, 800 // SCALE), ProgramHint(name))]))
        sessions.append(Session(at, waves))
    return sessions


def chats(count: int = 500, rate: float = 40.0, seed: int = 1) -> list[Session]:
    """Return conversations over long documents."""
    rng = np.random.default_rng(seed)
    at, sessions = 0.0, []
    for _ in range(count):
        at += float(rng.exponential(1 / rate))
        turns = int(rng.geometric(0.62))
        sessions.append(_chat(rng, at, turns, _length(rng, 9500, 1.0), 1200, 343, _pauses(rng, turns, 40.0)))
    return sessions


def mixed(count: int = 500, rate: float = 72.0, seed: int = 1) -> list[Session]:
    """Return consumers' chats, and single calls of an API behind shared prompts."""
    rng = np.random.default_rng(seed)
    prompts = [_tokens(rng, 12_000 // SCALE) for _ in range(10)]
    popular = np.array([1 / (i + 1) ** 1.2 for i in range(len(prompts))])
    at, sessions = 0.0, []
    for _ in range(count):
        at += float(rng.exponential(1 / rate))
        if rng.random() < 0.45:
            shared = prompts[int(rng.choice(len(prompts), p=popular / popular.sum()))]
            prompt = np.concatenate([shared, _tokens(rng, _length(rng, 2400, 0.8))])
            sessions.append(Session(at, [Wave(0.0, [Call(prompt, _tokens(rng, _length(rng, 400, 0.5)))])]))
        else:
            turns = int(rng.geometric(0.5))
            sessions.append(_chat(rng, at, turns, _length(rng, 6000, 1.0), 900, 800, _pauses(rng, turns, 60.0)))
    return sessions


def _chat(
    rng: np.random.Generator, at: float, turns: int, first: int, added: int, answer: int, pauses: Sequence[float]
) -> Session:
    """Return a chat whose first prompt has `first` tokens, before scaling for the other lengths."""
    context, waves = _tokens(rng, first), []
    for pause in pauses[:turns]:
        output = _tokens(rng, _length(rng, answer, 0.6))
        waves.append(Wave(pause, [Call(context, output)]))
        context = np.concatenate([context, output, _tokens(rng, _length(rng, added, 0.8))])
    return Session(at, waves)


def _pauses(rng: np.random.Generator, turns: int, median: float) -> list[float]:
    return [0.0, *(_seconds(rng, median, 1.2) for _ in range(turns - 1))]


def _length(rng: np.random.Generator, mean: float, sigma: float) -> int:
    """Draw a length of this mean, before scaling, from a log-normal distribution."""
    return max(1, round(float(rng.lognormal(np.log(mean / SCALE) - sigma**2 / 2, sigma))))


def _seconds(rng: np.random.Generator, median: float, sigma: float) -> float:
    """Draw a pause of this median, before scaling, from a log-normal distribution with an end."""
    return min(float(rng.lognormal(np.log(median), sigma)), LONGEST_PAUSE_S) / SCALE


def _tokens(rng: np.random.Generator, count: int) -> Int32Array:
    return rng.integers(FIRST_TOKEN, 2**31 - 1, count, dtype=np.int32)
