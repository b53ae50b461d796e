"""`create_app`: the HTTP server as an ASGI application over a ready `EngineClient`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from radixrt.chat.dialect import Dialect
from radixrt.client.engine_client import EngineClient
from radixrt.config import ServerConfig
from radixrt.errors import EngineError, RequestError
from radixrt.server.access.checks import HostCheck, listed
from radixrt.server.access.keys import KeyRing
from radixrt.server.access.tenants import RATE_LIMIT_HEADERS
from radixrt.server.http.client_address import ForwardedClients, TrustedProxies
from radixrt.server.http.errors import (
    ClientGone,
    on_client_gone,
    on_http_exception,
    on_request_error,
)
from radixrt.server.http.middleware import IGNORED_HEADER, Guard, Observe
from radixrt.server.http.receive import check_content_type
from radixrt.server.routes.description import describe
from radixrt.server.routes.table import ROUTES, Route
from radixrt.server.serving.service import Service

if TYPE_CHECKING:
    from radixrt.engine.replica_set import ReplicaSet
    from radixrt.server.metrics.spans import Tracing


def create_app(
    client: EngineClient,
    config: ServerConfig,
    model_name: str,
    dialect: Dialect | None = None,
    keys: KeyRing | None = None,
    tracing: Tracing | None = None,
    replica_set: ReplicaSet | None = None,
    aliases: Sequence[str] = (),
) -> Starlette:
    """Create the ASGI application.

    Args:
        client: sends requests to the engine; may become ready after the application starts (503 until then).
        config: API keys, CORS origins and body size are read from it, the key also from the environment
            (RADIXRT_API_KEY).
        model_name: the name under which clients ask for the model.
        dialect: the model's support for tools and reasoning; neither by default.
        keys: default: those that the config names.
        tracing: sends traces of requests; None for none. The caller closes it.
        replica_set: the engine's replicas, if it has a router.
        aliases: other names under which clients may ask for the model.

    Raises:
        ConfigError: the key file is not valid.
    """
    keys = keys or KeyRing(config)
    service = Service(client, config, model_name, dialect, tracing, replica_set, aliases)
    app = Starlette(
        routes=[
            StarletteRoute(path, _bind(route, service), methods=[route.method])
            for route in ROUTES
            for path in route.paths
        ],
        exception_handlers={
            RequestError: on_request_error,
            EngineError: on_request_error,
            ClientGone: on_client_gone,
            HTTPException: on_http_exception,
        },
    )
    app.router.redirect_slashes = False
    app.state.service = service
    app.state.describe = lambda: describe(ROUTES, needs_key=keys.has_keys)
    _add_middleware(app, config, keys, service, tracing)
    return app


def _add_middleware(
    app: Starlette, config: ServerConfig, keys: KeyRing, service: Service, tracing: Tracing | None
) -> None:
    """Add all middleware; the last one added is the outermost."""
    app.add_middleware(Guard, hosts=HostCheck(config.host, config.allowed_hosts, config.cors_origins))
    origins = listed(config.cors_origins)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", IGNORED_HEADER.decode(), "retry-after", *RATE_LIMIT_HEADERS],
        )
    app.add_middleware(
        ForwardedClients,
        proxies=TrustedProxies(config.trusted_proxies),
        limit=config.max_connections_per_client,
    )
    app.add_middleware(
        Observe,
        keys=keys,
        accounts=service.accounts,
        metrics=service.metrics,
        routes=frozenset(path for route in ROUTES for path in route.paths),
        access_log=config.access_log,
        tracing=tracing,
    )


def _bind(route: Route, service: Service) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        check_content_type(request, takes_forms=route.takes_forms)
        return await route.handler(service, request)

    return endpoint
