"""Replicas of an engine, really killed and stopped while they answer: nothing is lost, and texts stay the same."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import radixrt
from radixrt.config import ServerConfig
from radixrt.errors import EngineError, RequestError
from radixrt.messages.fleet import RouterView
from radixrt.server.app import create_app
from tests.process.helpers import gone
from tests.server_process import LIMIT_S, wait_for

LENGTH = 600
LONG = {"temperature": 0, "max_tokens": LENGTH, "ignore_eos": True}
"""Runs for a second or more, in which a process fails."""
PROMPTS = [[10 * i + j % 7 for j in range(100)] for i in range(6)]
"""Nothing in common, so that both replicas get some of them."""
OPTIONS: dict[str, Any] = {
    "dtype": "float32", "kv_cache_tokens": 8192, "num_threads": 1, "show_progress": False, "max_restarts": 100,
    "replica_stall_s": 1.0, "hang_timeout_s": 600.0, "check_invariants": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def engine(long_model: Path) -> Iterator[radixrt.Engine]:
    with radixrt.Engine(str(long_model), replicas=2, **OPTIONS) as engine:
        yield engine
        assert wait_for(lambda: engine.client.open_requests == 0)
        engine.check_invariants()
        pids = list(engine.pids.values())
    assert len(pids) == 2 + 2  # the last test leaves one replica
    assert all(gone(pid) for pid in pids)


@pytest.fixture(scope="module")
def expected(engine: radixrt.Engine) -> list[list[int]]:
    answers = engine.generate(PROMPTS, LONG)
    assert isinstance(answers, list)
    return [answer.token_ids for answer in answers]


class Streams:
    """Requests that are being answered, each read by a thread of its own."""

    def __init__(
        self, engine: radixrt.Engine, prompts: Sequence[Sequence[int]] = PROMPTS, *, begun: bool = True, **sampling: Any
    ) -> None:  # fmt: skip
        self.engine = engine
        self.tokens: list[list[int]] = [[] for _ in prompts]
        self.errors: list[Exception | None] = [None for _ in prompts]
        self.threads = [
            threading.Thread(target=self._read, args=(i, prompt, {**LONG, **sampling}))
            for i, prompt in enumerate(prompts)
        ]
        for thread in self.threads:
            thread.start()
        assert not begun or wait_for(lambda: all(len(tokens) > 10 for tokens in self.tokens))

    @property
    def are_open(self) -> bool:
        """None of them has ended."""
        return all(thread.is_alive() for thread in self.threads)

    def _read(self, i: int, prompt: Sequence[int], sampling: dict[str, Any]) -> None:
        try:
            for chunk in self.engine.stream(prompt, sampling):
                self.tokens[i].extend(chunk.token_ids)
        except (RequestError, EngineError) as error:
            self.errors[i] = error

    def end(self) -> list[list[int]]:
        for thread in self.threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        return self.tokens


def view(engine: radixrt.Engine, replica: int) -> RouterView | None:
    found = engine.client.replica_stats.get(replica)
    return None if found is None else found.view


def both_serve(engine: radixrt.Engine) -> bool:
    views = [view(engine, replica) for replica in (0, 1)]
    return all(each is not None and each.state == "serving" for each in views)


def busy(engine: radixrt.Engine) -> int:
    """A replica that has requests."""

    def found() -> list[int]:
        views = {replica: view(engine, replica) for replica in (0, 1)}
        return [replica for replica, each in views.items() if each is not None and each.open]

    assert wait_for(lambda: bool(found()))
    return found()[0]


def send(engine: radixrt.Engine, name: str, number: int) -> int:
    pid = engine.pids[name]
    os.kill(pid, number)
    return pid


def test_a_killed_replica_loses_nothing(engine: radixrt.Engine, expected: list[list[int]]) -> None:
    streams = Streams(engine)
    name = f"replica {busy(engine)} scheduler"
    pid = send(engine, name, signal.SIGKILL)
    assert streams.end() == expected
    assert streams.errors == [None] * len(PROMPTS)
    assert wait_for(lambda: engine.pids[name] != pid and both_serve(engine)), "it was not started anew"
    assert engine.client.restarts[name] == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_killed_or_stopped_model_runner_loses_nothing(
    engine: radixrt.Engine, expected: list[list[int]], how: signal.Signals
) -> None:
    streams = Streams(engine)
    name = f"replica {busy(engine)} ModelRunner"
    pid = send(engine, name, how)
    assert streams.end() == expected
    assert streams.errors == [None] * len(PROMPTS)
    assert wait_for(lambda: engine.pids[name] != pid and both_serve(engine))
    assert gone(pid)


def test_a_stopped_replica_is_fenced_and_rejoins_empty(engine: radixrt.Engine, expected: list[list[int]]) -> None:
    streams = Streams(engine)
    replica = busy(engine)
    pid = send(engine, f"replica {replica} scheduler", signal.SIGSTOP)
    try:
        assert streams.end() == expected
        assert streams.errors == [None] * len(PROMPTS)
        found = view(engine, replica)
        assert found is not None
        assert found.state == "fenced"
        engine.check_invariants()  # waits for no answer of its process
    finally:
        os.kill(pid, signal.SIGCONT)
    assert wait_for(lambda: both_serve(engine))

    def resets() -> int:
        stats = engine.client.replica_stats[replica].stats
        return 0 if stats is None else stats.cache_resets.get("fenced", 0)

    assert wait_for(lambda: resets() == 1)
    assert engine.pids[f"replica {replica} scheduler"] == pid, "the same process"
    assert engine.generate(PROMPTS[0], LONG).token_ids == expected[0]  # type: ignore[union-attr]


def test_a_request_that_was_open_at_two_deaths_ends(engine: radixrt.Engine) -> None:
    streams = Streams(engine, [PROMPTS[0]], max_tokens=6000)
    first = busy(engine)
    send(engine, f"replica {first} scheduler", signal.SIGKILL)
    second = 1 - first
    assert wait_for(lambda: (found := view(engine, second)) is not None and found.open == 1)
    send(engine, f"replica {second} scheduler", signal.SIGKILL)
    streams.end()
    assert isinstance(streams.errors[0], RequestError)
    assert streams.errors[0].code == "replica_lost"
    assert wait_for(lambda: both_serve(engine))


def test_a_router_that_is_stopped_for_a_moment_delays_everything_and_loses_nothing(
    engine: radixrt.Engine, expected: list[list[int]]
) -> None:
    """Streams pause, a new request waits, and nobody takes the router's own silence for that of the replicas."""
    fences = [found.fences for found in (view(engine, 0), view(engine, 1)) if found is not None]
    streams = Streams(engine)
    pid = send(engine, "router", signal.SIGSTOP)
    try:
        late = Streams(engine, PROMPTS[:1], begun=False)
        time.sleep(1.3 * OPTIONS["replica_stall_s"])
        assert streams.are_open
        assert late.are_open
    finally:
        os.kill(pid, signal.SIGCONT)
    assert streams.end() == expected
    assert late.end() == expected[:1]
    assert streams.errors + late.errors == [None] * (len(PROMPTS) + 1)
    assert both_serve(engine)
    assert [found.fences for found in (view(engine, 0), view(engine, 1)) if found is not None] == fences
    assert engine.pids["router"] == pid, "the same process"


