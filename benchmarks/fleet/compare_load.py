"""Workloads of `benchmarks.fleet.compare`, and their client: programs of calls to POST /generate, with texts.

Sizes are workloads A and B of the simulator (`benchmarks.fleet.programs`), divided by four so that each sequence fits
a context of 8,192 tokens, and a fork of B has 16 branches instead of 64. They were fixed before anything was measured.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.fleet.programs import ForkShape
from benchmarks.serving.workloads import build
from radixrt.bench.load import LoadClient
from radixrt.bench.result import Outcome
from radixrt.bench.words import prose

LIMIT_S = 1800.0
"""Time limit of one workload."""
Ask = Callable[[str, Mapping[str, Any]], Awaitable[Outcome]]
"""Sends a request with this path and body."""


@dataclass(frozen=True)
class ForkLoad:
    """`count` programs of one shape, which begin at `rate` per second in the mean."""

    shape: ForkShape
    rate: float
    count: int


PROGRAMS = {
    "A": ForkLoad(ForkShape(375, 6, 625, 24, (1, 4, 12), (0.5, 1 / 3, 1 / 6), 50, 24, 24), rate=1.25, count=75),
    "B": ForkLoad(ForkShape(0, 1, 4000, 32, (16,), (1.0,), 100, 32, 32), rate=0.25, count=15),
}
SINGLE = ("tree", "shared-prefix")
"""Workloads of `benchmarks.serving`, of 64 requests each, 16 of them at a time."""
NAMES = (*SINGLE, *PROGRAMS)


@dataclass
class Measured:
    """Measurements of one workload. Times are in seconds.

    Attributes:
        ttft: from sending a call to its first text.
        program_s: from the first call of a program to the end of its last; of single requests, their time.
        errors: messages of calls that failed; the programs that made them have no time.
    """

    ttft: list[float] = field(default_factory=list)
    program_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    errors: list[str] = field(default_factory=list)


class CallFailed(Exception):
    """A call that ended with an error."""


class Player:
    """Plays one workload; `ask` sends each call to the server whose turn it is."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.measured = Measured()

    async def call(self, text: str, max_tokens: int, program: dict[str, object] | None = None) -> str:
        """Make one call; returns its text.

        Raises:
            CallFailed: any error, also one that comes after the first text.
        """
        body: dict[str, object] = {
            "text": text,
            "sampling_params": {"max_new_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True},
            "stream": True,
        }
        if program is not None:
            body["program"] = program
        outcome = await self._ask("/generate", body)
        if outcome.error is not None:
            raise CallFailed(outcome.error)
        if outcome.ttft is not None:
            self.measured.ttft.append(outcome.ttft)
        self.measured.prompt_tokens += outcome.prompt_tokens
        self.measured.cached_tokens += outcome.cached_tokens or 0
        return outcome.text

    async def program(self, steps: Callable[[Player], Awaitable[None]]) -> None:
        """Run a program and count its time, or its error."""
        begin = time.perf_counter()
        try:
            await steps(self)
        except CallFailed as error:
            self.measured.errors.append(str(error))
        else:
            self.measured.program_s.append(time.perf_counter() - begin)


async def play(name: str, seed: int, share: float, urls: Sequence[str]) -> Measured:
    """Play a workload to its end.

    Args:
        seed: of texts, forks and times.
        share: part of its programs to play, for trying things out.
        urls: servers that the calls go to in turn.
    """
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(LoadClient(url, limit_s=LIMIT_S)) for url in urls]
        turn = itertools.cycle(clients)
        player = Player(lambda path, body: next(turn).ask(path, body))
        if name in SINGLE:
            await _single(player, name, seed, share)
        else:
            await _open_loop(player, PROGRAMS[name], seed, share)
        return player.measured


async def _single(player: Player, name: str, seed: int, share: float) -> None:
    workload = build(name, seed).scaled(share)
    texts = iter([f"{talk.system}\n\n{talk.users[0]}" for talk in workload.conversations])

    async def worker() -> None:
        for text in texts:
            await player.program(lambda p, text=text: p.call(text, workload.max_tokens))  # type: ignore[misc]

    await asyncio.gather(*(worker() for _ in range(workload.concurrency)))


async def _open_loop(player: Player, load: ForkLoad, seed: int, share: float) -> None:
    begin, running = time.perf_counter(), []
    for at, name, rng, app in arrivals(load, seed, max(1, round(load.count * share))):
        await asyncio.sleep(max(0.0, at - (time.perf_counter() - begin)))
        running.append(
            asyncio.ensure_future(player.program(partial(_fork, shape=load.shape, name=name, rng=rng, app=app)))
        )
    await asyncio.gather(*running)


def arrivals(load: ForkLoad, seed: int, count: int) -> Iterator[tuple[float, str, random.Random, str]]:
    """Yield the second, the name, the generator and the application's prompt of each program."""
    rng, shape = random.Random(f"fleet/{seed}"), load.shape
    apps = [prose(rng, shape.app) if shape.app else "" for _ in range(shape.apps)]
    zipf = [1 / (i + 1) for i in range(shape.apps)]
    at = 0.0
    for number in range(count):
        at += rng.expovariate(load.rate)
        yield at, f"{seed}-{number}", random.Random(f"fleet/{seed}/{number}"), rng.choices(apps, zipf)[0]


async def _fork(player: Player, shape: ForkShape, name: str, rng: random.Random, app: str) -> None:
    prompt = f"{app} {prose(rng, shape.own)}".lstrip()
    branches = rng.choices(shape.branches, shape.weights)[0]
    tails = [prose(rng, shape.branch_in) for _ in range(branches)]
    prompt += await player.call(prompt, shape.first, {"id": name, "will_continue": True})
    fork_len = shape.app + shape.own + shape.first if branches > 1 else 0
    hints: list[dict[str, object]] = [
        {"id": name, "branch": str(i), "fork_len": fork_len, "siblings": branches} for i in range(branches)
    ]
    outputs = await asyncio.gather(
        *(player.call(f"{prompt} {tail}", shape.branch_out, hint) for tail, hint in zip(tails, hints, strict=True)),
        return_exceptions=True,
    )
    for output in outputs:
        if isinstance(output, BaseException):
            raise output
    await player.call(" ".join([prompt, *map(str, outputs)]), shape.join, {"id": name})
