"""Table "Overload" of docs/benchmarks.md: goodput, latencies and refusals at one, two and four times the load.

    python -m benchmarks.serving.overload

Two servers in turn, one with `--max-queue-wait-s` and one without. A closed loop of half as many clients again as the
first has rows gives about the rate that it can serve; both are measured with open-loop Poisson loads at multiples of
that rate: requests come whether or not earlier ones have ended, and a refused one does not come back. Goodput is the
number of requests in a second that end and meet the objective: a limit for the first token and one for the mean time
between tokens. Between loads the server drains. Prompts are random token ids, so that nothing is cached.

    python -m benchmarks.serving.overload --tenants --rows 8

Two API keys on one server: a small tenant sends `--small-share` of the rate that the server can serve, alone and beside
a big tenant that sends the multiples of it. The table has the latencies of the small tenant's requests, and their p99
by its p99 alone.

    python -m benchmarks.serving.overload --simulated [--tenants --rows 8]

The same scheduler with a simulated device and clock, at more loads; takes seconds, and gives the same table every time.
"""

import argparse
import asyncio
import bisect
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common import machine
from benchmarks.common.metrics import read_metrics, wait_idle
from benchmarks.common.servers import started
from benchmarks.common.simulated_engine import SimulatedDevice, SimulatedEngine, SimulatedRequest
from benchmarks.common.tables import table
from radixrt.bench.load import LoadClient, TimedRequest
from radixrt.bench.result import Outcome, percentile
from radixrt.messages.scheduler_stats import StepTimes

GAUGE = "radixrt_predicted_wait_seconds"
POLL_S = 0.25
DRAIN_S = 600.0
HEADER = (
    "queue", "load", "offered/s", "goodput/s", "of the best", "refused", "late", "TTFT s p50/p99",
    "between tokens ms p50/p99", "wait s p50/p99", "error of the prediction s", "Retry-After s p50/p99",
)  # fmt: skip


@dataclass(frozen=True)
class Objective:
    """Service level objective: seconds until the first token, and mean seconds between tokens."""

    first_token_s: float
    between_s: float


@dataclass(frozen=True)
class Call:
    """One request. Times are in seconds, `times` of the tokens from the request's sending.

    Attributes:
        status: HTTP status; 0 if the client ended the request with the measurement.
        predicted_s: predicted wait when it was sent.
        queue_s: its wait in the queue, as the server measured it.
    """

    status: int
    predicted_s: float
    times: tuple[float, ...] = ()
    queue_s: float = 0.0
    retry_after_s: float = 0.0

    def meets(self, objective: Objective) -> bool:
        if self.status != 200 or not self.times:
            return False
        between = (self.times[-1] - self.times[0]) / max(len(self.times) - 1, 1)
        return self.times[0] <= objective.first_token_s and between <= objective.between_s


@dataclass(frozen=True)
class Run:
    """One load. `factor` is the offered rate by the rate that the server can serve; `calls` ended within `seconds`."""

    bounded: bool
    factor: float
    offered: float
    seconds: float
    calls: list[Call]
    unfinished: int = 0

    def goodput(self, objective: Objective) -> float:
        return sum(call.meets(objective) for call in self.calls) / self.seconds

    def row(self, objective: Objective, best: float) -> tuple[str, ...]:
        served = [call for call in self.calls if call.status == 200 and call.times]
        refused = [call for call in self.calls if call.status == 429]
        gaps = [b - a for call in served for a, b in zip(call.times, call.times[1:], strict=False)]
        errors = [abs(call.predicted_s - call.queue_s) for call in served]
        late = len(served) - sum(call.meets(objective) for call in served)
        return (
            "bounded" if self.bounded else "unbounded", f"{self.factor:g}x", f"{self.offered:.1f}",
            f"{self.goodput(objective):.2f}", f"{self.goodput(objective) / best:.0%}",
            f"{len(refused) / max(len(self.calls) + self.unfinished, 1):.0%}", f"{late}",
            _both([call.times[0] for call in served]), _both([1e3 * gap for gap in gaps], 0),
            _both([call.queue_s for call in served]), f"{sum(errors) / max(len(errors), 1):.2f}",
            _both([call.retry_after_s for call in refused], 0),
        )  # fmt: skip


def _both(values: Sequence[float], digits: int = 2) -> str:
    return " / ".join(f"{percentile(values, q):.{digits}f}" for q in (50, 99)) if values else "-"


# --- a real server ---

KEYS = {"big": "sk-big", "small": "sk-small"}


