"""Choice of the endpoint of traces, and refusals. `tests/process/test_observability.py` has the traces themselves."""

from __future__ import annotations

import logging
import sys
import threading

import pytest

from radixrt.errors import ConfigError
from radixrt.server.metrics.tracing import start_tracing

OTLP = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    "environ", [{}, {**OTLP, "OTEL_SDK_DISABLED": "True"}, {**OTLP, "OTEL_TRACES_EXPORTER": "none"}]
)
def test_without_an_endpoint_nothing_is_started(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "radixrt.server.metrics.spans", None)  # so that importing it would fail
    assert start_tracing(None, environ) is None


@pytest.mark.parametrize("endpoint", ["localhost:4318", "", "ftp://x", "http://", "http://[::1", "http://x:y"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"otlp_endpoint must be a URL such as http://127\.0\.0\.1:4318"):
        start_tracing(endpoint, {})


def test_missing_packages_are_an_error_or_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "radixrt.server.metrics.spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install 'opentelemetry-exporter-otlp-proto-http\S+' "):
        start_tracing("http://127.0.0.1:9", {})
    with caplog.at_level(logging.WARNING):
        assert start_tracing(None, OTLP) is None
    assert "no traces are sent" in caplog.text


def test_unknown_protocol_is_refused() -> None:
    pytest.importorskip("opentelemetry.sdk")
    with pytest.raises(ConfigError, match="must be http/protobuf or grpc, not 'json'"):
        start_tracing("http://127.0.0.1:9", {"OTEL_EXPORTER_OTLP_PROTOCOL": "json"})


def test_grpc_without_its_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.sdk")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(ConfigError, match="pip install opentelemetry-exporter-otlp-proto-grpc"):
        start_tracing("grpc://127.0.0.1:4317", {})


def test_a_collector_that_hangs_does_not_hold_up_the_end_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from radixrt.server.metrics import spans

    answered = threading.Event()

    class Hanging(InMemorySpanExporter):
        def shutdown(self) -> None:
            answered.wait()

    monkeypatch.setattr(spans, "CLOSE_S", 0.01)
    spans.Tracing(Hanging()).close()
    assert not answered.is_set()
    answered.set()
