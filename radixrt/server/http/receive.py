"""Receiving a request: reading and decoding its body, and admission by the engine's state and the model's name."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

import msgspec
from starlette.requests import Request

from radixrt.chat.decoding import DECODING_ERRORS, decoding_error
from radixrt.chat.json_limits import MAX_DEPTH, check_json_limits
from radixrt.errors import RequestError, shown
from radixrt.messages.client import EngineReady
from radixrt.server.http.body_budget import BodyBudget
from radixrt.server.http.errors import ClientGone, model_not_found
from radixrt.server.request_groups import Service


class HasModel(Protocol):
    """A body that may name the model it is for."""

    model: str | None


T = TypeVar("T")
B = TypeVar("B", bound=HasModel)

JSON_TYPE = "application/json"
SMALL_BODY_BYTES = 64 * 1024
"""A body of this size needs no budget and, if it has few brackets, is within all limits of JSON."""

DISCARD_FACTOR = 4
"""A body over the limit is read and discarded up to this many times the limit, so that the client, which is still
sending, can read the answer instead of failing with a broken pipe."""


def check_content_type(request: Request) -> None:
    """Refuse a POST that a page of another origin could make a browser send without asking this server first.

    A browser asks (by a CORS preflight) before it sends application/json across origins. It does not ask before it
    sends text/plain, forms, or no body at all; but it always names the page's origin, which other clients do not.

    Raises:
        RequestError: 415.
    """
    if request.method != "POST":
        return
    headers = request.headers
    given = headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() == JSON_TYPE:
        return
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if has_body or given or "origin" in headers:
        raise RequestError(
            f"the content type is {shown(given) if given else 'missing'}; send the header 'Content-Type: {JSON_TYPE}'",
            code="unsupported_media_type",
            status=415,
        )


async def receive(service: Service, request: Request, decoder: msgspec.json.Decoder[B]) -> tuple[B, EngineReady]:
    """Read and decode the body of a request to the engine, and admit it; return the body and the engine's properties.

    Raises:
        RequestError: the body is malformed; 503 if the engine cannot serve; 404 if the body names another model.
        ClientGone: the client left while sending.
    """
    body = await receive_json(service, request, decoder)
    return body, admit(service, body.model)


async def receive_json(service: Service, request: Request, decoder: msgspec.json.Decoder[T]) -> T:
    """Read and decode the body of a request.

    Raises:
        RequestError: the body is malformed, too large, late, or beyond the limits of JSON.
        ClientGone: the client left while sending.
    """
    limit = service.config.max_body_bytes
    try:
        async with asyncio.timeout(service.config.body_timeout_s):
            body = await read_body(request, limit, service.body_budget)
    except TimeoutError:
        raise RequestError("the request's body did not arrive in time", code="body_timeout", status=408) from None
    if len(body) > SMALL_BODY_BYTES or body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        check_json_limits(body, limit // 2)
    return decode(body, decoder)


def admit(service: Service, model: str | None = None) -> EngineReady:
    """Return the engine's properties if it can serve requests for a model.

    Raises:
        RequestError: 503 if the engine cannot serve, 404 for another model.
    """
    reason = unavailable_reason(service)
    info = service.client.info
    if reason is not None or info is None:
        raise RequestError(reason or "the engine is starting", code="unavailable", status=503)
    if model is not None and not is_served(service, model):
        raise model_not_found(model, service.model_name)
    return info


def unavailable_reason(service: Service) -> str | None:
    """Return why the engine cannot serve requests at the moment, or None if it can."""
    client = service.client
    if client.failure is not None:
        return client.failure
    if client.draining:
        return "the server is shutting down"
    if not client.ready.is_set():
        return "the engine is starting"
    return None


def is_served(service: Service, model: str) -> bool:
    """Return whether `model` is the served name, or the model's own name or path."""
    info = service.client.info
    return model == service.model_name or (info is not None and model == info.model)


async def read_body(request: Request, limit: int, budget: BodyBudget) -> bytes:
    """Read the whole body.

    Raises:
        RequestError: 413 over `limit` bytes, 503 if the budget is used up.
        ClientGone: the client left while sending.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > DISCARD_FACTOR * limit:
        raise _too_large(limit)
    client = request.client.host if request.client is not None else ""
    body = bytearray()
    size = taken = 0
    try:
        while True:
            message = await request.receive()
            if message["type"] != "http.request":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > DISCARD_FACTOR * limit:
                raise _too_large(limit)
            if size > limit:
                body.clear()
            else:
                if size > SMALL_BODY_BYTES:
                    budget.take(client, size - taken)
                    taken = size
                body += part
            if not message.get("more_body", False):
                break
    finally:
        if taken:
            budget.give_back(client, taken)
    if size > limit:
        raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> RequestError:
    return RequestError(
        f"the request's body is larger than {limit} bytes (max_body_bytes)", code="body_too_large", status=413
    )


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode and type-check a body. Unknown fields are ignored.

    Raises:
        RequestError: 400; `param` is the path of the offending field.
    """
    try:
        return decoder.decode(body)
    except DECODING_ERRORS as error:
        raise decoding_error(body, error) from None
