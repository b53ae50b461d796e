"""A ModelRunner that is killed, and one that a request kills, under a mixed load: that request alone ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.process.chaos.campaign import Result, judge, start_server
from tests.process.chaos.faults import RUNNER, processes
from tests.process.chaos.load import Load, reference
from tests.process.chaos.requests import KINDS
from tests.process.deadly.sitecustomize import DEADLY
from tests.server_process import LIMIT_S, ServerProcess, metrics, wait_for, wait_idle

CLIENTS = 5
KILLER = {"input_ids": [20, 21, 22, DEADLY, DEADLY, DEADLY, 23], "sampling_params": {"max_tokens": 8}}


@pytest.fixture
def server(long_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    """A server whose ModelRunner dies of a certain prompt."""
    folder = str(Path(__file__).parent / "deadly")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")])))
    started = start_server(long_model)
    yield started
    started.process.kill()
    started.process.wait()


def _wait_answers(load: Load, number: int) -> None:
    goal = len(load.records) + number
    assert wait_for(lambda: len(load.records) >= goal)


def test_only_the_request_that_kills_the_runner_notices(server: ServerProcess) -> None:
    expected = reference(server.url)
    with Load(server.url, clients=CLIENTS, seed=3) as load:
        _wait_answers(load, CLIENTS)
        (runner,) = processes(server.process.pid)[RUNNER]
        runner.kill()
        assert load.wait_ended(load.open_requests, LIMIT_S)
        _wait_answers(load, 2 * CLIENTS)
        answer = httpx.post(f"{server.url}/generate", json=KILLER, timeout=LIMIT_S)
        _wait_answers(load, 2 * CLIENTS)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "runner_killed"
    again = httpx.post(f"{server.url}/generate", json=KILLER, timeout=LIMIT_S)
    assert (again.status_code, again.json()["error"]["code"]) == (500, "runner_killed")
    assert "signal 11" in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false", "OpenAI's clients would send it again"
    result = Result()
    judge(result, load.records, expected)
    assert not result.problems
    assert result.answered == len(load.records) >= 6 * CLIENTS
    assert len({record.kind for record in load.records}) > len(KINDS) // 2
    wait_idle(server.url)
    found = metrics(server.url)
    assert "radixrt_runner_restarts_total 3.0" in found
    assert 'radixrt_cache_resets_total{reason="runner_restarted"} 3.0' in found
    assert "radixrt_requests_suspected 0.0" in found
    assert "radixrt_requests_killed_runner_total 1.0" in found
    assert httpx.post(f"{server.url}/generate", json={**KILLER, "input_ids": [20, 21]}, timeout=LIMIT_S).is_success