@pytest.mark.parametrize(
    ("how", "seen"),
    [(signal.SIGKILL, "was killed by signal 9"), (signal.SIGSTOP, "was stopped by a signal for")],
    ids=["killed", "stopped"],
)
def test_the_router_comes_back_and_knows_what_replicas_cache(
    engine: radixrt.Engine, expected: list[list[int]], how: signal.Signals, seen: str
) -> None:
    engine.generate(PROMPTS[1], {**LONG, "max_tokens": 2})
    streams = Streams(engine, max_tokens=1200)
    pid = send(engine, "router", how)
    late = Streams(engine, [PROMPTS[0]] if how == signal.SIGSTOP else [], begun=False)
    streams.end()
    late.end()
    for error in streams.errors + late.errors:
        assert isinstance(error, EngineError)
        assert f"the router process (pid {pid}) {seen}" in str(error)
    again = engine.generate(PROMPTS[1], LONG)  # waits for the new router
    assert again.token_ids == expected[1]  # type: ignore[union-attr]
    assert again.usage.cached_tokens >= 64  # type: ignore[union-attr]


def test_commands_are_for_all_replicas(engine: radixrt.Engine) -> None:
    engine.generate(PROMPTS, {**LONG, "max_tokens": 2})
    engine.flush_cache()
    stats = engine.stats
    assert stats is not None
    assert stats.slots_total == 2 * 8192
    assert stats.slots_evictable == 0
    assert stats.cache_resets["flushed"] == 2
    engine.check_invariants()


def test_replicas_come_and_go_while_requests_run(
    engine: radixrt.Engine, expected: list[list[int]], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    caplog.set_level("INFO", "radixrt.engine")
    replicas = engine.replicas
    assert replicas is not None
    app = create_app(engine.client, ServerConfig(), "tiny", replica_set=replicas)
    http = TestClient(app, base_url="http://127.0.0.1")
    for body, code in ((b"{bad", "invalid_json"), (b"[1]", "invalid_type")):
        refusal = http.post("/replicas/add", content=body, headers={"content-type": "application/json"})
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (400, code)
    added = http.post("/replicas/add").json()["replica"]
    assert added == 2
    assert wait_for(lambda: [info.state for info in replicas.describe()] == ["serving"] * 3)
    streams = Streams(engine)
    gone_pids = replicas.describe()[0].pids.values()
    numbers: list[int] = []  # that a replica which is added while the processes of another one end does not get
    stop = replicas._stop
    monkeypatch.setattr(replicas, "_stop", lambda gone: (numbers.extend(replicas._ending), stop(gone)))
    assert http.post("/replicas/drain", json={"replica": 0}).status_code == 200
    assert http.post("/replicas/remove", json={"replica": 0, "timeout_s": 0}).status_code == 200
    assert wait_for(lambda: [each["replica"] for each in http.get("/replicas").json()["replicas"]] == [1, 2])
    assert streams.end() == expected
    assert streams.errors == [None] * len(PROMPTS), "what was open there goes on elsewhere"
    assert wait_for(lambda: all(gone(pid) for pid in gone_pids))
    assert numbers == [0]
    assert wait_for(lambda: not replicas._ending)
    assert 'radixrt_replica_state{model_name="tiny",replica="2",state="serving"} 1.0' in http.get("/metrics").text
    assert http.get("/health").json()["replicas"] == {"serving": 2}
    replicas.remove(2)
    refusal = http.post("/replicas/drain", json={"replica": 1})
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (409, "last_replica")
    assert http.post("/replicas/remove", json={"replica": 9}).status_code == 404
    for line in ("replica 2 is being started", "replica 0 gets no new requests", "replica 0 is removed"):
        assert line in caplog.text
