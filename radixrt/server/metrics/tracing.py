"""`start_tracing`: OpenTelemetry traces of requests, if an endpoint for them is configured; else nothing is loaded.

The packages are the extra `otel`. Without an endpoint a request costs one comparison.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from radixrt.errors import ConfigError, shown
from radixrt.extras import install_command

if TYPE_CHECKING:
    from radixrt.server.metrics.spans import Tracing

logger = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
TRACES_PATH = "/v1/traces"


def start_tracing(endpoint: str | None, environ: Mapping[str, str] = os.environ) -> Tracing | None:
    """Start exporting traces to an endpoint, or to that of OpenTelemetry's environment variables, which also choose
    protocol, headers, sampler, resource and batches; return None if there is neither, or if they turn traces off.

    Args:
        endpoint: URL of a collector, e.g. http://127.0.0.1:4318; without a path, /v1/traces is meant.

    Raises:
        ConfigError: the endpoint is no URL, the protocol is none, or the packages of an endpoint that was given as an
            option are missing. An endpoint of the environment, which may be meant for other programs, gets a warning.
    """
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    if endpoint is None and not any(environ.get(name) for name in ENDPOINTS):
        return None
    protocol = next((environ[name] for name in PROTOCOLS if environ.get(name)), "http/protobuf")
    if endpoint is not None:
        endpoint, protocol = _checked(endpoint, protocol)
    try:
        from radixrt.server.metrics.spans import make_tracing

        return make_tracing(endpoint, protocol)
    except ImportError as error:
        package = "opentelemetry-exporter-otlp-proto-grpc" if protocol == "grpc" else ""
        fix = f"pip install {package}" if package and "grpc" in str(error) else install_command("otel")
        if endpoint is not None:
            raise ConfigError(f"otlp_endpoint needs packages that are missing ({error}); {fix}") from error
        logger.warning("no traces are sent, because packages are missing (%s); %s", error, fix)
        return None


def _checked(endpoint: str, protocol: str) -> tuple[str, str]:
    """Return the endpoint in full, and the protocol; `grpc://` in the URL, as vLLM's users write, chooses gRPC."""
    try:
        url = urlsplit(endpoint)
        host, _ = url.hostname, url.port
    except ValueError:
        host = None
    if not host or url.scheme not in ("http", "https", "grpc"):
        raise ConfigError(f"otlp_endpoint must be a URL such as http://127.0.0.1:4318, not {shown(endpoint)}")
    if url.scheme == "grpc":
        return url._replace(scheme="http").geturl(), "grpc"
    if protocol != "grpc" and url.path in ("", "/"):
        url = url._replace(path=TRACES_PATH)
    return url.geturl(), protocol
