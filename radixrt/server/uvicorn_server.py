"""`serve`: uvicorn around the application, with a shutdown that lets running requests end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import math
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, cast

import uvicorn
from starlette.applications import Starlette

from radixrt.chat.dialect import Dialect
from radixrt.client.engine_client import EngineClient
from radixrt.config import ServerConfig
from radixrt.errors import ConfigError
from radixrt.server.access.keys import KeyRing
from radixrt.server.app import create_app
from radixrt.server.http.client_address import ClientCounts, TrustedProxies
from radixrt.server.http.http_protocol import ConnectionLimits, LimitedHttpProtocol
from radixrt.server.http.listener import BACKLOG, bind, listen, url_of
from radixrt.server.http.receive import DISCARD_FACTOR
from radixrt.server.http.tls import Certificate, make_certificate
from radixrt.server.metrics.tracing import start_tracing
from radixrt.server.serving.service import Service

if TYPE_CHECKING:
    from radixrt.engine.replica_set import ReplicaSet
    from radixrt.server.metrics.spans import Tracing

logger = logging.getLogger(__name__)

OTHER_FILES = 256
"""Open files that are left for everything but connections."""

SENT_MARGIN_BYTES = 1024 * 1024
"""Bytes after which a connection is closed beyond those at which a route refuses a body: more than a read takes."""

ABORT_S = 2.0
"""Time for aborted requests to send their error to the client."""


def serve(
    client: EngineClient,
    config: ServerConfig,
    model_name: str,
    on_ready: Callable[[str], None] | None = None,
    dialect: Dialect | None = None,
    listener: socket.socket | None = None,
    keys: KeyRing | None = None,
    certificate: Certificate | None = None,
    tracing: Tracing | None = None,
    replica_set: ReplicaSet | None = None,
    aliases: Sequence[str] = (),
) -> bool:
    """Serve until SIGTERM or Ctrl-C, or until the engine has failed, then return. Runs its own event loop; call it in
    the main thread.

    On the first signal `/ready` and new requests answer 503, running ones have `config.grace_s` to end and are aborted
    after it. A Ctrl-C after the first signal ends everything at once. When the engine fails, open requests get their
    errors before the server ends.

    Args:
        on_ready: called with the server's URL once it accepts connections (the port is the real one, if it was 0).
        dialect: the model's support for tools and reasoning.
        listener: a socket from `bind`, which is closed at the end; default: one for the config's address.
        keys, certificate: default: those that the config names.
        tracing: sends traces, and is closed at the end; default: by the config.
        replica_set: the engine's replicas, if it has a router.
        aliases: see `create_app`.

    Returns:
        False if a Ctrl-C ended everything at once.

    Raises:
        ConfigError: the address cannot be listened on, or the certificate or the key file is not valid.
    """
    bound = listener or bind(config.host, config.port)
    keys, certificate = keys or KeyRing(config), certificate or make_certificate(config)
    tracing = tracing or start_tracing(config.otlp_endpoint)
    app = create_app(client, config, model_name, dialect, keys, tracing, replica_set, aliases)
    reloads = [] if config.api_key_file is None else [keys.reload]
    if certificate is not None:
        reloads.append(certificate.reload)
    uvicorn_config = _uvicorn_config(app, config, certificate)
    url = url_of(bound, "http" if certificate is None else "https")
    ready = None if on_ready is None else functools.partial(on_ready, url)
    try:
        listen(bound)
        server = DrainingServer(uvicorn_config, app.state.service, ready, reloads)
        server.run([bound])
        return not server.was_interrupted
    finally:
        bound.close()
        app.state.service.large_work.close()
        if tracing is not None:
            tracing.close()


def _uvicorn_config(app: Starlette, config: ServerConfig, certificate: Certificate | None) -> uvicorn.Config:
    made = uvicorn.Config(
        app,
        http=http_protocol(config),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=config.log_level,
        proxy_headers=False,
        access_log=False,  # the middleware's line has the request's id
        timeout_keep_alive=math.ceil(config.idle_timeout_s),
        timeout_graceful_shutdown=3,
        backlog=BACKLOG,
        server_header=False,
    )
    made.load()
    made.ssl = None if certificate is None else certificate.context
    return made


def http_protocol(config: ServerConfig) -> type[asyncio.Protocol]:
    """Return uvicorn's `http` option: the protocol of a server's connections, with their limits."""
    return cast("type[asyncio.Protocol]", functools.partial(LimitedHttpProtocol, connection_limits(config)))


def connection_limits(config: ServerConfig) -> ConnectionLimits:
    """The limits of a server's connections, after raising the limit of open files as far as the system allows."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS takes fewer than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    max_connections = sys.maxsize if most_files == resource.RLIM_INFINITY else max(1, most_files - OTHER_FILES)
    return ConnectionLimits(
        header_timeout_s=config.header_timeout_s,
        body_timeout_s=config.body_timeout_s,
        idle_timeout_s=config.idle_timeout_s,
        max_sent_bytes=DISCARD_FACTOR * config.max_body_bytes + SENT_MARGIN_BYTES,
        max_unread_bytes=config.max_body_bytes,
        max_connections=max_connections,
        clients=ClientCounts(config.max_connections_per_client),
        proxies=TrustedProxies(config.trusted_proxies),
    )


class DrainingServer(uvicorn.Server):
    """uvicorn's server, except that the first signal starts a drain and the listener stays open during it.

    The signals are not raised again afterwards: the caller has more processes to end.

    Args:
        reloads: called on SIGHUP, which otherwise ends the process. A `ConfigError` of one is logged.

    Attributes:
        was_interrupted: a Ctrl-C after the first signal has ended everything at once.
    """

    def __init__(
        self, config: uvicorn.Config, service: Service, on_ready: Callable[[], None] | None,
        reloads: Sequence[Callable[[], None]] = (),
    ) -> None:  # fmt: skip
        super().__init__(config)
        self._service = service
        self._on_ready = on_ready
        self._reloads = reloads
        self._grace_ends: float | None = None
        self._aborted = False
        self._cut_off = False
        self.was_interrupted = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._reloads:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        # As in the worker processes: what start-up has made is never garbage, and to visit it would stop all answers
        # for a tenth of a second now and then, and at the end.
        gc.freeze()
        gc.enable()
        if self._on_ready is not None:
            self._on_ready()

    def _reload(self) -> None:
        for reload in self._reloads:
            try:
                reload()
            except ConfigError as error:
                logger.error("not reloaded, what was read before stays in use: %s", error)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        client = self._service.client
        if self._grace_ends is None:
            client.draining = True
            self._grace_ends = time.monotonic() + self._service.config.grace_s
        elif sig == signal.SIGINT:
            self.was_interrupted = self._cut_off = self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._cut_off:
            # Every request that is still open sees its client leave, which ends it in the usual way.
            for connection in list(self.server_state.connections):
                connection.transport.abort()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Called every 0.1 s by uvicorn's main loop, which ends when this returns True."""
        now = time.monotonic()
        self._service.throughput.tick()
        self._service.ui.samples.tick()
        if self._grace_ends is None and self._service.client.failure is not None:
            self._grace_ends = now  # all that is left to send are the errors of open requests
        if self._grace_ends is not None and not self.should_exit:
            if not self.server_state.tasks:
                self.should_exit = True
            elif now > self._grace_ends + ABORT_S:
                self._cut_off = self.should_exit = True
            elif now > self._grace_ends and not self._aborted:
                self._aborted = True
                logger.warning("aborting %d requests that did not end in time", self._service.groups.abort_all())
        return await super().on_tick(counter)
