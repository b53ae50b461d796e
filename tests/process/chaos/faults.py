"""Faults: which process of a server is killed or stopped, and what the server's processes are."""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass, field

import psutil

ENGINE_MODULE = "radixrt.engine.process"
COMPILER_MODULE = "radixrt.constrained.compile.worker"
RUNNER, SCHEDULER, TOKENIZER, COMPILER = "ModelRunner", "scheduler", "tokenizer", "grammar compiler"
ROUTER = "router"
WEIGHTS = {RUNNER: 8, SCHEDULER: 5, TOKENIZER: 5, COMPILER: 2, ROUTER: 3}
SIGNALS = {signal.SIGKILL: 3, signal.SIGSTOP: 1}
STOPS = {SCHEDULER, TOKENIZER}
STOPS_BEHIND_ROUTER = {ROUTER, TOKENIZER}
"""Processes whose end ends the open requests with an error, on a server without replicas and on one with them."""


@dataclass
class Fault:
    """One killed or stopped process; times are those of time.monotonic.

    Attributes:
        open_requests: requests that were waiting for their answers at that moment.
        recovered: time of the first answer to a request sent after the fault; 0 until then.
        double: another fault came before the server had recovered.
    """

    process: str
    signal: signal.Signals
    pid: int
    at: float
    open_requests: frozenset[int] = field(repr=False)
    recovered: float = 0.0
    double: bool = False

    @property
    def recovery_s(self) -> float:
        return self.recovered - self.at


def processes(main_pid: int) -> dict[str, list[psutil.Process]]:
    """Return a server's processes below main, by kind."""
    found: dict[str, list[psutil.Process]] = {}
    for child in psutil.Process(main_pid).children(recursive=True):
        try:
            command = child.cmdline()
        except psutil.Error:
            continue
        if ENGINE_MODULE in command:
            kind = command[command.index(ENGINE_MODULE) + 1].partition("-")[0]
            found.setdefault(RUNNER if kind == "runner" else kind, []).append(child)
        elif COMPILER_MODULE in command:
            found.setdefault(COMPILER, []).append(child)
    return found


def choose(rng: random.Random, there: dict[str, list[psutil.Process]]) -> tuple[str, psutil.Process, signal.Signals]:
    """Choose a process and a signal among those that there are."""
    kinds = [kind for kind in WEIGHTS if there.get(kind)]
    (kind,) = rng.choices(kinds, [WEIGHTS[kind] for kind in kinds])
    (how,) = rng.choices(list(SIGNALS), list(SIGNALS.values()))
    return kind, rng.choice(there[kind]), how
