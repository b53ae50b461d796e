"""Sends the requests of a benchmark to a server, and records when its events arrive."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

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


class Load:
    """Requests to one server."""

    def __init__(self, server: OpenAIServer, options: LoadOptions) -> None:
        self._server = server
        self._options = options
        headers = {name: value for name, value in server.headers.items() if name != "Accept-Encoding"}
        self._http = HttpClient(server.url, headers=headers)

    async def run(
        self, requests: Sequence[BenchRequest], answered: Callable[[Outcome], None] = lambda outcome: None
    ) -> tuple[float, list[Outcome]]:
        """Send all requests; return the seconds that it took and an outcome for each, whatever the server does.

        Args:
            answered: called with each outcome when it is there.
        """
        options = self._options
        slots = asyncio.Semaphore(options.max_concurrency or len(requests) or 1)
        start = time.perf_counter()
        deadline = asyncio.get_running_loop().time() + options.limit_s

        async def send(request: BenchRequest, due: float) -> Outcome:
            outcome = unsent = Outcome(start=time.perf_counter())
            try:
                async with asyncio.timeout_at(deadline):
                    await asyncio.sleep(start + due - time.perf_counter())
                    async with slots:
                        outcome = Outcome(start=time.perf_counter())
                        await self.ask(request, outcome)
            except TimeoutError:
                outcome.error = f"no answer within the limit of {options.limit_s:g} s"
            outcome.end = time.perf_counter()
            if outcome is unsent:
                outcome.start = outcome.end
            answered(outcome)
            return outcome

        try:
            outcomes = await asyncio.gather(*(send(*pair) for pair in zip(requests, self._times(requests))))
        finally:
            await self._http.aclose()
        return time.perf_counter() - start, outcomes

    def _times(self, requests: Sequence[BenchRequest]) -> list[float]:
        """Return when each request is due, in seconds after the start."""
        rate = self._options.rate
        if rate is None:
            return [request.at or 0.0 for request in requests]
        rng, at, times = random.Random(self._options.seed), 0.0, []
        for _ in requests:
            times.append(at)
            at += rng.expovariate(rate)
        return times

    async def ask(self, request: BenchRequest, outcome: Outcome) -> None:
        """Send a request, and record the answer or the failure in `outcome`."""
        path = "/chat/completions" if self._options.chat else "/completions"
        events: list[tuple[float, str]] = []
        try:
            async with self._http.stream("POST", path, self._body(request)) as response:
                if response.status_code != 200:
                    text = (await response.aread())[:300].decode(errors="replace")
                    outcome.error = f"HTTP {response.status_code}: {text}"
                    return
                async with aclosing(EventSource(response).aiter_sse()) as stream:
                    async for event in stream:
                        events.append((time.perf_counter(), event.data))
        except EngineError as error:
            outcome.error = str(error)
            return
        try:
            _read(events, outcome)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            outcome.error = f"the answer cannot be read: {error!r}"

    def _body(self, request: BenchRequest) -> bytes:
        body: dict[str, Any] = {
            "model": self._server.model,
            "temperature": self._options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._options.chat:
            body |= {"messages": [{"role": "user", "content": request.prompt}]}
            body["max_completion_tokens"] = request.output_len
        else:
            body |= {"prompt": request.prompt, "max_tokens": request.output_len}
        if self._options.ignore_eos:
            body["ignore_eos"] = True
        return json.dumps(body).encode()


def _read(events: Sequence[tuple[float, str]], outcome: Outcome) -> None:
    """Decode an answer's events, after it has ended so that decoding delays no other answer's times."""
    usage: dict[str, Any] | None = None
    for at, data in events:
        if data in ("[DONE]", ""):
            continue
        event = json.loads(data)
        if "error" in event:
            outcome.error = str(event["error"])
            return
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            if choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"):
                outcome.arrivals.append(at)
    if usage is None:
        outcome.error = "the server told no usage"
        return
    outcome.prompt_tokens, outcome.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
    outcome.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
