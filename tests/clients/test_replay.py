"""Requests of real clients, as `make clients` recorded them, against real servers of tiny models: one of text, and one
of text and vision for the clients that send pictures.

A server has the name of the model with which they were recorded. All requests are sent before the first test, many at a
time; each test checks the answers of one case of one client. docs/clients.md lists the clients.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

from tests.clients import recordings
from tests.clients.__main__ import MODEL
from tests.clients.catalog import CLIENTS
from tests.clients.recorder import recording
from tests.clients.recordings import Recorded
from tests.clients.replay import LIMIT_S, Session, check
from tests.clients.vision_server import start_vision_server
from tests.server_process import ServerProcess
from tests.tiny_models import make_tiny_model

CONTEXT = 8192
CASES = {(file.stem, case): each for file in sorted(recordings.FOLDER.glob("*.json"))
         for case, each in recordings.read(file).items()}  # fmt: skip
SEND_PICTURES = {client.name for client in CLIENTS if client.sends_pictures}
DOCUMENT = Path(__file__).parents[2] / "docs/clients.md"
Answers = dict[tuple[str, str], Future[list[httpx.Response]]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the server."""
    folder = make_tiny_model(
        tmp_path_factory.mktemp("models") / "tiny", "llama", num_hidden_layers=1, max_position_embeddings=CONTEXT
    )
    server = ServerProcess(
        "--model", str(folder), "--served-model-name", MODEL, "--dtype", "float32", "--num-threads", "1",
        "--kv-cache-tokens", str(4 * CONTEXT), "--max-running-requests", "32",
    ).wait_ready()  # fmt: skip
    yield server.url
    assert server.stop() == 0, "".join(server.lines[-50:])


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the server that reads pictures."""
    server = start_vision_server(tmp_path_factory.mktemp("vision")).wait_ready()
    yield server.url
    assert server.stop() == 0, "".join(server.lines[-50:])


@pytest.fixture(scope="module")
def answers(tiny: str, seeing: str) -> Iterator[Answers]:
    """The answers of each case. Requests that several versions of a client send alike are sent once."""
    sent: dict[str, Future[list[httpx.Response]]] = {}

    def send(requests: list[Recorded], to: httpx.Client) -> list[httpx.Response]:
        session = Session(to)
        return [session.send(each) for each in requests]

    def submit(client: str, requests: list[Recorded]) -> Future[list[httpx.Response]]:
        key = json.dumps([asdict(each) for each in requests], sort_keys=True)
        if key not in sent:
            sent[key] = pool.submit(send, requests, sighted if client in SEND_PICTURES else http)
        return sent[key]

    with (
        httpx.Client(base_url=tiny, timeout=LIMIT_S) as http,
        httpx.Client(base_url=seeing, timeout=LIMIT_S) as sighted,
        ThreadPoolExecutor(16) as pool,
    ):
        yield {(client, case): submit(client, requests) for (client, case), requests in CASES.items()}


@pytest.mark.parametrize(("client", "case"), CASES, ids=["-".join(name) for name in CASES])
def test_recorded_requests_are_answered_in_form(answers: Answers, client: str, case: str) -> None:
    for recorded, answer in zip(CASES[client, case], answers[client, case].result(), strict=True):
        check(recorded, answer)


def test_every_client_is_recorded_and_documented() -> None:
    """A row of docs/clients.md has each client's name in `make clients` and the version that was recorded."""
    assert {client for client, _ in CASES} == {client.name for client in CLIENTS}
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("|")]
    for client in CLIENTS:
        content = json.loads((recordings.FOLDER / f"{client.name}.json").read_text())
        assert content["version"] == client.version
        assert any(f"`{client.name}`" in row and client.version in row for row in rows), client


def test_recordings_hold_nothing_of_a_machine() -> None:
    for file in recordings.FOLDER.glob("*.json"):
        text = file.read_text()
        assert not re.search(
            r"/(home|root|tmp|work|usr|opt)/|site-packages|registry\.|pypi|127\.0\.0\.1|localhost", text
        )


def test_what_a_client_sends_is_recorded_and_can_be_sent_again(tiny: str) -> None:
    """Ids of the server are recorded as their places in earlier answers; headers of the client's machine are not."""
    headers = {"authorization": "Bearer none", "user-agent": "of this machine", "x-stainless-os": "of this machine"}
    with recording(tiny) as (recorder, url), httpx.Client(base_url=url, headers=headers, timeout=LIMIT_S) as http:
        http.get("/record/continued")
        body = {"input": "a", "max_output_tokens": 2}
        lines = http.post("/v1/responses", json={**body, "stream": True}).text.splitlines()
        first = json.loads(lines[-2].removeprefix("data: "))["response"]
        item = {"type": "item_reference", "id": first["output"][0]["id"]}
        call = {"type": "function_call", "call_id": "call_0123456789ab", "name": "f", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": "call_0123456789ab", "output": ""}
        again = {**body, "input": [item, call, result]}
        assert http.post("/v1/responses", json=again).status_code == 200
        assert http.get(f"/v1/responses/{first['id']}").json()["id"] == first["id"]
    _, second, third = recorded = recorder.recorded()
    assert {each.case for each in recorded} == {"continued"}
    assert second.body["input"][0]["id"] == "${0:output.0.id}"
    assert [each["call_id"] for each in second.body["input"][1:]] == ["call_1", "call_1"]
    assert (third.path, third.body, third.status) == ("/v1/responses/${0:id}", None, 200)
    assert set(second.headers) == {"accept", "authorization", "content-type"}
    with httpx.Client(base_url=tiny, timeout=LIMIT_S) as http:
        session = Session(http)
        for each in recorded:
            check(each, session.send(each))
