"""`radixrt replicas`: what it sends, what it prints, and what it refuses."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from radixrt.cli import main
from radixrt.cli.replicas import change_replicas, table
from radixrt.errors import ConfigError

REPLICA: dict[str, Any] = {
    "replica": 1, "state": "serving", "reason": "", "pids": {}, "role": "both", "open": 3, "queued": 2,
    "predicted_wait_s": 0.25, "fences": 0, "running": 3, "waiting": 0, "slots_total": 1000, "slots_free": 500,
    "slots_evictable": 250, "prompt_tokens": 200, "cached_tokens": 150, "generated_tokens": 10,
}  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    asked: list[tuple[str, str | None, Any]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self._answer(200, {"replicas": [REPLICA]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append((self.path, self.headers["authorization"], body))
        if body.get("replica") == 9:
            self._answer(404, {"error": {"message": "there is no replica 9"}})
        else:
            self._answer(200, {"status": "ok", "replica": 1})

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Handler.asked.clear()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_each_action_asks_its_route(url: str) -> None:
    out = io.StringIO()
    for action, body in (
        ("add", {}), ("drain", {"replica": 1}), ("resume", {"replica": 1, "on": False}),
        ("remove", {"replica": 1, "timeout_s": 5.0}),
    ):  # fmt: skip
        number = None if action == "add" else 1
        assert change_replicas(url, action, number, api_key="k", timeout_s=5.0, out=out) == 0  # type: ignore[arg-type]
        path = "drain" if action == "resume" else action
        assert Handler.asked[-1] == (f"/replicas/{path}", "Bearer k", body)
    lines = out.getvalue().splitlines()
    assert lines[0] == "replica 1 is starting; requests go there once its state is serving"
    said = [line for line in lines if line.startswith("replica 1 ")]
    assert len(set(said)) == 4, "drain and remove are told apart"
    assert lines[2].split() == ["1", "both", "serving", "3", "2", "3", "0.25", "75%", "25%"]


def test_errors_are_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="refuses: there is no replica 9"):
        change_replicas(url, "drain", 9)
    assert main(["replicas", "drain"]) == 2
    assert main(["replicas", "add", "1"]) == 2
    assert main(["replicas", "list", "--url", "http://127.0.0.1:9"]) == 2
    assert main(["replicas", "drain", "1", "--timeout-s", "5"]) == 2
    for value in ("-1", "nan", "inf", "soon"):
        with pytest.raises(SystemExit):
            main(["replicas", "remove", "1", "--timeout-s", value])
    lines = capsys.readouterr().err.splitlines()
    assert "needs the number of a replica" in lines[0]
    assert "takes no number" in lines[1]
    assert "does not answer" in lines[2]
    assert "--timeout-s is of no use with radixrt replicas drain" in lines[3]
    assert len(lines) == 4 + 4
    assert all("--timeout-s" in line for line in lines[4:])


def test_a_server_without_a_router_says_so() -> None:
    assert "start it with --replicas 1 or more" in table([])


def test_what_is_no_url_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replicas", "list", "--url", "foo"]) == 2
    assert "--url must be like http://127.0.0.1:30000, not 'foo'" in capsys.readouterr().err
