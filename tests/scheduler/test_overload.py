"""Overload in simulated time: what the bounded queue is for. The clock is virtual, so these figures may be asserted."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, replace

import pytest

from benchmarks.common.simulated_engine import Life, SimulatedDevice, SimulatedEngine
from benchmarks.serving import overload
from radixrt.bench.result import percentile
from tests.scheduler.simulated_load import CPU, GPU, WARM_UP_S, Lengths, Load, Objective, goodput

MEASURED_FROM = WARM_UP_S + 10.0


@dataclass(frozen=True)
class Case:
    """A load, about the highest rate that the engine can serve of it, and the objective that its clients have."""

    device: SimulatedDevice
    load: Load
    rate: float
    objective: Objective
    options: dict[str, object]
    seconds: float = 40.0

    @property
    def until(self) -> float:
        return WARM_UP_S + self.seconds

    def measured(self, lives: list[Life]) -> list[Life]:
        """Those served within the time that counts."""
        return [life for life in lives if life.is_served and MEASURED_FROM <= life.ended_at < self.until]

    def run(self, factor: float, **options: object) -> list[Life]:
        engine = SimulatedEngine(self.device, **{**self.options, **options})
        return engine.run(self.load.requests(factor * self.rate, self.seconds))

    def goodput(self, lives: list[Life]) -> float:
        return goodput(lives, self.objective, MEASURED_FROM, self.until)

    def best(self) -> float:
        return max(self.goodput(self.run(factor)) for factor in (0.9, 1.0))


def uniform(prompt: tuple[int, int], output: tuple[int, int], max_tokens: int | None = None) -> Lengths:
    def draw(rng: random.Random) -> tuple[int, int, int]:
        tokens = rng.randint(*output)
        return rng.randint(*prompt), tokens, max_tokens or tokens

    return draw


def few_long_prompts(rng: random.Random) -> tuple[int, int, int]:
    return (rng.randint(1000, 2000) if rng.random() < 0.1 else rng.randint(20, 100)), rng.randint(8, 60), 256


CHAT = Load(uniform((50, 300), (16, 64)), warm_rate=6)
CASES = {
    "rows are short": Case(CPU, CHAT, 14, Objective(4, 12), {"max_queue_wait_s": 1.5}),
    "slots are short, outputs end early": Case(
        replace(CPU, num_slots=3000), Load(uniform((50, 300), (16, 64), 512), 5), 10, Objective(3, 12),
        {"max_queue_wait_s": 1.5},
    ),
    "prompts are nearly all": Case(
        CPU, Load(uniform((800, 1500), (1, 4)), 1), 2.6, Objective(5, 8), {"max_queue_wait_s": 2.0}
    ),
    "a prefix is shared": Case(
        CPU, Load(uniform((20, 60), (8, 40)), 8, shared=1200), 35, Objective(3, 10), {"max_queue_wait_s": 1.5},
        seconds=30.0,
    ),
    "a few prompts are long": Case(
        CPU, Load(few_long_prompts, 6), 13, Objective(4, 15), {"max_queue_wait_s": 2.0}, seconds=100.0
    ),
    "a GPU": Case(
        GPU, Load(uniform((200, 1500), (50, 200), 1024), 10), 31, Objective(3, 12),
        {"max_queue_wait_s": 1.5, "max_running_requests": 256, "chunked_prefill_size": 8192}, seconds=30.0,
    ),
    "clients have a timeout": Case(CPU, replace(CHAT, timeout_s=12.0), 14, Objective(12, 12), {}),
}  # fmt: skip


@functools.cache
def lives_at(name: str, factor: float) -> list[Life]:
    """Return what becomes of the requests of a case at this many times its rate."""
    return CASES[name].run(factor)


@pytest.mark.parametrize("name", CASES)
def test_goodput_at_overload_stays_near_the_best(name: str) -> None:
    case = CASES[name]
    best = case.best()
    for factor in (2, 4):
        lives = lives_at(name, factor)
        served = case.measured(lives)
        assert case.goodput(lives) >= 0.9 * best, f"{case.goodput(lives):.2f} of {best:.2f} at {factor} times the load"
        waits = [life.queue_s for life in served]
        bound = case.options.get("max_queue_wait_s", case.load.timeout_s)
        assert isinstance(bound, float)
        assert percentile(waits, 99) <= bound + 1.5  # one step in a hundred takes five times as long
        first = [life.tokens[0] - life.request.at for life in served]
        assert percentile(first, 98) <= case.objective.first_token_s


def test_without_a_bound_nobody_is_served_in_time() -> None:
    """The reason for all this; the bound is what makes the difference."""
    case = CASES["rows are short"]
    assert case.goodput(case.run(2, max_queue_wait_s=None)) < 0.2 * case.goodput(lives_at("rows are short", 2))


@pytest.mark.parametrize("name", CASES)
def test_predicted_waits_come_true(name: str) -> None:
    case = CASES[name]
    lives = case.measured(lives_at(name, 2))
    errors = [abs(life.predicted_wait_s - life.queue_s) for life in lives]
    waits = [life.queue_s for life in lives]
    assert sum(errors) <= 0.35 * sum(waits) + 0.15 * len(waits), (sum(errors) / len(lives), sum(waits) / len(lives))


def test_the_flow_is_even() -> None:
    """Refusing does not oscillate: there is work at any time, and every second of it serves about as many."""
    case = CASES["rows are short"]
    lives = lives_at("rows are short", 4)
    ends = [int(life.ended_at // 2) for life in lives if life.is_served]
    windows = [ends.count(i) for i in range(int(MEASURED_FROM // 2), int(case.until // 2))]
    mean = sum(windows) / len(windows)
    assert min(windows) > 0.5 * mean
    assert max(windows) < 1.6 * mean


def test_long_prompts_are_not_refused_more_often() -> None:
    case = CASES["a few prompts are long"]
    lives = [life for life in lives_at("a few prompts are long", 4) if MEASURED_FROM <= life.request.at < case.until]
    shares = []
    for is_long in (False, True):
        chosen = [life for life in lives if (len(life.request.prompt) > 1000) == is_long]
        shares.append(sum(not life.is_refused for life in chosen) / len(chosen))
    assert shares[1] > 0.5 * shares[0], shares


def test_a_load_that_can_be_served_is_served() -> None:
    case = CASES["rows are short"]
    assert all(life.is_served for life in case.run(0.7))


def test_a_small_tenant_takes_twice_as_long_beside_a_flood_at_most() -> None:
    args = overload.arguments(["--simulated", "--tenants", "--rows", "8", "--seconds", "60", "--loads", "4"])
    alone, two_keys, one_key = overload.simulate_tenants(args)
    assert (two_keys.keys, one_key.keys) == ("two", "one")
    assert {status for status, _, _ in two_keys.small} == {200}
    assert two_keys.p99() <= 2 * alone.p99()
    assert sum(status == 429 for status, _, _ in one_key.small) > len(one_key.small) / 2, "why there are turns"
