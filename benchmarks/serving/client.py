"""Light streaming client for any OpenAI-compatible server, and the runner of one workload.

The client shares the machine with the server that it measures, so while a stream is open it only splits lines and
records when each arrived; JSON is decoded when the request has ended.
"""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import httpx

from benchmarks.serving.workloads import Conversation, Json, Messages, Workload

Event = tuple[float, bytes]
"""When a server-sent event's `data:` line arrived (time.perf_counter seconds), and the line."""


@dataclass(frozen=True)
class Outcome:
    """One request. Times are in seconds; token counts are the server's `usage`, None where it did not say.

    `ttft` runs from sending the request to the first event with text in it. `tpot` is the time from that event to the
    last one with text, by the number of output tokens after the first; None when there are none.
    """

    seconds: float
    text: str = ""
    finish_reason: str | None = None
    ttft: float | None = None
    tpot: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    output_tokens: int = 0
    error: str | None = None


def read_events(start: float, end: float, events: Sequence[Event]) -> Outcome:
    """The outcome of a stream that ended at `end`, from its events."""
    texts: list[str] = []
    times: list[float] = []
    finish_reason, usage, error = None, None, None
    for at, line in events:
        data = line[len(b"data:") :].strip()
        if data == b"[DONE]":
            continue
        message = json.loads(data)
        if "error" in message:
            error = str(message["error"])
        usage = message.get("usage") or usage
        for choice in message.get("choices") or ():
            finish_reason = choice.get("finish_reason") or finish_reason
            if content := (choice.get("delta") or {}).get("content"):
                texts.append(content)
                times.append(at)
    if usage is None:
        return Outcome(end - start, "".join(texts), finish_reason, error=error or "the stream carried no usage")
    output_tokens = usage["completion_tokens"]
    details = usage.get("prompt_tokens_details") or {}
    return Outcome(
        seconds=end - start,
        text="".join(texts),
        finish_reason=finish_reason,
        ttft=times[0] - start if times else None,
        tpot=(times[-1] - times[0]) / (output_tokens - 1) if times and output_tokens > 1 else None,
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=details.get("cached_tokens"),
        output_tokens=output_tokens,
        error=error,
    )


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


class ChatClient:
    """Chat completions of one server over kept connections. Errors, late answers included, become outcomes."""

    def __init__(self, url: str, model: str, connections: int) -> None:
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        self._model = model
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/").removesuffix("/v1"),
            limits=limits,
            timeout=httpx.Timeout(None, connect=10.0),
            headers={"accept-encoding": "identity", "content-type": "application/json"},
            trust_env=False,
            verify=False,
        )

    async def __aenter__(self) -> "ChatClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.aclose()

    async def ask(self, messages: Messages, max_tokens: int, schema: Json | None, deadline: float) -> Outcome:
        """One request, given up at `deadline` (time of the running event loop)."""
        body = json.dumps(chat_body(self._model, messages, max_tokens, schema))
        start = time.perf_counter()
        try:
            async with asyncio.timeout_at(deadline):
                return await self._stream(body, start)
        except TimeoutError:
            error = "no answer before the workload's time limit"
        except (httpx.HTTPError, OSError, ValueError, KeyError) as exc:
            error = f"{type(exc).__name__}: {exc}"
        return Outcome(time.perf_counter() - start, error=error)

    async def _stream(self, body: str, start: float) -> Outcome:
        events: list[Event] = []
        rest = b""
        async with self._http.stream("POST", "/v1/chat/completions", content=body) as response:
            if response.status_code != 200:
                answer = (await response.aread()).decode(errors="replace")
                return Outcome(time.perf_counter() - start, error=f"HTTP {response.status_code}: {answer[:300]}")
            async for chunk in response.aiter_raw():
                now = time.perf_counter()
                *lines, rest = (rest + chunk).split(b"\n")
                events += [(now, line) for line in lines if line.startswith(b"data:")]
        end = time.perf_counter()
        if rest.startswith(b"data:"):
            events.append((end, rest))
        return read_events(start, end, events)


async def _converse(client: ChatClient, workload: Workload, talk: Conversation, deadline: float) -> list[Outcome]:
    messages = talk.opening()
    outcomes: list[Outcome] = []
    for user in talk.users:
        messages.append({"role": "user", "content": user})
        outcome = await client.ask(messages, workload.max_tokens, workload.schema, deadline)
        outcomes.append(outcome)
        if outcome.error is not None:
            left = len(talk.users) - len(outcomes)
            return outcomes + [Outcome(0.0, error="not sent: an earlier turn failed")] * left
        messages.append({"role": "assistant", "content": outcome.text})
    return outcomes


async def run_workload(url: str, model: str, workload: Workload, limit_s: float) -> tuple[float, list[Outcome]]:
    """Wall seconds and the outcome of each request, `workload.requests` of them, whatever happens to the server.

    What has not been answered after `limit_s` seconds is an error.
    """
    outcomes: list[Outcome] = []
    deadline = asyncio.get_running_loop().time() + limit_s

    async def worker(client: ChatClient, talks: Iterator[Conversation]) -> None:
        for talk in talks:
            outcomes.extend(await _converse(client, workload, talk, deadline))

    async with ChatClient(url, model, workload.concurrency) as client:
        talks = iter(workload.conversations)
        start = time.perf_counter()
        await asyncio.gather(*(worker(client, talks) for _ in range(workload.concurrency)))
        return time.perf_counter() - start, outcomes
