"""A real server that tells all it can: JSON lines, a throughput line, traces by OTLP, and metrics for a dashboard."""

from __future__ import annotations

import gzip
import itertools
import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.prometheus import DASHBOARD, binary, queries, running
from tests.process.helpers import generate
from tests.server_process import LIMIT_S, ServerProcess, wait_for, wait_idle

pytest.importorskip("opentelemetry.sdk", reason="the traces are an extra: pip install '.[otel]'")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "zebra"


class Collector:
    """An OpenTelemetry collector: takes OTLP over HTTP, and keeps the spans by name."""

    def __init__(self) -> None:
        spans: list[Any] = []
        resources: list[Any] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    resources.append(of_resource.resource)
                    spans.extend(span for scope in of_resource.scope_spans for span in scope.spans)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.spans, self.resources = spans, resources
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def of_trace(self, trace_id: str, root: str) -> dict[str, Any]:
        """The spans of a trace by name, once that of the HTTP request has come."""

        def found() -> dict[str, Any]:
            return {span.name: span for span in list(self.spans) if span.trace_id.hex() == trace_id}

        assert wait_for(lambda: root in found()), [span.name for span in self.spans]
        return found()


def attributes(span: Any) -> dict[str, Any]:
    found = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = [each.string_value for each in value.values] if kind == "array_value" else value
    return found


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()


