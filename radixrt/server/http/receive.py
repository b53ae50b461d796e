"""Receiving a request: reading and decoding its body, and admission by the engine's state and the model's name."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from functools import partial, wraps
from itertools import islice
from typing import Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixrt.chat.decoding import DECODING_ERRORS, decoding_error
from radixrt.chat.json_limits import MAX_DEPTH, check_json_limits
from radixrt.errors import RequestError, shown
from radixrt.messages.client import EngineReady
from radixrt.server.access.request_context import RequestContext
from radixrt.server.http.errors import ClientGone, model_not_found
from radixrt.server.http.forms import Form, is_form
from radixrt.server.protocol.field_mistakes import UnknownField, check_mistake
from radixrt.server.protocol.fields import NativeRequest, NativeSampling
from radixrt.server.serving.large_work import SMALL_BYTES
from radixrt.server.serving.service import BodyBudget, Service


class HasModel(Protocol):
    """A body that may name the model it is for."""

    model: str | None


T = TypeVar("T")
B = TypeVar("B", bound=HasModel)
P = TypeVar("P")

Prepare = Callable[[Service, RequestContext, B, EngineReady], Response]
Handler = Callable[[Service, Request], Awaitable[Response]]

logger = logging.getLogger(__name__)

JSON_TYPE = "application/json"
HARMLESS_FIELDS = frozenset(
    {
        "guided_decoding_backend", "metadata", "prediction", "prompt_cache_key", "prompt_cache_retention",
        "safety_identifier", "service_tier", "store", "user",
    }
)  # fmt: skip
"""Fields of OpenAI's API that concern its service and not the answer, and vLLM's choice among its backends."""

MAX_IGNORED_FIELDS = 20
MAX_FIELD_CHARS = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])

DISCARD_FACTOR = 4
"""A body over the limit is read and discarded up to this many times the limit, so that the client, which is still
sending, can read the answer instead of failing with a broken pipe."""


def check_content_type(request: Request, *, takes_forms: bool = False) -> None:
    """Refuse a POST that a page of another origin could make a browser send without asking this server first.

    A browser asks (by a CORS preflight) before it sends application/json across origins. It does not ask before it
    sends text/plain, forms, or no body at all; but it always names the page's origin, which other clients do not.

    Args:
        takes_forms: the route takes forms beside JSON; `HostCheck` has refused those of pages that may not use it.

    Raises:
        RequestError: 415.
    """
    if request.method != "POST":
        return
    headers = request.headers
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise RequestError(
            f"Content-Encoding {shown(encoding)} is not supported; send the body without compression",
            code="unsupported_media_type",
            status=415,
        )
    given = headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() == JSON_TYPE:
        return
    if takes_forms and is_form(given):
        return
    if has_body(request) or given or "origin" in headers:
        files = ", and files in base64 in the JSON" if is_form(given) else ""
        raise RequestError(
            f"the content type is {shown(given) if given else 'missing'}; send the header 'Content-Type: {JSON_TYPE}'"
            + files,
            code="unsupported_media_type",
            status=415,
        )


def has_body(request: Request) -> bool:
    """Return whether a request announces a body."""
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers


def received(decoder: msgspec.json.Decoder[B]) -> Callable[[Prepare[B]], Handler]:
    """Make the handler of a route of a function that prepares its response, once the body is received.

    The function awaits nothing: for a large body, it runs beside the event loop (`LargeWork`). The handler raises as
    `receive` does.
    """

    def decorate(prepare: Prepare[B]) -> Handler:
        @wraps(prepare)
        async def handler(service: Service, request: Request) -> Response:
            return await receive(service, request, decoder, partial(prepare, service, request.state.context))

        return handler

    return decorate


async def receive(
    service: Service,
    request: Request,
    decoder: msgspec.json.Decoder[B],
    prepare: Callable[[B, EngineReady], P],
    form: Form | None = None,
) -> P:
    """Read and decode the body of a request to the engine, admit it, and return what `prepare` makes of it.

    Args:
        prepare: is given the body and the engine's properties. It awaits nothing: for a large body, all of this is done
            beside the event loop (`LargeWork`).
        form: reads a body that may be a form, before `prepare` is called; None if it must be JSON.

    Raises:
        RequestError: the body is malformed; 503 if the engine cannot serve; 404 if the body names another model; and
            those of `prepare`.
        ClientGone: the client left while sending.
    """

    def admitted(body: B) -> P:
        return prepare(body, admit(service, body.model))

    return await _received(service, request, decoder, admitted, form)


async def receive_json(service: Service, request: Request, decoder: msgspec.json.Decoder[T]) -> T:
    """Read and decode the body of a request.

    Raises:
        RequestError: the body is malformed, too large, late, or beyond the limits of JSON.
        ClientGone: the client left while sending.
    """
    return await _received(service, request, decoder, lambda body: body)


async def _received(
    service: Service,
    request: Request,
    decoder: msgspec.json.Decoder[T],
    then: Callable[[T], P],
    form: Form | None = None,
) -> P:
    limit = service.config.max_body_bytes
    ignored: list[str] = []

    def work() -> P:
        text = body if form is None else form.read(body)
        decoded = _decoded(text, decoder, limit)
        unknown = list(islice(_unknown_fields(text, type(decoded)), MAX_IGNORED_FIELDS))
        if unknown:
            names = [_UNSAFE.sub("?", field.path[:MAX_FIELD_CHARS]) for field in unknown]
            request.state.ignored_fields = names
            for field in unknown:
                check_mistake(field)
            ignored.extend(names)
        return then(decoded)

    client = request.client.host if request.client is not None else ""
    share = BodyShare(service.body_budget, client)
    try:
        try:
            async with asyncio.timeout(service.config.body_timeout_s):
                body = await read_body(request, limit, share)
        except TimeoutError:
            raise RequestError("the request's body did not arrive in time", code="body_timeout", status=408) from None
        request.state.body_bytes = len(body)
        # A small body, which is usual, does not enter another file.
        return work() if len(body) <= SMALL_BYTES else await service.large_work.run(len(body), work)
    finally:
        if share.size:
            share.give_back()
        if ignored and (news := service.metrics.count_ignored(ignored)):
            logger.warning("fields of requests are ignored: %s", ", ".join(news))


def _decoded(body: bytes, decoder: msgspec.json.Decoder[T], limit: int) -> T:
    # A small and flat body, which is usual, does not enter the file of the limits.
    if len(body) > SMALL_BYTES or body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        check_json_limits(body, limit // 2)
    return decode(body, decoder)


def _unknown_fields(body: bytes, kind: type) -> Iterator[UnknownField]:
    """Yield the fields that the route does not know, except those that cannot change an answer."""
    for name, value in decode(body, _fields_decoder).items():
        if name == "sampling_params" and kind is NativeRequest and bytes(value) != b"null":
            for inner, its_value in decode(bytes(value), _fields_decoder).items():
                if inner not in NativeSampling.__struct_fields__:
                    yield UnknownField(f"{name}.{inner}", inner, NativeSampling, bytes(its_value))
        elif name not in HARMLESS_FIELDS and name not in kind.__struct_fields__:  # type: ignore[attr-defined]
            yield UnknownField(name, name, kind, bytes(value))


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
        raise model_not_found(model, service.model_names)
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
    return model in service.model_names or (info is not None and model == info.model)


class BodyShare:
    """Bytes of one large body in the budget."""

    def __init__(self, budget: BodyBudget, client: str) -> None:
        self._budget = budget
        self._client = client
        self.size = 0

    def grow(self, size: int) -> None:
        """Account for a body of `size` bytes so far; raises RequestError (503) if all bodies are too large."""
        self._budget.take(self._client, size - self.size)
        self.size = size

    def give_back(self) -> None:
        self._budget.give_back(self._client, self.size)


async def read_body(request: Request, limit: int, share: BodyShare) -> bytes:
    """Read the whole body.

    Args:
        share: takes the size of a large body.

    Raises:
        RequestError: 413 over `limit` bytes, 503 if the budget is used up.
        ClientGone: the client left while sending.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > DISCARD_FACTOR * limit:
        raise _too_large(limit)
    body = bytearray()
    size = 0
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
            if size > SMALL_BYTES:
                share.grow(size)
            body += part
        if not message.get("more_body", False):
            break
    if size > limit:
        raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> RequestError:
    return RequestError(
        f"the request's body is larger than {limit} bytes (max_body_bytes)", code="body_too_large", status=413
    )


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode and type-check a body.

    Raises:
        RequestError: 400; `param` is the path of the offending field.
    """
    try:
        return decoder.decode(body)
    except DECODING_ERRORS as error:
        raise decoding_error(body, error, decoder.type) from None
