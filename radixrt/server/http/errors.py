"""HTTP errors: a status, and a body in the form of the API to which the path belongs."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from radixrt.errors import EngineError, RequestError
from radixrt.server.answers.base import encode
from radixrt.server.answers.errors import ErrorBody, error_detail, messages_error
from radixrt.server.http import missing_routes

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0
"""Delay that 429 and 503 ask of clients where the error does not know a better one."""

MESSAGES_PATH = "/v1/messages"
"""Path of Anthropic's Messages API, and the beginning of the paths of its other routes."""


class ClientGone(Exception):
    """The client closed its connection, so the request needs no answer."""


def as_request_error(error: Exception) -> RequestError:
    """Convert an exception to the error for the client; an internal exception becomes a 500 without its details."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, EngineError):
        return RequestError(str(error), code="engine_error", status=503)
    logger.error("unexpected error while answering a request", exc_info=error)
    return RequestError("internal error; the server's log has the details", code="internal_error", status=500)


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode(content), status_code=status, headers=headers, media_type="application/json")


def error_headers(error: RequestError) -> dict[str, str]:
    """Headers that tell OpenAI's clients, which retry 408, 409, 429 and 5xx, whether and when to retry."""
    if error.status in (429, 503):
        delay = RETRY_AFTER_S if error.retry_after_s is None else error.retry_after_s
        return {"Retry-After": str(max(1, math.ceil(delay)))}
    if error.status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if error.status in (409, 500, 501):
        return {"x-should-retry": "false"}
    return {}


def error_response(error: RequestError, scope: Scope) -> Response:
    """The response to a request that ends with an error, in the form of the API to which its path belongs."""
    headers = error_headers(error)
    if error.status in (408, 413):
        headers["Connection"] = "close"  # part of the body may be unread
    if speaks_anthropic(scope["path"]):
        body = messages_error(error, scope["state"]["context"].request_id)
        return json_response(body, error.status, headers)
    return json_response(ErrorBody(error_detail(error)), error.status, headers)


def speaks_anthropic(path: str) -> bool:
    """Return whether a path belongs to Anthropic's Messages API."""
    return path == MESSAGES_PATH or path.startswith(MESSAGES_PATH + "/")


async def on_request_error(request: Request, error: Exception) -> Response:
    return error_response(as_request_error(error), request.scope)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer the framework's own errors: no such route, method not allowed. A path that another server has is
    redirected to the route of the same meaning, or the error names that route."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    where = f"{request.method} {path}"
    if error.status_code == 404:
        known = {route.path for route in request.app.routes}
        if (target := missing_routes.redirect(request.method, path, known)) is not None:
            return _redirect(request, target)
        hint = missing_routes.advice(path, known)
        message = f"no route {where}" + (f"; {hint}" if hint else "; GET /docs lists the routes")
    elif error.status_code == 405:
        alike = [each for each in request.app.routes if each.matches(request.scope)[0] is Match.PARTIAL]
        methods = ", ".join(sorted(method for each in alike for method in each.methods))
        message = f"{where}: method not allowed" + (f"; use {methods}" if methods else "")
    else:
        message = str(error.detail)
    response = error_response(RequestError(message, status=error.status_code), request.scope)
    response.headers.update(error.headers or {})
    return response


def _redirect(request: Request, target: str) -> Response:
    """Send a client to another path, with the same method, body and query."""
    if request.url.query:
        target += f"{'&' if '?' in target else '?'}{request.url.query}"
    said = f"{request.url.path} is {target} here; clients that follow redirects go there by themselves"
    response = error_response(RequestError(said, code="moved", status=307), request.scope)
    response.headers["Location"] = target
    return response


async def on_client_gone(request: Request, error: Exception) -> Response:
    """End a request whose client has left; the answer is never read."""
    return error_response(RequestError("the client closed the connection", status=400), request.scope)


def model_not_found(model: str, served: Sequence[str]) -> RequestError:
    return RequestError(
        f"the model {model[:200]!r} does not exist; this server serves {', '.join(map(repr, served))}",
        param="model",
        code="model_not_found",
        status=404,
    )