@pytest.fixture(scope="module")
def server(tiny_model: Callable[[str], Path], collector: Collector) -> Iterator[ServerProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        patch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        server = ServerProcess(
            "--model", str(tiny_model("llama")), "--dtype", "float32", "--kv-cache-tokens", "2048",
            "--served-model-name", "tiny",
            "--log-format", "json", "--log-stats-interval-s", "1", "--otlp-endpoint", collector.url,
        )  # fmt: skip
    yield server.wait_ready()
    server.stop()


def lines(server: ServerProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in list(server.lines)]


def post(server: ServerProcess, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=LIMIT_S)


def test_a_request_continues_the_clients_trace(server: ServerProcess, collector: Collector) -> None:
    body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 6, "temperature": 0.5, "seed": 3}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer", "maximum": 99}}}
    trace = f"00-{TRACE}-{PARENT}-01"
    answer = post(
        server, "/v1/chat/completions", {**body, "response_format": schema}, traceparent=trace, **{"x-request-id": "r7"}
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-request-id"] == "r7"
    found = collector.of_trace(TRACE, "POST /v1/chat/completions")
    root, chat = found["POST /v1/chat/completions"], found["chat tiny"]
    assert root.parent_span_id.hex() == PARENT
    assert chat.parent_span_id == root.span_id
    assert attributes(root)["http.response.status_code"] == 200
    told, usage = attributes(chat), answer.json()["usage"]
    assert told["gen_ai.usage.input_tokens"] == told["gen_ai.usage.prompt_tokens"] == usage["prompt_tokens"]
    assert told["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert (told["gen_ai.request.max_tokens"], told["gen_ai.request.seed"]) == (6, 3)
    assert told["gen_ai.response.finish_reasons"] == [answer.json()["choices"][0]["finish_reason"]]
    assert told["gen_ai.request.id"].startswith("r7.")
    phases = [found[name] for name in ("tokenize", "compile", "queue", "prefill", "decode")]
    assert {phase.parent_span_id for phase in phases} == {chat.span_id}
    times = [root.start_time_unix_nano, chat.start_time_unix_nano]
    for phase in phases:
        times += [phase.start_time_unix_nano, phase.end_time_unix_nano]
    times += [chat.end_time_unix_nano, root.end_time_unix_nano]
    assert all(after > before - 10_000 for before, after in itertools.pairwise(times)), times
    assert told["gen_ai.latency.e2e"] >= told["gen_ai.latency.time_to_first_token"] > 0
    assert SECRET not in str(collector.spans)
    names = {pair.key: pair.value.string_value for pair in collector.resources[0].attributes}
    assert (names["service.name"], names["deployment.environment"]) == ("radixrt", "test")


def test_a_refused_request_has_a_span_with_its_error(server: ServerProcess, collector: Collector) -> None:
    trace = "1" * 32
    body = {"prompt": "x " * 5000, "max_tokens": 1}
    assert post(server, "/v1/completions", body, traceparent=f"00-{trace}-{PARENT}-01").status_code == 400
    found = collector.of_trace(trace, "POST /v1/completions")
    assert attributes(found["text_completion tiny"])["error.type"] == "context_length_exceeded"
    assert set(found) == {"POST /v1/completions", "text_completion tiny"}


@pytest.mark.parametrize("header", [f"00-{'2' * 32}-{PARENT}-00", "nonsense", ""])
def test_what_is_not_sampled_is_not_sent(server: ServerProcess, collector: Collector, header: str) -> None:
    """A trace that its client does not sample is not sent; a header that is none begins another trace."""
    assert post(server, "/v1/completions", {"prompt": "x", "max_tokens": 1}, traceparent=header).status_code == 200
    httpx.get(f"{server.url}/health", timeout=LIMIT_S)
    last = uuid.uuid4().hex
    post(server, "/tokenize", {"prompt": "x"}, traceparent=f"00-{last}-{PARENT}-01")
    collector.of_trace(last, "POST /tokenize")  # the spans before it have come too
    assert not [span for span in collector.spans if span.trace_id.hex() == "2" * 32]
    assert not [span for span in collector.spans if "health" in span.name]


def test_every_line_is_json_and_requests_are_found_in_it(server: ServerProcess) -> None:
    post(server, "/v1/completions", {"prompt": "x", "max_tokens": 2}, **{"x-request-id": "r8"})
    assert wait_for(lambda: any(line.get("request_id") == "r8" for line in lines(server)))
    (access,) = (line for line in lines(server) if line.get("request_id") == "r8")
    assert (access["level"], access["process"], access["method"], access["status"]) == ("info", "main", "POST", 200)
    assert access["path"] == "/v1/completions"
    assert access["duration_ms"] > 0
    assert re.fullmatch("[0-9a-f]{32}", access["trace_id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", access["time"])
    assert {"main", "tokenizer", "scheduler", "ModelRunner"} <= {line["process"] for line in lines(server)}


def test_throughput_is_logged(server: ServerProcess) -> None:
    generate(server, sampling_params={"temperature": 0, "max_tokens": 200, "ignore_eos": True})
    assert wait_for(lambda: any("Avg generation throughput" in line["message"] for line in lines(server)))


def test_every_query_of_the_dashboard_has_a_result(server: ServerProcess) -> None:
    """In a real Prometheus, where there is one; the alerts of deploy/ are evaluated too."""
    program = binary()
    if program is None:
        pytest.skip("there is no prometheus on the PATH, and PROMETHEUS does not name one")
    with running(program, server.url) as prometheus:
        assert wait_for(lambda: prometheus.scrapes() >= 2)
        for i in range(3):
            body = {"prompt": "x y z", "max_tokens": 20, "structured_outputs": {"regex": f"a{{2,9}}{i}"}}
            assert post(server, "/v1/completions", body).status_code == 200
            hint = {"program": {"id": f"p{i}"}}
            assert generate(server, sampling_params={"temperature": 0, "max_tokens": 8}, **hint).status_code == 200
        wait_idle(server.url)
        seen = prometheus.scrapes()
        assert wait_for(lambda: prometheus.scrapes() >= seen + 2)
        found = {query: prometheus.series(query, "60s") for query in queries(json.loads(DASHBOARD.read_text()))}
        empty = [query.expr for query, count in found.items() if not count and not query.optional]
        assert not empty, "\n".join(empty)
        rules = prometheus.get("rules")["groups"][0]["rules"]
        assert {rule["health"] for rule in rules} == {"ok"}, rules
