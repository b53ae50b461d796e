"""`Tracing`: OpenTelemetry spans of HTTP requests, and of what the engine did for them.

    POST /v1/chat/completions               the HTTP request, continued from the client's `traceparent`
      chat smollm2-135m-instruct            one completion, with GenAI attributes, those of vLLM among them
        tokenize, compile, queue, prefill, decode

The spans of a completion are made when it ends, from its record and the scheduler's times, so that nothing happens for
each token. No span holds a text of a prompt or an answer. Only this module imports OpenTelemetry.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers

from radixrt._version import __version__
from radixrt.errors import ConfigError, shown
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import ChatPrompt, Finish
from radixrt.sampling_params import SamplingParams
from radixrt.server.metrics.requests import RequestRecord

Attributes = dict[str, Any]

CLOSE_S = 2.0
"""Time for the last spans to be sent when the server ends; a collector that is gone would hold it up for longer."""


def make_tracing(endpoint: str | None, protocol: str) -> Tracing:
    """Create a `Tracing` that exports by OTLP.

    Args:
        endpoint: None for that of the environment.
        protocol: "http/protobuf" or "grpc".

    Raises:
        ImportError: the exporter's package is missing.
        ConfigError: there is no such protocol.
    """
    exporter: SpanExporter
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        exporter = GrpcExporter(endpoint=endpoint)
    elif protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter(endpoint=endpoint)
    else:
        raise ConfigError(f"OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf or grpc, not {shown(protocol)}")
    return Tracing(exporter)


class Tracing:
    """Makes the spans of one server and exports them from a thread of its own."""

    def __init__(self, exporter: SpanExporter) -> None:
        named = "OTEL_SERVICE_NAME" in os.environ or SERVICE_NAME in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        ours = {SERVICE_VERSION: __version__} if named else {SERVICE_NAME: "radixrt", SERVICE_VERSION: __version__}
        self._provider = TracerProvider(resource=Resource.create(ours), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("radixrt", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, method: str, route: str, path: str, headers: Headers, request_id: str) -> Span:
        """Begin the span of an HTTP request, as part of the trace that its header `traceparent` names, if it does.

        Args:
            route: the route's path, with its parameters in braces.
        """
        parent = self._propagator.extract(headers, getter=_HEADERS)
        attributes = {
            "http.request.method": method, "http.route": route, "url.path": path, "radixrt.request.id": request_id
        }  # fmt: skip
        return self._tracer.start_span(f"{method} {route}", parent, SpanKind.SERVER, attributes)

    def end(self, span: Span, status: int) -> None:
        """End the span of an HTTP request."""
        span.set_attribute("http.response.status_code", status)
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def record(self, http: Span, record: RequestRecord, last: RequestOutput, model: str) -> None:
        """Make the spans of a request of the engine that has just ended.

        Args:
            http: span of its HTTP request, which may have ended.
            last: its last output.
            model: name that clients use.
        """
        if not http.get_span_context().trace_flags.sampled or last.finish is None:
            return
        now, wall_ns = time.monotonic(), time.time_ns()

        def at(seconds: float) -> int:
            return wall_ns - int((now - seconds) * 1e9)

        attributes = request_attributes(record, last, model, now)
        name = f"{attributes['gen_ai.operation.name']} {model}"
        start = at(record.sent_at)
        span = self._tracer.start_span(name, set_span_in_context(http), SpanKind.INTERNAL, attributes, start_time=start)
        _set_status(span, last.finish)
        inside = set_span_in_context(span)
        for part, since, until in phases(record, last):
            self._tracer.start_span(part, inside, start_time=at(since)).end(at(until))
        span.end(wall_ns)

    def close(self) -> None:
        """Send what is left, for `CLOSE_S` at most."""
        sending = threading.Thread(target=self._provider.shutdown, name="radixrt-traces", daemon=True)
        sending.start()
        sending.join(CLOSE_S)


class _Headers(Getter[Headers]):
    """Reads the headers of a request for the propagator."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        return carrier.getlist(key) or None

    def keys(self, carrier: Headers) -> list[str]:
        return carrier.keys()


_HEADERS = _Headers()


def phases(record: RequestRecord, last: RequestOutput) -> list[tuple[str, float, float]]:
    """Return name, begin and end of each phase of a request that it has reached, by the monotonic clock."""
    timings = last.timings
    if timings is None or not timings.arrived_at:
        return []  # it ended before the scheduler had it
    info = last.constraint
    compile_s = 0.0 if info is None or info.cached else info.compile_s
    arrived = timings.arrived_at
    admitted = arrived + timings.queue_s
    first = admitted + timings.prefill_s
    found = [("tokenize", record.sent_at, max(arrived - compile_s, record.sent_at))]
    if compile_s:
        found.append(("compile", arrived - compile_s, arrived))
    found += [("queue", arrived, admitted), ("prefill", admitted, first)]
    if timings.decode_s:
        found.append(("decode", first, first + timings.decode_s))
    return found


def request_attributes(record: RequestRecord, last: RequestOutput, model: str, now: float) -> Attributes:
    """Return the attributes of a request's span: of OpenTelemetry's conventions for GenAI, and vLLM's own."""
    request = record.request
    operation: str = "embeddings" if request.task == "embed" else request.task
    if request.sampling is not None:
        operation = "chat" if isinstance(request.rows[0].input, ChatPrompt) else "text_completion"
    found: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "radixrt",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.request.id": request.rid,
        "gen_ai.latency.e2e": now - record.sent_at,
    }
    if request.sampling is not None:
        found |= _sampling_attributes(request.sampling)
        found |= {"gen_ai.request.stream": request.stream, "gen_ai.request.n": record.group.size}
    if last.finish is not None:
        found["gen_ai.response.finish_reasons"] = [last.finish.reason]
    if last.usage is not None:
        found |= {
            "gen_ai.usage.input_tokens": last.usage.prompt_tokens,
            "gen_ai.usage.output_tokens": last.usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": last.usage.cached_tokens,
            "gen_ai.usage.prompt_tokens": last.usage.prompt_tokens,
            "gen_ai.usage.completion_tokens": last.usage.completion_tokens,
        }
    timings = last.timings
    if timings is not None and timings.arrived_at:
        first = timings.arrived_at + timings.queue_s + timings.prefill_s if record.first_at is None else record.first_at
        found |= {
            "gen_ai.latency.time_in_queue": timings.queue_s,
            "gen_ai.latency.time_in_model_prefill": timings.prefill_s,
            "gen_ai.latency.time_in_model_decode": timings.decode_s,
            "gen_ai.latency.time_in_model_inference": timings.prefill_s + timings.decode_s,
            "gen_ai.latency.time_to_first_token": first - record.sent_at,
            "radixrt.retractions": timings.retractions,
        }
    return found


def _sampling_attributes(sampling: SamplingParams) -> Attributes:
    found: Attributes = {
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
    }
    if sampling.max_tokens is not None:
        found["gen_ai.request.max_tokens"] = sampling.max_tokens
    if sampling.top_k > 0:
        found["gen_ai.request.top_k"] = sampling.top_k
    if sampling.seed is not None:
        found["gen_ai.request.seed"] = sampling.seed
    return found


def _set_status(span: Span, finish: Finish) -> None:
    if finish.error is not None:
        span.set_attribute("error.type", finish.error.code or str(finish.error.status))
        span.set_status(Status(StatusCode.ERROR))  # without the message, which may quote the request
