"""`run_load`: clients that send requests of all kinds until the time is up, of which some leave before the answer."""

import asyncio
import random
import time
from collections import Counter

import httpx

import radixrt as rt
from benchmarks.soak.requests import KINDS, BrokenAnswer, compare
from radixrt.bench.words import WORDS, prose
from radixrt.errors import RadixRTError
from radixrt.lang.errors import CallError

LEAVES = 0.1
"""Share of the requests whose client closes the connection within a second."""

ANSWER_S = 600.0
"""Time after which an answer counts as missing; no measure of speed."""

PAUSE_S = 0.2
"""Delay after a 429 or 503."""


class Tally:
    """Counts of how requests ended.

    Attributes:
        ended: by kind and ending: "answered", "refused", "left" or "busy".
        broken: messages of wrong answers, at most MAX_BROKEN.
    """

    MAX_BROKEN = 20

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str]] = Counter()
        self.broken: list[str] = []

    def add(self, kind: str, status: int) -> None:
        """Count a request by the HTTP status of its answer; 499 stands for a client that left."""
        if status in (429, 503):
            self.ended[kind, "busy"] += 1
        elif status >= 500:
            self.add_broken(kind, f"status {status}")
        else:
            self.ended[kind, "left" if status == 499 else "answered" if status == 200 else "refused"] += 1

    def add_broken(self, kind: str, why: str) -> None:
        self.ended[kind, "broken"] += 1
        if len(self.broken) < self.MAX_BROKEN:
            self.broken.append(f"{kind}: {why}")


async def run_load(url: str, *, clients: int, programs: int, seconds: float, seed: int) -> Tally:
    """Send requests for so many seconds, and wait for the answers that are then open.

    Args:
        clients: requests that are open at once.
        programs: programs of the frontend language that run at once, beside them.
    """
    tally, deadline = Tally(), time.monotonic() + seconds
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_S, limits=limits, trust_env=False) as client:
        workers = [_send_requests(client, tally, deadline, random.Random(seed + i)) for i in range(clients)]
        endpoint = rt.Endpoint(url, timeout_s=ANSWER_S)
        runs = [_run_programs(endpoint, tally, deadline, random.Random(-seed - i)) for i in range(programs)]
        await asyncio.gather(*workers, *runs)
    return tally


async def _send_requests(client: httpx.AsyncClient, tally: Tally, deadline: float, rng: random.Random) -> None:
    names, weights = list(KINDS), [weight for weight, _ in KINDS.values()]
    while time.monotonic() < deadline:
        kind = rng.choices(names, weights)[0]
        status = 0
        try:
            # Cancelling a request closes its connection.
            patience = rng.random() if rng.random() < LEAVES else ANSWER_S
            status = await asyncio.wait_for(KINDS[kind][1](client, rng), patience)
        except TimeoutError:
            status = 499
            if patience == ANSWER_S:
                tally.add_broken(kind, f"no answer within {ANSWER_S:g} s")
                continue
        except (BrokenAnswer, httpx.HTTPError) as error:
            tally.add_broken(kind, f"{type(error).__name__}: {error}")
            continue
        tally.add(kind, status)
        if status in (429, 503):
            await asyncio.sleep(PAUSE_S)


async def _run_programs(endpoint: rt.Endpoint, tally: Tally, deadline: float, rng: random.Random) -> None:
    while time.monotonic() < deadline:
        status = 200
        try:
            await asyncio.to_thread(
                compare.run, prose(rng, rng.randrange(4, 80)), rng.sample(WORDS, rng.randrange(2, 4)), backend=endpoint
            )
        except CallError as error:
            tally.add_broken("program", str(error))
            continue
        except RadixRTError as error:
            tally.add_broken("program", f"{type(error).__name__}: {error}")
            continue
        tally.add("program", status)
