"""The load client of all benchmarks: it streams answers of a server and records when their events arrive."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Self

from httpx_sse import EventSource

from radixrt.bench.datasets import BenchRequest
from radixrt.bench.result import Outcome
from radixrt.client.http import HttpClient
from radixrt.errors import EngineError
from radixrt.openai_api import OpenAIServer


@dataclass(frozen=True)
class LoadOptions:
    """Manner of sending.

    Attributes:
        chat: requests go to /chat/completions, with the prompt as the user's message; else to /completions.
        rate: requests per second on average, at random intervals (Poisson); None: at their own times, or all at once.
        max_concurrency: largest number of open requests; None for no limit.
        ignore_eos: answers have their full length; radixrt, vLLM and SGLang understand it, OpenAI does not.
        limit_s: seconds after which requests that are not answered have failed.
    """

    chat: bool = False
    rate: float | None = None
    max_concurrency: int | None = None
    ignore_eos: bool = True
    temperature: float = 0.0
    limit_s: float = 600.0
    seed: int = 0


@dataclass(frozen=True)
class TimedRequest:
    """A streamed request: its route, its JSON body, and the seconds after the start at which it is sent."""

    path: str
    body: Mapping[str, Any]
    at: float = 0.0


class LoadClient:
    """Streamed requests to one server, with OpenAI's API or radixrt's /generate; an async context manager.

    While a stream is open, only the times of its events are recorded. Their JSON is decoded after the answer has ended,
    so that decoding delays no other answer's times. Failures are written into the outcomes.

    Args:
        url: base of all paths.
        limit_s: seconds after entering the context at which requests that are not answered have failed.

    Attributes:
        late: error of these requests.
    """

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None, limit_s: float = math.inf) -> None:
        self._http = HttpClient(url, headers=headers)
        self.late = f"no answer within the limit of {limit_s:g} s"
        self._limit_s = limit_s
        self._deadline = math.inf

    async def __aenter__(self) -> Self:
        self._deadline = asyncio.get_running_loop().time() + self._limit_s
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    async def run(
        self,
        requests: Sequence[TimedRequest],
        *,
        max_concurrency: int | None = None,
        answered: Callable[[Outcome], None] = lambda outcome: None,
    ) -> list[Outcome]:
        """Send all requests, each at its time, and return an outcome for each, whatever the server does.

        Args:
            max_concurrency: largest number of open requests; None for no limit.
            answered: called with each outcome when it is there.
        """
        slots = asyncio.Semaphore(max_concurrency or len(requests) or 1)
        start = time.perf_counter()

        async def send(request: TimedRequest) -> Outcome:
            try:
                async with asyncio.timeout_at(self._deadline):
                    await asyncio.sleep(start + request.at - time.perf_counter())
                    await slots.acquire()
            except TimeoutError:
                now = time.perf_counter()
                outcome = Outcome(start=now, end=now, error=self.late)
            else:
                try:
                    outcome = await self.ask(request.path, request.body)
                finally:
                    slots.release()
            answered(outcome)
            return outcome

        return await asyncio.gather(*map(send, requests))

    async def ask(self, path: str, body: Mapping[str, Any]) -> Outcome:
        """Send one request now and return its outcome."""
        outcome = Outcome(start=time.perf_counter())
        try:
            async with asyncio.timeout_at(self._deadline):
                events = await self._events(path, json.dumps(body).encode(), outcome)
            outcome.end = time.perf_counter()
            read_events(events, outcome)
        except TimeoutError:
            outcome.error = self.late
        except EngineError as error:
            outcome.error = str(error)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            outcome.error = f"the answer cannot be read: {error!r}"
        outcome.end = outcome.end or time.perf_counter()
        return outcome

    async def _events(self, path: str, body: bytes, outcome: Outcome) -> list[tuple[float, str]]:
        """Return the arrival and the data of each event."""
        events: list[tuple[float, str]] = []
        async with self._http.stream("POST", path, body) as response:
            outcome.status = response.status_code
            delay = response.headers.get("retry-after", "")
            outcome.retry_after_s = float(delay) if delay.isdecimal() else 0.0
            if response.status_code != 200:
                text = (await response.aread())[:300].decode(errors="replace")
                outcome.error = f"HTTP {response.status_code}: {text}"
                return []
            async with aclosing(EventSource(response).aiter_sse()) as stream:
                async for event in stream:
                    events.append((time.perf_counter(), event.data))
        return events


def read_events(events: Sequence[tuple[float, str]], outcome: Outcome) -> None:
    """Write an answer into its outcome.

    Args:
        events: arrival and data of each server-sent event; none if the request failed.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: the data is not the JSON of an answer.
    """
    counts: dict[str, Any] | None = None
    for at, data in events:
        if data in ("[DONE]", ""):
            continue
        event = json.loads(data)
        if "error" in event:
            outcome.error = str(event["error"])
            return
        counts = event.get("usage") or event.get("meta_info") or counts
        for choice in event.get("choices") or (event,):  # an event of /generate is its only choice
            delta = choice.get("delta") or {}
            text = choice.get("text") or delta.get("content") or ""
            outcome.text += text
            if text or choice.get("output_ids") or delta.get("reasoning_content") or delta.get("reasoning"):
                outcome.arrivals.append(at)
    if outcome.error is not None:
        return
    if counts is None:
        outcome.error = "the server told no usage"
        return
    outcome.prompt_tokens, outcome.output_tokens = counts["prompt_tokens"], counts["completion_tokens"]
    details = counts.get("prompt_tokens_details") or counts
    outcome.cached_tokens = details.get("cached_tokens")
    outcome.queue_s = counts.get("queue_s", 0.0)


async def run_load(
    server: OpenAIServer,
    options: LoadOptions,
    requests: Sequence[BenchRequest],
    answered: Callable[[Outcome], None] = lambda outcome: None,
) -> tuple[float, list[Outcome]]:
    """Send the requests of a dataset; return the seconds that it took and an outcome for each request.

    Args:
        answered: called with each outcome when it is there.
    """
    path = "/chat/completions" if options.chat else "/completions"
    bodies = [_body(server, options, request) for request in requests]
    timed = [TimedRequest(path, body, at) for body, at in zip(bodies, _times(options, requests), strict=True)]
    headers = {name: value for name, value in server.headers.items() if name != "Accept-Encoding"}
    start = time.perf_counter()
    async with LoadClient(server.url, headers=headers, limit_s=options.limit_s) as client:
        outcomes = await client.run(timed, max_concurrency=options.max_concurrency, answered=answered)
    return time.perf_counter() - start, outcomes


def _times(options: LoadOptions, requests: Sequence[BenchRequest]) -> list[float]:
    """Return when each request is due, in seconds after the start."""
    if options.rate is None:
        return [request.at or 0.0 for request in requests]
    rng, at, times = random.Random(options.seed), 0.0, []
    for _ in requests:
        times.append(at)
        at += rng.expovariate(options.rate)
    return times


def _body(server: OpenAIServer, options: LoadOptions, request: BenchRequest) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": server.model,
        "temperature": options.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if options.chat:
        body |= {"messages": [{"role": "user", "content": request.prompt}]}
        body["max_completion_tokens"] = request.output_len
    else:
        body |= {"prompt": request.prompt, "max_tokens": request.output_len}
    if options.ignore_eos:
        body["ignore_eos"] = True
    return body
