"""Tasks: a task makes requests from the arguments of a call, and makes the call's answer from the requests' outputs.

`Engine`, programs and the routes of a server run the same tasks. `Engine` and programs use `run` and `arun`; most
routes send the requests themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
import numpy as np

from radixrt.client.answers import engine_errors, raise_for_error
from radixrt.client.engine_client import EngineClient
from radixrt.errors import RequestError, shown
from radixrt.messages.client import ClientRequest, Input, InputRow, RequestOutput, Task, TextInput
from radixrt.messages.parts import Activation, Pooling, Usage
from radixrt.messages.request import Envelope
from radixrt.messages.wire import Float32Array, unpack_f32

if TYPE_CHECKING:
    from radixrt.client.http_client import TokenClient

ROWS_PER_REQUEST = 64
"""Maximum number of rows of a request. A call with more rows sends several requests, so that the rows of a request are
tokenized while the rows of the previous request are computed."""

WINDOW = 8
"""Maximum number of open requests of a call."""

A_co = TypeVar("A_co", covariant=True)


class TaskCall(Protocol[A_co]):
    """A call of a task.

    Attributes:
        requests: requests of the call, in order. Each request is answered with a single output.
    """

    requests: list[ClientRequest]

    def answer(self, outputs: Sequence[RequestOutput]) -> A_co:
        """Return the answer to the call from the outputs of its requests, none of which ended with an error.

        Raises:
            RequestError: a request was aborted, or the model's values are not numbers.
        """


def run(client: EngineClient, call: TaskCall[A_co]) -> A_co:
    """Send the requests of a call, at most WINDOW at a time, and return the answer. An error aborts the open requests.

    Raises:
        RequestError: a request was refused or failed.
        EngineError: the engine failed.
    """
    outputs: list[RequestOutput] = []
    streams: deque[Iterator[RequestOutput]] = deque()
    later = iter(call.requests)
    try:
        with engine_errors():
            for _ in call.requests:
                streams.extend(client.stream(each) for each in itertools.islice(later, WINDOW - len(streams)))
                outputs.append(_checked(next(streams.popleft())))
            return call.answer(outputs)
    finally:
        for unanswered in call.requests[len(outputs) :]:
            client.abort(unanswered.rid)


async def arun(client: TokenClient, call: TaskCall[A_co]) -> A_co:
    """`run` for an event loop. Cancelling the coroutine aborts the requests."""
    slots = asyncio.Semaphore(WINDOW)

    async def ask(request: ClientRequest) -> RequestOutput:
        async with slots, contextlib.aclosing(client.astream(request)) as stream:
            return _checked(await anext(stream))

    tasks = [asyncio.ensure_future(ask(request)) for request in call.requests]
    try:
        with engine_errors():
            return call.answer(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _checked(output: RequestOutput) -> RequestOutput:
    if output.finish is not None:
        raise_for_error(output.finish)
    return output


def pooled_requests(
    envelope: Envelope,
    task: Task,
    inputs: Sequence[Input],
    pooling: Pooling,
    texts: list[TextInput] | None = None,
    at_once: int = ROWS_PER_REQUEST,
) -> list[ClientRequest]:
    """Return requests that pool each of the inputs, in order.

    Args:
        envelope: envelope of the first request; the ids of later requests end with the index of their first input.
        texts: texts that inputs refer to.
        at_once: number of inputs of each request.
    """
    requests: list[ClientRequest] = []
    for start in range(0, len(inputs), at_once):
        rows = [InputRow(each, pooling) for each in inputs[start : start + at_once]]
        own = msgspec.structs.replace(envelope, rid=f"{envelope.rid}-{start}") if start else envelope
        requests.append(ClientRequest(own, rows, texts=texts or [], task=task))
    return requests


def check_types(given: Mapping[str, object], kinds: Mapping[str, type], *, optional: bool = True) -> None:
    """Check the types of a call's arguments by name; raises RequestError naming the argument.

    Args:
        optional: None is allowed too.
    """
    for name, kind in kinds.items():
        value = given[name]
        if not (optional and value is None) and type(value) is not kind:
            raise RequestError(f"{name} must be a {kind.__name__}, not {shown(value)}", param=name)


def values_of(requests: Sequence[ClientRequest], outputs: Sequence[RequestOutput]) -> Float32Array:
    """Return float32 [rows, ...], the values that the rows of all requests read.

    Raises:
        RequestError: a request was aborted; or, with status 500, a value is not a finite number.
    """
    found: list[Float32Array] = []
    for request, output in zip(requests, outputs, strict=True):
        if output.values is None:
            raise RequestError("the request was aborted", code="aborted", status=499)
        found.append(unpack_f32(output.values).reshape(len(request.rows), -1))
    values = np.concatenate(found) if len(found) > 1 else found[0]
    if not np.isfinite(values).all():
        raise RequestError("the model's hidden states hold NaN or infinity", status=500)
    return values


def usage_of(outputs: Sequence[RequestOutput]) -> Usage:
    """Return the token counts of outputs together."""
    return add_usage([output.usage or Usage() for output in outputs])


def add_usage(usages: Sequence[Usage]) -> Usage:
    """Return the token counts of prompts together."""
    fetched: Counter[str] = Counter()
    for usage in usages:
        fetched.update(usage.fetched_tokens)
    return Usage(sum(u.prompt_tokens for u in usages), 0, sum(u.cached_tokens for u in usages), 0, dict(fetched))


def unit_vectors(vectors: Float32Array) -> Float32Array:
    """Return the rows of [n, dimensions] scaled to length 1; zeros stay zeros."""
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    unit: Float32Array = (vectors / np.maximum(norms, 1e-12)).astype(np.float32)
    return unit


def activate(logits: Float32Array, activation: Activation) -> Float32Array:
    """Apply an activation to [n, labels], computed in float64."""
    if activation == "none":
        return logits
    values = logits.astype(np.float64)
    if activation == "sigmoid":
        scores = 0.5 * (1.0 + np.tanh(0.5 * values))  # never overflows
    else:
        exponents = np.exp(values - values.max(axis=1, keepdims=True))
        scores = exponents / exponents.sum(axis=1, keepdims=True)
    return np.asarray(scores, np.float32)
