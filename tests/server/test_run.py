"""`serve` in a process of its own: drain on SIGTERM and Ctrl-C, and what is not HTTP."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable

import httpx
import pytest

from radixrt.config import ServerConfig
from radixrt.errors import ConfigError
from radixrt.server import serve
from tests.server.fake_engine import MODEL, FakeEngine
from tests.server.helpers import check_error, events
from tests.server.served import Served


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_running_requests_end_and_new_ones_are_refused(start: Callable[[float], Served], sig: int) -> None:
    served = start(600)
    stream = served.start_stream(40)
    served.process.send_signal(sig)
    served.wait_for_drain()
    check_error(httpx.get(f"{served.url}/ready", timeout=60), 503)
    assert httpx.get(f"{served.url}/health", timeout=60).json() == {"status": "ok", "state": "draining"}
    check_error(httpx.post(f"{served.url}/v1/completions", json={"prompt": "x"}, timeout=60), 503)
    served.release()
    stream.join(60)
    (answer,) = served.answers
    assert len(events(answer)) == 40
    assert served.end() == "ended, 0 aborted, 0 open\n"


def test_idle_server_ends_at_once(start: Callable[[float], Served]) -> None:
    served = start(600)
    assert int(served.frozen) > 10_000, "the garbage collector visits what start-up has made, here and at the end"
    with httpx.Client(timeout=60) as client:  # a connection that is kept alive (for 75 s) is no reason to wait
        client.get(f"{served.url}/health")
        served.process.send_signal(signal.SIGTERM)
        served.end()  # within its timeout, far below the grace period


def test_what_does_not_end_in_time_is_aborted_with_an_error(start: Callable[[float], Served]) -> None:
    served = start(0.5)
    stream = served.start_stream(10_000)
    began = time.monotonic()
    served.process.send_signal(signal.SIGTERM)
    stream.join(60)
    assert served.end() == "ended, 1 aborted, 0 open\n"
    assert time.monotonic() - began > 0.4
    (answer,) = served.answers
    assert events(answer)[-1]["error"]["code"] == "shutting_down"


def test_second_ctrl_c_ends_at_once(start: Callable[[float], Served]) -> None:
    served = start(600)
    stream = served.start_stream(100_000)
    served.process.send_signal(signal.SIGINT)
    served.wait_for_drain()
    served.process.send_signal(signal.SIGTERM)  # a second SIGTERM changes nothing
    served.wait_for_lines(60)  # two for each word, so several ticks of the server's loop
    assert served.process.poll() is None
    served.process.send_signal(signal.SIGINT)
    assert "ended" in served.end()  # within its timeout, far below the grace period
    stream.join(60)
    assert not served.answers


def test_port_in_use_is_a_config_error(engine: FakeEngine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}"):
            serve(engine.client, ServerConfig(port=port), MODEL)
    with pytest.raises(ConfigError, match=r"no\.such\.host"):
        serve(engine.client, ServerConfig(host="no.such.host.invalid", port=0), MODEL)


def test_head_that_is_too_large_is_refused_even_if_it_comes_at_once(start: Callable[[float], Served]) -> None:
    served = start(1)
    answer = httpx.get(f"{served.url}/health", headers={"x": "y" * 66_000}, timeout=60)
    assert answer.status_code == 400
    assert "headers are too large" in answer.json()["error"]["message"]
    assert httpx.get(f"{served.url}/health", headers={"x": "y" * 64_000}, timeout=60).status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 1_000_000,
        b"GET /" + b"y" * 1_000_000,
        b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 100_000,
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    ],
    ids=["header", "path", "headers", "words", "tls"],
)
def test_heads_that_are_too_large_or_not_http_are_refused(start: Callable[[float], Served], head: bytes) -> None:
    served = start(1)
    host, port = served.url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)))
    client.settimeout(120)
    answer = b""
    try:
        client.sendall(head)
        while piece := client.recv(65536):
            answer += piece
    except ConnectionError:
        pass  # it closed while we were still sending
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert httpx.get(f"{served.url}/health", timeout=60).status_code == 200
