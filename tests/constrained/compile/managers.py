"""Requests for a `GrammarManager`, and a clock and loops that drive it as the scheduler does."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from radixrt.constrained.compile.client import CompileClient
from radixrt.constrained.compile.grammar_manager import GrammarManager, ReadyGrammar
from radixrt.constrained.matcher import LIBRARY
from radixrt.messages.request import Request
from radixrt.messages.wire import pack_i32
from radixrt.sampling_params import SamplingParams

MakeManager = Callable[..., GrammarManager]

LIMIT_S = 600.0
"""Ends a test in which an event does not come; no verdict about how fast anything is."""
COMPILE_S = 500.0
"""Compile timeout in processor seconds, below the default timeout of a request; no real job takes as long."""


def request(rid: str, *, timeout_s: float | None = None, tenant: str = "", **sampling: Any) -> Request:
    sampled = SamplingParams(**sampling)
    return Request.generate(rid, pack_i32([1, 2, 3]), sampled, timeout_s=timeout_s, tenant=tenant)


@dataclass
class Clock:
    """A monotonic clock that only the test moves."""

    now: float = field(default_factory=lambda: float(int(time.monotonic())))


def num_compiled(manager: GrammarManager) -> int:
    times = manager.stats().compile_times
    assert times is not None
    return sum(times.counts)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def drain(
    manager: GrammarManager, clock: Clock, count: int = 1, *, steps_in_flight: bool = False
) -> dict[str, ReadyGrammar]:
    """Poll until so many requests are ready, as the scheduler does; by request id."""
    ready: dict[str, ReadyGrammar] = {}
    deadline = time.monotonic() + LIMIT_S
    while len(ready) < count:
        ready |= {each.message.rid: each for each in manager.poll(clock.now, steps_in_flight=steps_in_flight)}
        if len(ready) < count:
            assert time.monotonic() < deadline, f"only {sorted(ready)} are ready"
            select.select(manager.sockets(), [], [], 0.05)
    return ready


def client_of(manager: GrammarManager) -> CompileClient:
    """The client of the workers that compile for the default library."""
    return manager._clients[LIBRARY]


def until_workers_are_ready(manager: GrammarManager, clock: Clock) -> None:
    def are_ready() -> bool:
        assert manager.poll(clock.now) == []
        workers = client_of(manager)._workers
        return bool(workers) and all(worker.pid for worker in workers)

    wait_until(are_ready, "the workers did not start")
