"""Calls of the offline API over many prompts that generate nothing: their requests, sent a few at a time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from radixrt.client.answers import raise_for_error
from radixrt.client.engine_client import EngineClient
from radixrt.client.http_client import TokenClient
from radixrt.client.requests import NO_DEADLINE_S, Prompt, new_rid, token_ids
from radixrt.errors import RequestError
from radixrt.messages.client import ClassifyReq, EmbedReq, RequestOutput
from radixrt.messages.wire import Float32Array, pack_i32, unpack_f32

PROMPTS_PER_REQUEST = 64
"""Prompts of one request of a call that has more; while one is computed, the next ones are tokenized."""

WINDOW = 8
"""Requests of one call that are open at once."""

_INDEXED = re.compile(r"(?:prompts|input_ids)\[(\d+)\]")


@dataclass(frozen=True)
class PooledJob:
    """One request of a call, whose prompts are those of the call from index `first` on, `count` of them."""

    request: EmbedReq | ClassifyReq
    first: int
    count: int


Answered = list[tuple[int, RequestOutput]]
"""Number of prompts and output of each request of a call, in order."""


def pooled_jobs(
    kind: type[EmbedReq] | type[ClassifyReq], prompts: Sequence[Prompt], *, priority: int = 0, cache_salt: str = "",
    timeout_s: float = NO_DEADLINE_S, **options: Any,
) -> list[PooledJob]:  # fmt: skip
    """Return the requests of a call, in order; texts and token ids go in separate ones.

    Args:
        options: other fields of the requests.

    Raises:
        RequestError: there is no prompt, or one has a wrong type; names it.
        TypeError: an option is not a field of the requests.
    """
    if not prompts:
        raise RequestError("prompts must hold at least one prompt", param="prompts")
    routing: dict[str, Any] = {"priority": priority, "cache_salt": cache_salt, "timeout_s": timeout_s}
    return [
        PooledJob(kind(new_rid(), prompts=texts, input_ids=ids, **routing, **options), first, count)
        for first, count, texts, ids in _portions(prompts)
    ]


def _portions(prompts: Sequence[Prompt]) -> Iterator[tuple[int, int, list[str] | None, list[bytes] | None]]:
    """Yield (index of the first prompt, number of prompts, texts or None, columns of ids or None)."""
    first = 0
    while first < len(prompts):
        texts: list[str] = []
        ids: list[bytes] = []
        for i, prompt in enumerate(prompts[first : first + PROMPTS_PER_REQUEST]):
            if isinstance(prompt, str) and not ids:
                texts.append(prompt)
            elif not isinstance(prompt, str) and not texts:
                ids.append(pack_i32(token_ids(prompt, f"prompts[{first + i}]")))
            else:
                break
        count = len(texts) or len(ids)
        yield first, count, texts or None, ids or None
        first += count


def ask_all(client: EngineClient, jobs: list[PooledJob]) -> Answered:
    """Send the requests of a call, WINDOW at a time; those without an answer are aborted at an error.

    Raises:
        RequestError: a request was refused or failed; names the prompt of the call.
    """
    answered: Answered = []
    streams: deque[Iterator[RequestOutput]] = deque()
    later = iter(jobs)
    try:
        for job in jobs:
            streams.extend(client.stream(each.request) for each in itertools.islice(later, WINDOW - len(streams)))
            answered.append((job.count, _checked(job, next(streams.popleft()))))
    finally:
        for unanswered in jobs[len(answered) :]:
            client.abort(unanswered.request.rid)
    return answered


async def aask_all(client: TokenClient, jobs: list[PooledJob]) -> Answered:
    """`ask_all` for an event loop; cancelling it aborts the requests."""
    slots = asyncio.Semaphore(WINDOW)

    async def ask(job: PooledJob) -> tuple[int, RequestOutput]:
        async with slots, contextlib.aclosing(client.astream(job.request)) as stream:
            return job.count, _checked(job, await anext(stream))

    tasks = [asyncio.ensure_future(ask(job)) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _checked(job: PooledJob, output: RequestOutput) -> RequestOutput:
    try:
        if output.finish is not None:
            raise_for_error(output.finish)
    except RequestError as error:
        raise with_caller_names(error, "prompts", job.first) from None
    return output


def rows_of(column: bytes | None, count: int) -> Float32Array:
    """Return float32 [count, ...], a read-only view of the column that answers a request of `count` prompts.

    Raises:
        RequestError: there is no answer, because the request was aborted.
    """
    if column is None:
        raise RequestError("the request was aborted", code="aborted", status=499)
    return unpack_f32(column).reshape(count, -1)


def with_caller_names(error: RequestError, name: str, first: int = 0) -> RequestError:
    """Return an engine's error with the caller's name of the list of prompts.

    Args:
        first: index of the request's first prompt in that list.
    """
    param = error.param or ""
    found = _INDEXED.fullmatch(param)
    if found is not None:
        param = f"{name}[{first + int(found[1])}]"
    elif param in ("prompts", "input_ids"):
        param = name
    else:
        return error
    message = error.message.replace(error.param or "", param, 1)
    return RequestError(message, param=param, code=error.code, status=error.status, retry_after_s=error.retry_after_s)
