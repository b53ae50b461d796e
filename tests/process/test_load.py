"""More requests at once than the server takes: the surplus is refused at once, the rest is answered, nothing leaks."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import httpx
import pytest

from tests.server_process import LIMIT_S, ServerProcess, metrics, wait_for, wait_idle
from tests.tiny_models import make_tiny_model

NUM_REQUESTS = 1000
TOKENS_EACH = 64
"""Tokens of an answer: enough that requests come faster than they are answered, however fast the engine is."""
EACH_CLIENT = 50
"""Requests of one client; what its pool costs grows with their square."""


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> ServerProcess:
    folder: Path = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama")
    server = ServerProcess(
        "--model", str(folder), "--served-model-name", "tiny", "--dtype", "float32", "--num-threads", "1",
        "--kv-cache-tokens", "2048", "--max-running-requests", "8", "--max-queued-requests", "40",
    ).wait_ready()  # fmt: skip
    yield server
    assert server.stop() == 0


async def _flood(url: str, count: int = NUM_REQUESTS) -> list[httpx.Response]:
    """All requests at once, each on a connection of its own."""

    async def one(client: httpx.AsyncClient, i: int) -> httpx.Response:
        body = {"prompt": f"request {i}", "max_tokens": TOKENS_EACH, "temperature": 0, "ignore_eos": True}
        return await client.post("/v1/completions", json={"model": "tiny", **body})

    limits = httpx.Limits(max_connections=EACH_CLIENT)
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=url, limits=limits, timeout=LIMIT_S))
            for _ in range(count // EACH_CLIENT)
        ]
        return await asyncio.gather(*(one(clients[i % len(clients)], i) for i in range(count)))


def test_a_thousand_requests_beyond_the_queue_limit(small_server: ServerProcess) -> None:
    answers = asyncio.run(_flood(small_server.url))
    codes = [a.status_code for a in answers]
    assert set(codes) == {200, 429}
    assert codes.count(200) >= 8
    for answer in answers:
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["code"] == "queue_full"
        else:
            assert answer.json()["usage"]["completion_tokens"] == TOKENS_EACH
    _assert_nothing_leaked(small_server.url)


def test_requests_that_would_wait_are_refused_where_none_may_wait(tmp_path: Path) -> None:
    server = ServerProcess(
        "--model", str(make_tiny_model(tmp_path / "tiny", "llama")), "--served-model-name", "tiny",
        "--num-threads", "1", "--kv-cache-tokens", "2048", "--max-running-requests", "2", "--max-queue-wait-s", "0",
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        server.wait_ready()
        with httpx.Client(base_url=server.url, timeout=LIMIT_S) as client:
            for i in range(6):  # one at a time, so that none waits; the engine learns its times
                body = {"model": "tiny", "prompt": f"request {i}", "max_tokens": TOKENS_EACH, "ignore_eos": True}
                assert client.post("/v1/completions", json=body).status_code == 200
        answers = asyncio.run(_flood(server.url, 100))
        refused = [answer for answer in answers if answer.status_code == 429]
        assert 0 < len(refused) < 100
        assert {answer.status_code for answer in answers} == {200, 429}
        for answer in refused:
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["code"] == "queue_full"
            assert "max_queue_wait_s" in answer.json()["error"]["message"]
        assert wait_for(lambda: f"radixrt_refused_total {len(refused):.1f}" in metrics(server.url))


def test_disconnecting_in_mid_stream_frees_everything(small_server: ServerProcess) -> None:
    body = {"model": "tiny", "prompt": "a long story", "max_tokens": 100, "ignore_eos": True, "stream": True}
    for _ in range(20):
        with httpx.stream("POST", f"{small_server.url}/v1/completions", json=body, timeout=LIMIT_S) as response:
            next(response.iter_lines())
    _assert_nothing_leaked(small_server.url)


def _assert_nothing_leaked(url: str) -> None:
    def whole_pool() -> bool:
        values = dict(line.rsplit(" ", 1) for line in metrics(url) if not line.startswith("#"))
        slots = [float(values[f'radixrt_kv_slots{{state="{state}"}}']) for state in ("free", "evictable")]
        return sum(slots) == float(values["radixrt_kv_slots_capacity"]) == 2048

    wait_idle(url)
    assert wait_for(whole_pool), metrics(url)
    again = httpx.post(f"{url}/v1/completions", json={"prompt": "still there?", "max_tokens": 4}, timeout=LIMIT_S)
    assert again.status_code == 200