class Load:
    """Random requests to one server, whose prediction it follows.

    Attributes:
        predictions: (time, predicted wait) of each reading.
    """

    def __init__(self, url: str, client: LoadClient, seed: int) -> None:
        self._url = url
        self._client = client
        self._rng = random.Random(seed)
        self.predictions: list[tuple[float, float]] = []

    def request(self, at: float = 0.0) -> TimedRequest:
        prompt = [self._rng.randrange(1000, 30_000) for _ in range(self._rng.randint(32, 96))]
        sampling = {"max_new_tokens": self._rng.randint(8, 24), "temperature": 0.0, "ignore_eos": True}
        return TimedRequest("/generate", {"input_ids": prompt, "sampling_params": sampling, "stream": True}, at)

    async def ask(self) -> Outcome:
        request = self.request()
        return await self._client.ask(request.path, request.body)

    def call(self, outcome: Outcome) -> Call:
        """Return an outcome beside the wait that the server predicted when the request was sent."""
        known = bisect.bisect(self.predictions, (outcome.start, math.inf))
        predicted = self.predictions[known - 1][1] if known else 0.0
        status = 500 if outcome.status == 200 and outcome.error is not None else outcome.status
        times = tuple(at - outcome.start for at in outcome.arrivals)
        return Call(status, predicted, times, outcome.queue_s, outcome.retry_after_s)

    async def follow(self) -> None:
        """Read the server's prediction again and again."""
        while True:
            predicted = (await asyncio.to_thread(read_metrics, self._url)).get(GAUGE, 0.0)
            self.predictions.append((time.perf_counter(), predicted))
            await asyncio.sleep(POLL_S)


async def closed_loop(load: Load, clients: int, seconds: float) -> float:
    """Requests per second that are served to `clients` clients, each with one at a time, in at least `seconds`."""
    begin, ended = time.perf_counter(), 0

    async def one() -> None:
        nonlocal ended
        while time.perf_counter() < begin + seconds or ended < 2 * clients:
            if (await load.ask()).error is None:
                ended += 1
            else:
                await asyncio.sleep(POLL_S)

    await asyncio.gather(*(one() for _ in range(clients)))
    return ended / (time.perf_counter() - begin)


async def open_loop(url: str, rate: float, seconds: float, seed: int) -> tuple[list[Call], int]:
    """Offer `rate` requests per second for a third longer than `seconds`; the calls that ended within the last
    `seconds`, and the number that were still open at the end, which are given up."""
    rng, requests, at = random.Random(seed), [], 0.0
    async with LoadClient(url, limit_s=seconds * 4 / 3) as client:
        load = Load(url, client, seed)
        while (at := at + rng.expovariate(rate)) < seconds * 4 / 3:
            requests.append(load.request(at))
        follower = asyncio.create_task(load.follow())
        begin = time.perf_counter()
        outcomes = await client.run(requests)
        follower.cancel()
    await asyncio.gather(follower, return_exceptions=True)
    ended = [each for each in outcomes if each.error != client.late]
    return [load.call(each) for each in ended if each.end >= begin + seconds / 3], len(outcomes) - len(ended)


