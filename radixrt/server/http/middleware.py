"""ASGI middleware: request ids, counts and the access log (`Observe`), the API key and uncaught exceptions (`Guard`).

The middleware is plain ASGI because every event of a stream passes through it.
"""

from __future__ import annotations

import hmac
import logging
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixrt import logs
from radixrt.errors import RequestError
from radixrt.server.http.errors import as_request_error, error_response
from radixrt.server.http.metrics import Metrics
from radixrt.server.request_context import RequestIds

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/version"})
"""Paths served without the API key, which probes and scrapers do not have."""

MODEL_PATH = "/v1/models/"
CLIENT_CLOSED = 499
"""Status that counts requests whose client left before any answer, as in nginx."""

IGNORED_HEADER = b"x-radixrt-ignored-fields"
MAX_LOGGED_PATH = 200


class Observe:
    """Gives each request its `RequestContext`, adds its id as x-request-id to the response, counts the response by
    route and status, and logs it.

    Args:
        routes: paths that are counted by their own name.
        access_log: write a line for each response.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: frozenset[str], *, access_log: bool = True) -> None:
        self.app = app
        self.metrics = metrics
        self.routes = routes
        self._access_log = access_log
        self._ids = RequestIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        context = self._ids.context(Headers(scope=scope).get("x-request-id", ""))
        scope.setdefault("state", {})["context"] = context
        logs.request_id.set(context.request_id)
        status = CLIENT_CLOSED

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", context.request_id.encode())]
                ignored = scope["state"].get("ignored_fields")
                if ignored:
                    message["headers"].append((IGNORED_HEADER, ", ".join(ignored).encode()))
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            self.metrics.count_http(self._route(scope["path"]), status)
            if self._access_log:
                path = scope["path"][:MAX_LOGGED_PATH].encode("unicode_escape").decode()  # no line breaks
                elapsed_ms = 1000 * (time.perf_counter() - started)
                logger.info("%s %s %d %.0f ms", scope["method"], path, status, elapsed_ms)

    def _route(self, path: str) -> str:
        if path in self.routes:
            return path
        return MODEL_PATH + "{model}" if path.startswith(MODEL_PATH) else "other"


class Guard:
    """Checks the API key, if one is configured, and converts uncaught exceptions to a 500 of the usual form."""

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self.app = app
        self._key = api_key.encode() if api_key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def watch(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            self._check_key(scope)
            await self.app(scope, receive, watch)
        except Exception as error:
            if started:
                raise
            await error_response(as_request_error(error))(scope, receive, send)

    def _check_key(self, scope: Scope) -> None:
        if self._key is None or scope["path"] in OPEN_PATHS:
            return
        scheme, _, token = Headers(scope=scope).get("authorization", "").encode("latin-1").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._key):
            raise RequestError(
                "a valid API key is needed: send it as 'Authorization: Bearer KEY'", code="invalid_api_key", status=401
            )
