"""Runs one workload of `benchmarks.serving` on any OpenAI-compatible server."""

import asyncio
import time
from collections.abc import Iterator

from benchmarks.serving.workloads import Conversation, Json, Messages, Workload
from radixrt.bench.load import LoadClient
from radixrt.bench.result import Outcome

NOT_SENT = "not sent: an earlier turn failed"


def chat_body(model: str, messages: Messages, max_tokens: int, schema: Json | None) -> Json:
    """A greedy streamed request; the end-of-sequence token is ignored unless a schema decides where the answer ends."""
    body: Json = {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if schema is None:
        return body | {"ignore_eos": True}
    form = {"type": "json_schema", "json_schema": {"name": "item", "schema": schema, "strict": True}}
    return body | {"response_format": form}


async def _converse(client: LoadClient, model: str, workload: Workload, talk: Conversation) -> list[Outcome]:
    messages = talk.opening()
    outcomes: list[Outcome] = []
    for user in talk.users:
        messages.append({"role": "user", "content": user})
        body = chat_body(model, messages, workload.max_tokens, workload.schema)
        outcome = await client.ask("/v1/chat/completions", body)
        outcomes.append(outcome)
        if outcome.error is not None:
            return outcomes + [Outcome(0.0, error=NOT_SENT)] * (len(talk.users) - len(outcomes))
        messages.append({"role": "assistant", "content": outcome.text})
    return outcomes


async def run_workload(url: str, model: str, workload: Workload, limit_s: float) -> tuple[float, list[Outcome]]:
    """Wall seconds and the outcome of each request, `workload.requests` of them, whatever happens to the server.

    Requests that have not been answered after `limit_s` seconds are errors.
    """
    outcomes: list[Outcome] = []

    async def worker(client: LoadClient, talks: Iterator[Conversation]) -> None:
        for talk in talks:
            outcomes.extend(await _converse(client, model, workload, talk))

    async with LoadClient(url.rstrip("/").removesuffix("/v1"), limit_s=limit_s) as client:
        talks = iter(workload.conversations)
        start = time.perf_counter()
        await asyncio.gather(*(worker(client, talks) for _ in range(workload.concurrency)))
        return time.perf_counter() - start, outcomes