async def measure(url: str, args: argparse.Namespace, capacity: float | None, bounded: bool) -> list[Run]:
    runs = []
    async with LoadClient(url) as client:
        load = Load(url, client, args.seed + bounded)
        await asyncio.gather(*(load.ask() for _ in range(args.rows)))  # the first requests fill caches
        if capacity is None:
            capacity = await closed_loop(load, 3 * args.rows // 2, args.seconds)
    for i, factor in enumerate(args.loads):
        calls, still_open = await open_loop(url, factor * capacity, args.seconds, args.seed + i)
        runs.append(Run(bounded, factor, factor * capacity, args.seconds, calls, still_open))
        await wait_idle(url, DRAIN_S)
    return runs


def launch_command(args: argparse.Namespace, options: str) -> str:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # the server's threads leave the cores to the client
    model = f" --model {args.model}" if args.model else ""
    return (
        f"{sys.executable} -m radixrt launch --port {{port}} --max-running-requests {args.rows} "
        f"--num-threads {args.threads} --kv-cache-tokens 32768 --max-queued-requests 100000 "
        f"--max-connections-per-client 100000 --log-level warning{model}{options}"
    )


def measure_servers(args: argparse.Namespace) -> list[Run]:
    runs: list[Run] = []
    log = Path(tempfile.mkdtemp(prefix="overload-")) / "server.log"
    for bounded in (True, False):
        command = launch_command(args, f" --max-queue-wait-s {args.max_queue_wait_s:g}" if bounded else "")
        capacity = runs[0].offered / runs[0].factor if runs else None
        with started(command, log, 300.0, 5.0) as server:
            runs += asyncio.run(measure(server.url, args, capacity, bounded))
    return runs


# --- two tenants ---

TENANT_HEADER = (
    "keys", "load of the big tenant", "small: served", "refused", "TTFT s p50/p99", "latency s p50/p99",
    "p99 by p99 alone", "big: served/s", "refused",
)  # fmt: skip


@dataclass(frozen=True)
class TenantRun:
    """One load of the big tenant beside the small one's. `(status, first, last)` of each call: seconds from its
    sending to its first and last token."""

    keys: str
    factor: float
    small: list[tuple[int, float, float]]
    big: list[tuple[int, float, float]]
    seconds: float

    def p99(self) -> float:
        """The small tenant's p99 of latency in seconds; infinite if none of its requests was served."""
        served = [last for status, _, last in self.small if status == 200]
        return percentile(served, 99) if served else math.inf

    def row(self, alone: float) -> tuple[str, ...]:
        small, big = ([call for call in calls if call[0] == 200] for calls in (self.small, self.big))
        refused = [sum(status == 429 for status, _, _ in calls) for calls in (self.small, self.big)]
        return (
            self.keys, f"{self.factor:g}x", f"{len(small)} of {len(self.small)}", f"{refused[0]}",
            _both([first for _, first, _ in small]), _both([last for _, _, last in small]),
            f"{self.p99() / alone:.2f}", f"{len(big) / self.seconds:.1f}",
            f"{refused[1] / len(self.big):.0%}" if self.big else "-",
        )  # fmt: skip


async def two_tenants(
    url: str, keys: tuple[str, str], capacity: float, factor: float, args: argparse.Namespace
) -> TenantRun:
    """Offer `factor` times the capacity with the first key and the small share with the second."""

    async def offer(client: LoadClient, key: str, rate: float, seed: int) -> list[tuple[int, float, float]]:
        rng, load, requests, at = random.Random(seed), Load(url, client, seed), [], 0.0
        while rate and (at := at + rng.expovariate(rate)) < args.seconds:
            requests.append(load.request(at))
        calls = [load.call(outcome) for outcome in await client.run(requests)]
        return [(call.status, *((call.times[0], call.times[-1]) if call.times else (0.0, 0.0))) for call in calls]

    async with LoadClient(url, headers=_key(keys[0])) as big, LoadClient(url, headers=_key(keys[1])) as small:
        found = await asyncio.gather(
            offer(small, keys[1], args.small_share * capacity, args.seed + 1),
            offer(big, keys[0], factor * capacity, args.seed + 2),
        )
    return TenantRun("one" if keys[0] == keys[1] else "two", factor, *found, args.seconds)


def _key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[name]}"}


