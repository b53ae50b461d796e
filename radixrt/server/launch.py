"""`radixrt launch`: the engine's processes and the HTTP server in front of them."""

from __future__ import annotations

import dataclasses
import gc
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from radixrt.config import Config, ServerConfig, parse_names
from radixrt.engine.head_start import head_start
from radixrt.engine.restarts import ExitCode
from radixrt.engine.settings import EngineSettings, resolve_settings
from radixrt.engine.worker_process import WorkerProcess
from radixrt.errors import ConfigError

logger = logging.getLogger(__name__)

IMAGE_BODY_BYTES = 48 * 1024 * 1024
"""Largest body of a server whose model reads images: 32 MiB of pictures, in base64."""


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Collect no garbage until `serve` begins: objects made while loading live as long as the server. The caller's
    setting comes back at the end, however the launch ends."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
        else:
            gc.disable()


@_collection_paused()
def launch(config: Config, on_ready: Callable[[str, str], None] | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C, or until the engine fails; return the exit code: 0 after a drain, else an
    `ExitCode`.

    Args:
        on_ready: called with the server's URL and the model's name once requests can be answered.

    Raises:
        RadixRTError: the engine or the server cannot start; says why.
    """
    started = time.monotonic()
    if config.executor.executor == "uni":
        raise ConfigError("the server runs its parts as processes; executor=uni is for radixrt.Engine")
    if config.executor.executor == "external":
        from radixrt.engine.external import is_other_rank, serve_rank

        if is_other_rank(config):
            serve_rank(config)
    signal.signal(signal.SIGTERM, _stop_while_starting)
    with head_start(config.executor) as early:
        return _serve(config, early, started, on_ready)


def _serve(
    config: Config, early: dict[str, WorkerProcess], started: float, on_ready: Callable[[str, str], None] | None
) -> int:
    try:
        from radixrt.chat.dialect import read_dialect
        from radixrt.engine.launcher import Launcher
        from radixrt.server.access.keys import KeyRing
        from radixrt.server.http.listener import bind
        from radixrt.server.http.tls import make_certificate
        from radixrt.server.metrics.tracing import start_tracing
        from radixrt.server.uvicorn_server import serve
    except ImportError as error:
        from radixrt.extras import install_command

        raise ConfigError(f"the server's packages are missing ({error}); {install_command('server')}") from error
    # Mistakes in files, and a port in use, are found before minutes of loading.
    keys, certificate = KeyRing(config.server), make_certificate(config.server)
    tracing = start_tracing(config.server.otlp_endpoint)
    listener = bind(config.server.host, config.server.port)
    config, settings = resolve_settings(config, show_progress=sys.stderr.isatty())
    config = with_image_bodies(config, settings)
    launcher, saves = Launcher(config, settings, early), True

    def ready(url: str) -> None:
        logger.info("%s is ready on %s after %.1f s", settings.model_name, url, time.monotonic() - started)
        if on_ready is not None:
            on_ready(url, settings.model_name)

    try:
        with ThreadPoolExecutor(1) as pool:  # read while the engine loads
            reading = pool.submit(read_dialect, config, settings.folder)
            client = launcher.start()
            dialect = reading.result()
        saves = serve(
            client, config.server, settings.model_name, ready, dialect, listener, keys, certificate, tracing,
            launcher.replicas, parse_names(config.model.served_model_name),
        )  # fmt: skip
        if client.failure is None:
            return 0
        code = launcher.exit_code or ExitCode.FAILED
        logger.error("exiting with code %d: %s", code, client.failure)
        return code
    except KeyboardInterrupt:  # a signal while the engine starts, or a second one while the server ends
        saves = False
        raise
    finally:
        launcher.close(saves=saves)


def with_image_bodies(config: Config, settings: EngineSettings) -> Config:
    """Return the config with bodies large enough for images, if the model reads them and the option has its default."""
    if settings.vision is None or config.server.max_body_bytes != ServerConfig().max_body_bytes:
        return config
    server = dataclasses.replace(config.server, max_body_bytes=IMAGE_BODY_BYTES)
    return dataclasses.replace(config, server=server)


def _stop_while_starting(signum: int, frame: object) -> None:
    """Before the server has its own handler, SIGTERM unwinds like Ctrl-C, so that nothing stays behind."""
    raise KeyboardInterrupt
