"""Random loads for `benchmarks.common.simulated_engine`, and what their requests got."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.common.simulated_engine import Life, SimulatedDevice, SimulatedRequest
from radixrt.messages.scheduler_stats import StepTimes

CPU = SimulatedDevice(StepTimes(step=8e-3, row=4e-4, context=2e-7, extend=2e-3, token=2.5e-4, pair=6e-8), 60_000)
"""About SmolLM2-135M on two cores."""
GPU = SimulatedDevice(StepTimes(step=5e-3, row=2e-5, context=4e-8, extend=0.0, token=2.5e-5, pair=1e-9), 200_000)
"""About an 8B model on one H200."""

Lengths = Callable[[random.Random], tuple[int, int, int]]
"""Draws prompt tokens, output tokens and max_tokens of a request."""

WARM_UP_S = 8.0
"""At first the load is light, so that there is data to predict from."""


@dataclass(frozen=True)
class Load:
    """A Poisson load.

    Attributes:
        shared: number of leading prompt tokens that every request has.
        warm_rate: requests per second while the engine warms up.
    """

    lengths: Lengths
    warm_rate: float
    shared: int = 0
    timeout_s: float | None = None

    def requests(self, rate: float, seconds: float, seed: int = 0) -> list[SimulatedRequest]:
        rng, ids = random.Random(seed), np.random.default_rng(seed)
        prefix, at = ids.integers(2, 900, self.shared), 0.0
        made: list[SimulatedRequest] = []
        while True:
            at += rng.expovariate(rate if at > WARM_UP_S else min(rate, self.warm_rate))
            if at > WARM_UP_S + seconds:
                return made
            prompt, output, max_tokens = self.lengths(rng)
            own = ids.integers(2, 900, prompt)
            made.append(
                SimulatedRequest(
                    at, np.concatenate([prefix, own]).astype(np.int32), output, max_tokens, timeout_s=self.timeout_s
                )
            )


@dataclass(frozen=True)
class Objective:
    """Service level objective: seconds until the first token and until the end, from the request's arrival."""

    first_token_s: float
    end_s: float

    def is_met(self, life: Life) -> bool:
        at = life.request.at
        return life.is_served and life.tokens[0] - at <= self.first_token_s and life.ended_at - at <= self.end_s


def goodput(lives: list[Life], objective: Objective, begin: float, end: float) -> float:
    """Requests per second that ended between two times and met the objective."""
    return sum(objective.is_met(life) for life in lives if begin <= life.ended_at < end) / (end - begin)
