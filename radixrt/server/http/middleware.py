"""ASGI middleware: request ids, counts and the access log (`Observe`), access and uncaught exceptions (`Guard`).

The middleware is plain ASGI because every event of a stream passes through it.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixrt import logs
from radixrt.server.access.checks import HostCheck, check_access
from radixrt.server.access.keys import KeyRing
from radixrt.server.access.request_context import RequestIds
from radixrt.server.access.tenants import EVERYONE, Accounts, Tenant
from radixrt.server.http.client_address import client_name
from radixrt.server.http.errors import as_request_error, error_response, speaks_anthropic
from radixrt.server.metrics import Metrics

if TYPE_CHECKING:
    from radixrt.server.metrics.spans import Tracing

logger = logging.getLogger(__name__)

CLIENT_CLOSED = 499
"""Status that counts requests whose client left before any answer, as in nginx."""

IGNORED_HEADER = b"x-radixrt-ignored-fields"
MAX_LOGGED_PATH = 200

PROBE_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Paths that are asked every few seconds, which would be most of the traces and most lines of the log."""


class Observe:
    """Gives each request its `RequestContext`, adds its id as x-request-id to the response, counts the response by
    route and status, and logs it.

    Args:
        keys: tells whose key a request carries.
        routes: paths that are counted by their own name.
        access_log: write a line for each response.
        tracing: makes a span of each request; None for no traces.
        accounts: use of the server by each key, which responses to a key with limits tell in headers.
    """

    def __init__(
        self, app: ASGIApp, keys: KeyRing, accounts: Accounts, metrics: Metrics, routes: frozenset[str], *,
        access_log: bool = True, tracing: Tracing | None = None,
    ) -> None:  # fmt: skip
        self.app = app
        self.keys = keys
        self._accounts = accounts
        self.metrics = metrics
        self._routes = frozenset(path for path in routes if "{" not in path)
        self._patterns = [_pattern(path) for path in sorted(routes - self._routes)]
        self._access_log = access_log
        self._tracing = tracing
        self._ids = RequestIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        headers = Headers(scope=scope)
        tenant = self.keys.identify(
            *(headers.get(name, "").encode("latin-1") for name in ("authorization", "x-api-key"))
        )
        peer = scope.get("client")
        address = client_name(peer[0]) if peer and not tenant.name else ""
        context = self._ids.context(headers.get("x-request-id", ""), tenant, address)
        if self._tracing is not None and scope["path"] not in PROBE_PATHS:
            route, path = self._route(scope["path"]), scope["path"][:MAX_LOGGED_PATH]
            span = self._tracing.begin(scope["method"], route, path, headers, context.request_id)
            context = dataclasses.replace(context, span=span)
            logs.trace_id.set(f"{span.get_span_context().trace_id:032x}")
        scope.setdefault("state", {})["context"] = context
        logs.request_id.set(context.request_id)
        status = CLIENT_CLOSED

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                request_id = context.request_id.encode()
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id)]
                if speaks_anthropic(scope["path"]):
                    message["headers"].append((b"request-id", request_id))
                if tenant.is_limited:
                    message["headers"] += self._accounts.of(tenant).headers(tenant)
                ignored = scope["state"].get("ignored_fields")
                if ignored:
                    message["headers"].append((IGNORED_HEADER, ", ".join(ignored).encode()))
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            self.metrics.count_http(self._route(scope["path"]), status)
            if self._tracing is not None and context.span is not None:
                self._tracing.end(context.span, status)
            if self._access_log:
                _log(scope, status, 1000 * (time.perf_counter() - started), tenant)

    def _route(self, path: str) -> str:
        if path in self._routes:
            return path
        return next((name for pattern, name in self._patterns if pattern.fullmatch(path)), "other")


def _log(scope: Scope, status: int, elapsed_ms: float, tenant: Tenant) -> None:
    """Write the line of a response, at level debug if a probe was answered; in JSON its parts are fields too."""
    probe = scope["path"] in PROBE_PATHS and status < 400
    path = scope["path"][:MAX_LOGGED_PATH].encode("unicode_escape").decode()  # no line breaks
    fields = {"method": scope["method"], "path": path, "status": status, "duration_ms": round(elapsed_ms, 1)}
    key = ""
    if tenant != EVERYONE:
        key, fields["key"] = f" key={tenant.name}", tenant.name
    extra = {"fields": fields}
    level = logging.DEBUG if probe else logging.INFO
    logger.log(level, "%s %s %d %.0f ms%s", scope["method"], path, status, elapsed_ms, key, extra=extra)


def _pattern(route: str) -> tuple[re.Pattern[str], str]:
    """Return the pattern of the paths of a route with a parameter, and the name under which they are counted."""
    name = route.replace(":path", "")
    return re.compile(re.sub(r"\{\w+\}", "[^/]+" if name == route else ".*", name), re.DOTALL), name


class Guard:
    """Refuses what the tenant of a request may not use, and converts uncaught exceptions to a 500 of the usual form.

    Args:
        hosts: the names under which the server is reached, and the origins of pages that may use it.
    """

    def __init__(self, app: ASGIApp, hosts: HostCheck) -> None:
        self.app = app
        self.hosts = hosts

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
            tenant = scope["state"]["context"].tenant
            check_access(scope["path"], tenant)
            self.hosts.check(scope["path"], Headers(scope=scope), tenant)
            await self.app(scope, receive, watch)
        except Exception as error:
            if started:
                raise
            await error_response(as_request_error(error), scope)(scope, receive, send)
