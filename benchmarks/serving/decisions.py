"""Makes the table "Decisions" of docs/benchmarks.md: typed questions about states, over HTTP.

    python -m benchmarks.serving.decisions [--url URL] [--states 64] [--tokens 200] [--concurrency 1 8] [--rounds 3]

Each request of /v1/systemone has a new state of about `--tokens` tokens and the same 8 questions: four of yes or no,
two choices, among four and among sixteen options, and two scores of five levels. "separate" sends each of these
questions in a request of its own, a state's questions after one another. Without `--url` a server of the embedded model
is started. The figures are medians over the rounds: questions answered a second, milliseconds of a request, and the
share of prompt tokens that came from the cache.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks.common.machine import facts
from benchmarks.common.servers import started
from benchmarks.common.tables import table
from radixrt.bench.words import WORDS, prose

OPTIONS = ["billing", "technical", "sales", "other"]
TOPICS = [f"{word} matters" for word in sorted(set(WORDS))[:16]]
LEVELS = ["not at all", "a little", "somewhat", "very", "extremely"]
QUESTIONS: dict[str, dict[str, Any]] = {
    "money": {"type": "noul", "instructions": "Is this about money?"},
    "people": {"type": "noul", "instructions": "Does the text name people?"},
    "past": {"type": "noul", "instructions": "Is the text about the past?"},
    "question": {"type": "noul", "instructions": "Does the text ask a question?"},
    "team": {"type": "choice", "instructions": "Which team?", "criteria": dict.fromkeys(OPTIONS)},
    "topic": {"type": "choice", "instructions": "Which topic?", "criteria": dict.fromkeys(TOPICS)},
    "urgency": {"type": "score", "instructions": "How urgent is it?", "criteria": LEVELS},
    "clarity": {"type": "score", "instructions": "How clear is it?", "criteria": LEVELS},
}


class Figures(NamedTuple):
    """Figures of one round."""

    questions_per_s: float
    request_ms: float
    cached: float


async def ask(url: str, bodies: Sequence[Sequence[dict[str, Any]]], concurrency: int) -> Figures:
    """Send the bodies of each state after one another, `concurrency` states at a time."""
    turn = asyncio.Semaphore(concurrency)
    seconds: list[float] = []
    usages: list[dict[str, int]] = []

    async with httpx.AsyncClient(timeout=600, trust_env=False) as client:

        async def state(requests: Sequence[dict[str, Any]]) -> None:
            async with turn:
                for body in requests:
                    begun = time.perf_counter()
                    response = await client.post(f"{url}/v1/systemone", json=body)
                    response.raise_for_status()
                    seconds.append(time.perf_counter() - begun)
                    usages.extend(answer["usage"] for answer in response.json()["answers"].values())

        begun = time.perf_counter()
        await asyncio.gather(*(state(requests) for requests in bodies))
        wall = time.perf_counter() - begun
    cached = sum(usage["cached_tokens"] for usage in usages) / sum(usage["input_tokens"] for usage in usages)
    return Figures(len(usages) / wall, 1e3 * statistics.median(seconds), cached)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a running server")
    parser.add_argument("--server", default="radixrt launch --port {port}", help="command of the server to start")
    parser.add_argument("--states", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200, help="tokens of a state")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    rng = random.Random(0)

    def bodies(*, separate: bool) -> list[list[dict[str, Any]]]:
        made = []
        for _ in range(options.states):
            state = {"text": prose(rng, options.tokens)}
            asked = [{name: question} for name, question in QUESTIONS.items()] if separate else [QUESTIONS]
            made.append([{"state": state, "questions": questions} for questions in asked])
        return made

    with ExitStack() as stack:
        url = options.url
        if url is None:
            log = Path(tempfile.mkdtemp(prefix="decisions-")) / "server.log"
            url = stack.enter_context(started(options.server, log, 600.0, 10.0)).url
        asyncio.run(ask(url, bodies(separate=False)[:4], 1))
        rows = []
        for concurrency in options.concurrency:
            for name, separate in (("together", False), ("separate", True)):
                found = [asyncio.run(ask(url, bodies(separate=separate), concurrency)) for _ in range(options.rounds)]
                speed, latency, cached = (statistics.median(values) for values in zip(*found, strict=True))
                rows.append([str(concurrency), name, f"{speed:,.1f}", f"{latency:,.0f}", f"{100 * cached:.0f} %"])
    print(table(["states at a time", "questions", "questions/s", "ms of a request", "cached"], rows))
    print("; ".join(f"{name}: {value}" for name, value in facts().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
