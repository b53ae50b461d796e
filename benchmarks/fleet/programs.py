"""Programs whose calls the fleet serves: workloads A and B, and single requests behind shared prefixes.

A program is a generator: it yields calls that are to run side by side, and is continued when all of them have ended.
Outputs are drawn in advance, so that later prompts can contain them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from radixrt.messages.parts import ProgramHint
from radixrt.messages.wire import Int32Array

FIRST_TOKEN = 8
"""Tokens below this one mean something to the simulated engine: 0 ends a request."""
DRAWN_AT_ONCE = 256
"""Single requests that are drawn in one call of the generator, each of which takes microseconds."""


@dataclass(frozen=True)
class Call:
    """One request of a program.

    Attributes:
        output: int32[n], the tokens that it will sample.
        not_before: simulated second before which it is not sent.
        has_known_end: its max_tokens is n; otherwise it ends by an end token that nobody expects.
    """

    prompt: Int32Array
    output: Int32Array
    hint: ProgramHint | None = None
    not_before: float = 0.0
    has_known_end: bool = True


Steps = Iterator[list[Call]]


@dataclass(frozen=True)
class Program:
    """A program that begins at a simulated second."""

    at: float
    name: str
    steps: Steps


@dataclass(frozen=True)
class ForkShape:
    """Shape of programs that make one call, fork, and join. Lengths are in tokens.

    Attributes:
        app: prefix that all programs of an application share; applications are drawn by Zipf's law.
        apps: number of applications.
        own: the program's own prompt behind it.
        first: output of the call before the fork; 0 for none.
        branches: possible numbers of branches, of which each program draws one with the given weights.
        branch_in, branch_out: what each branch adds to the prompt, and its output.
        join: output of the call after the fork, whose prompt goes on with all outputs; 0 for none.
    """

    app: int
    apps: int
    own: int
    first: int
    branches: tuple[int, ...]
    weights: tuple[float, ...]
    branch_in: int
    branch_out: int
    join: int


WORKLOAD_A = ForkShape(1500, 12, 2500, 96, (1, 4, 12), (0.5, 1 / 3, 1 / 6), 200, 96, 96)
"""Agents: a call, a fork of 1, 4 or 12 branches, and a join; six calls in the mean."""
WORKLOAD_B = ForkShape(0, 1, 11_500, 256, (64,), (1.0,), 800, 256, 256)
"""Searches: 64 branches behind one long prompt."""


def fork_programs(shape: ForkShape, rate: float, count: int, seed: int) -> Iterator[Program]:
    """Yield `count` programs that begin at `rate` per second in the mean (a Poisson process)."""
    rng = np.random.default_rng(seed)
    apps = [_tokens(rng, shape.app) for _ in range(shape.apps)]
    zipf = np.array([1 / (i + 1) for i in range(shape.apps)])
    at = 0.0
    for number in range(count):
        at += rng.exponential(1 / rate)
        app = int(rng.choice(shape.apps, p=zipf / zipf.sum()))
        branches = int(rng.choice(shape.branches, p=shape.weights))
        name = f"p{number}"
        yield Program(at, name, _fork_steps(shape, apps[app], branches, name, seed * 1_000_003 + number))


def _fork_steps(shape: ForkShape, app: Int32Array, branches: int, name: str, seed: int) -> Steps:
    rng = np.random.default_rng(seed)
    prompt = np.concatenate([app, _tokens(rng, shape.own)])
    if shape.first:
        output = _tokens(rng, shape.first)
        yield [Call(prompt, output, ProgramHint(name, "", 0, 1, will_continue=True))]
        prompt = np.concatenate([prompt, output])
    calls = []
    for i in range(branches):
        hint = ProgramHint(name, f"{i}", len(prompt) if branches > 1 else 0, branches, will_continue=False)
        tail = _tokens(rng, shape.branch_in)
        calls.append(Call(np.concatenate([prompt, tail]), _tokens(rng, shape.branch_out), hint))
    yield calls
    if shape.join:
        joined = np.concatenate([prompt, *(call.output for call in calls)])
        yield [Call(joined, _tokens(rng, shape.join), ProgramHint(name))]


def shared_prefix(
    rate: float, count: int, seed: int, *, groups: int = 256, prefix: int = 1012, own: int = 76, output: int = 32
) -> Iterator[Program]:
    """Yield single requests, each behind one of `groups` prefixes: by default 1,088 tokens with 93 % of hits."""
    rng = np.random.default_rng(seed)
    prefixes = _tokens(rng, groups * prefix).reshape(groups, prefix)
    answer = np.full(output, FIRST_TOKEN, np.int32)
    at = 0.0
    for first in range(0, count, DRAWN_AT_ONCE):
        number = min(count - first, DRAWN_AT_ONCE)
        times = at + rng.exponential(1 / rate, number).cumsum()
        tails = _tokens(rng, number * own).reshape(number, own)
        prompts = np.concatenate([prefixes[rng.integers(groups, size=number)], tails], axis=1)
        for i, (begin, prompt) in enumerate(zip(times.tolist(), prompts, strict=True)):
            yield Program(begin, f"s{first + i}", iter([[Call(prompt, answer)]]))
        at = float(times[-1])


def _tokens(rng: np.random.Generator, count: int) -> Int32Array:
    return rng.integers(FIRST_TOKEN, 2**31 - 1, count, dtype=np.int32)
