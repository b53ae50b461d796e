"""/health, /ready and /health?deep=1 in every state of the engine."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from radixrt.messages.client import RequestOutput
from radixrt.server.serving import deep_check
from tests.server.fake_engine import FakeEngine, Sent, info
from tests.server.helpers import Caller, check_error

NAMES = ["ModelRunner"]


def test_a_serving_engine_is_healthy_and_ready(caller: Caller) -> None:
    assert caller.get("/health").json() == caller.get("/ready").json() == {"status": "ok", "state": "serving"}


def test_while_a_runner_restarts_requests_are_taken_and_the_server_is_not_ready(
    caller: Caller, engine: FakeEngine
) -> None:
    engine.client.runners_restart("the ModelRunner process (pid 7) was killed by signal 9", NAMES, epoch=1)
    assert caller.get("/health").json() == {"status": "ok", "state": "restarting"}
    answer = caller.get("/ready")
    check_error(answer, 503, None, "unavailable")
    assert answer.json()["state"] == "restarting"
    assert "signal 9" in answer.json()["error"]["message"]
    assert int(answer.headers["retry-after"]) >= 1
    assert caller.chat().status_code == 200
    metrics = caller.metrics()
    assert 'radixrt_restarts_total{process="ModelRunner"} 1.0' in metrics
    assert 'radixrt_engine_state{state="restarting"} 1.0' in metrics
    engine.deliver(info())  # of the epoch before: late, and no news
    assert caller.get("/ready").status_code == 503


def test_a_failed_engine_is_neither_healthy_nor_ready(caller: Caller, engine: FakeEngine) -> None:
    engine.client.fail("too many restarts")
    for path in ("/health", "/ready", "/health?deep=1"):
        answer = caller.get(path)
        check_error(answer, 503, None, "unavailable")
        assert answer.json()["state"] == "failed"
    assert "radixrt_up 0.0" in caller.metrics()


def test_a_deep_check_takes_one_token(caller: Caller, engine: FakeEngine) -> None:
    answer = caller.get("/health?deep=1").json()
    assert answer["status"] == "ok"
    assert answer["seconds"] >= 0
    (request,) = engine.requests
    assert request.sampling.max_tokens == 1


def test_a_deep_check_without_an_answer_is_a_503(
    caller: Caller, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(request: Sent) -> Iterable[RequestOutput]:
        time.sleep(0.1)
        return ()

    engine.script = silent
    monkeypatch.setattr(deep_check, "TIMEOUT_S", 0.05)
    check_error(caller.get("/health?deep=1"), 503, None, "timeout")
    engine.wait_for(lambda: engine.aborted == [engine.requests[0].rid])
