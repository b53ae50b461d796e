"""Workloads of `benchmarks.fleet.compare`, and their client: programs of calls to POST /generate, with texts.

Sizes are workloads A and B of the simulator (`benchmarks.fleet.programs`), divided by four so that each sequence fits
a context of 8,192 tokens, and a fork of B has 16 branches instead of 64. They were fixed before anything was measured.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx

from benchmarks.fleet.programs import ForkShape
from benchmarks.serving.workloads import build
from radixrt.bench.words import prose

CONNECTIONS = 512
CALL_LIMIT_S = 300.0


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
    """Plays one workload against an endpoint; `next_url` returns the server of each call."""

    def __init__(self, http: httpx.AsyncClient, next_url: Callable[[], str]) -> None:
        self._http = http
        self._next_url = next_url
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
        begin, parts, meta = time.perf_counter(), [], {}
        try:
            async with self._http.stream("POST", f"{self._next_url()}/generate", json=body) as response:
                if response.status_code != 200:
                    answer = (await response.aread()).decode(errors="replace")
                    raise CallFailed(f"HTTP {response.status_code}: {answer[:200]}")
                async for line in response.aiter_lines():
                    if not line.startswith("data:") or line.endswith("[DONE]"):
                        continue
                    event = json.loads(line[5:])
                    if "error" in event:
                        raise CallFailed(str(event["error"])[:200])
                    if event.get("output_ids") and not parts:
                        self.measured.ttft.append(time.perf_counter() - begin)
                    parts.append(event.get("text", ""))
                    meta = event.get("meta_info", meta)
        except (httpx.HTTPError, ValueError) as error:
            raise CallFailed(f"{type(error).__name__}: {error}") from error
        self.measured.prompt_tokens += meta.get("prompt_tokens", 0)
        self.measured.cached_tokens += meta.get("cached_tokens", 0)
        return "".join(parts)

    async def program(self, steps: Callable[[Player], asyncio.Future[None]]) -> None:
        """Run a program and count its time, or its error."""
        begin = time.perf_counter()
        try:
            await steps(self)
        except CallFailed as error:
            self.measured.errors.append(str(error))
        else:
            self.measured.program_s.append(time.perf_counter() - begin)


async def play(name: str, seed: int, share: float, next_url: Callable[[], str]) -> Measured:
    """Play a workload to its end.

    Args:
        seed: of texts, forks and times.
        share: part of its programs to play, for trying things out.
    """
    limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    async with httpx.AsyncClient(limits=limits, timeout=CALL_LIMIT_S, trust_env=False) as http:
        player = Player(http, next_url)
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
            asyncio.ensure_future(player.program(lambda p, n=name, r=rng, a=app: _fork(p, load.shape, n, r, a)))  # type: ignore[misc]
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