def measure_tenants(args: argparse.Namespace) -> list[TenantRun]:
    folder = Path(tempfile.mkdtemp(prefix="overload-"))
    (folder / "keys.toml").write_text("".join(f'[keys.{name}]\nkey = "{key}"\n' for name, key in KEYS.items()))
    (folder / "keys.toml").chmod(0o600)
    options = f" --max-queue-wait-s {args.max_queue_wait_s:g} --api-key-file {folder / 'keys.toml'}"

    async def measured(url: str) -> list[TenantRun]:
        async with LoadClient(url, headers=_key("small")) as client:
            capacity = await closed_loop(Load(url, client, args.seed), 3 * args.rows // 2, args.seconds / 4)
        runs = [await two_tenants(url, ("big", "small"), capacity, 0.0, args)]
        for factor in args.loads:
            runs += [await two_tenants(url, keys, capacity, factor, args) for keys in _WHO]
        return runs

    with started(launch_command(args, options), folder / "server.log", 300.0, 5.0) as server:
        return asyncio.run(measured(server.url))


_WHO = (("big", "small"), ("big", "big"))
"""Keys of the two tenants: of their own, or one, as before there were turns."""


def simulate_tenants(args: argparse.Namespace) -> list[TenantRun]:
    runs = []
    for factor, keys in [(0.0, _WHO[0]), *((factor, keys) for factor in args.loads for keys in _WHO)]:
        engine = SimulatedEngine(
            DEVICE, max_queued_requests=100_000, max_queue_wait_s=args.max_queue_wait_s, max_running_requests=args.rows
        )
        engine.run(_poisson(6.0, 0.0, args.seed, "small"))  # the model of step times needs data
        small = _poisson(args.small_share * SIMULATED_RATE, args.seconds, args.seed + 1, keys[1], WARM_UP_S)
        big = _poisson(factor * SIMULATED_RATE, args.seconds, args.seed + 2, keys[0], WARM_UP_S) if factor else []
        engine.run(small + big)
        lives = {id(life.request): life for life in engine.lives.values()}
        of_small, of_big = (
            [
                (life.finish.error.status, 0.0, 0.0)
                if life.finish is not None and life.finish.error is not None
                else (200, life.tokens[0] - life.request.at, life.ended_at - life.request.at)
                for life in (lives[id(request)] for request in requests)
            ]
            for requests in (small, big)
        )
        runs.append(TenantRun("one" if keys[0] == keys[1] else "two", factor, of_small, of_big, args.seconds))
    return runs


# --- simulated ---

DEVICE = SimulatedDevice(
    StepTimes(step=8e-3, row=4e-4, context=2e-7, extend=2e-3, token=2.5e-4, pair=6e-8), num_slots=60_000
)
"""About SmolLM2-135M on two cores."""
SIMULATED_RATE = 14.0
WARM_UP_S = 8.0


def simulate(args: argparse.Namespace) -> list[Run]:
    runs = []
    for bounded in (True, False):
        for factor in args.loads:
            bound = {"max_queue_wait_s": args.max_queue_wait_s} if bounded else {}
            engine = SimulatedEngine(DEVICE, max_queued_requests=100_000, **bound)
            lives = engine.run(_poisson(factor * SIMULATED_RATE, args.seconds, args.seed))
            calls, still_open = [], 0
            for life in lives:
                at, error = life.request.at, None if life.finish is None else life.finish.error
                if life.ended_at >= WARM_UP_S + args.seconds * 4 / 3:
                    still_open += 1
                elif life.ended_at >= WARM_UP_S + args.seconds / 3:
                    calls.append(
                        Call(
                            200 if error is None else error.status, life.predicted_wait_s,
                            tuple(token - at for token in life.tokens), life.queue_s,
                            math.ceil(error.retry_after_s or 1.0) if error is not None else 0.0,
                        )
                    )  # fmt: skip
            runs.append(Run(bounded, factor, factor * SIMULATED_RATE, args.seconds, calls, still_open))
    return runs


def _poisson(rate: float, seconds: float, seed: int, tenant: str = "", begin: float = 0.0) -> list[SimulatedRequest]:
    rng, ids, at, made = random.Random(seed), np.random.default_rng(seed), begin, []
    while (at := at + rng.expovariate(rate if at > WARM_UP_S else min(rate, 6.0))) < WARM_UP_S + seconds * 4 / 3:
        prompt, output = ids.integers(2, 900, rng.randint(50, 300)).astype(np.int32), rng.randint(16, 64)
        made.append(SimulatedRequest(at, prompt, output, output, tenant=tenant))
    return made


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving.overload", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--model", help="model to serve (default: the embedded one)")
    parser.add_argument("--rows", type=int, default=16, help="--max-running-requests of the server")
    parser.add_argument("--threads", type=int, default=1, help="--num-threads of the server; the client needs a core")
    parser.add_argument("--max-queue-wait-s", type=float, default=1.5, help="the bound of the bounded server")
    parser.add_argument("--first-token-s", type=float, default=3.0, help="objective: longest time to the first token")
    parser.add_argument("--between-s", type=float, default=0.5, help="objective: longest mean time between tokens")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured time of each load")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.8, 1.0, 2.0, 4.0], help="multiples of capacity")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tenants", action="store_true", help="two API keys in place of two servers")
    parser.add_argument("--small-share", type=float, default=0.07, help="rate of the small tenant by the capacity")
    parser.add_argument("--simulated", action="store_true", help="a simulated device and clock in place of servers")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    print("; ".join(f"{name}: {value}" for name, value in machine.facts().items()), flush=True)
    if args.tenants:
        tenants = simulate_tenants(args) if args.simulated else measure_tenants(args)
        print("\n" + table(TENANT_HEADER, [run.row(tenants[0].p99()) for run in tenants]))
        return
    runs = simulate(args) if args.simulated else measure_servers(args)
    objective = Objective(args.first_token_s, args.between_s)
    best = max(run.goodput(objective) for run in runs) or 1.0
    print(f"\nObjective: first token within {objective.first_token_s:g} s, {1e3 * objective.between_s:g} ms a token\n")
    print(table(HEADER, [run.row(objective, best) for run in runs]))


if __name__ == "__main__":
    main()
