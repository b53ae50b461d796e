"""Mutated requests against a real server: each is answered by 2xx or 4xx, and nobody else notices.

300 by default; `make mutate` sends 10,000 (`--mutated-requests`) and prints the table of answers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from hypothesis import HealthCheck, given, settings

from radixrt.bench.result import percentile
from radixrt.server.routes.table import ROUTES
from tests.server.mutations.bodies import BODIES, MODEL
from tests.server.mutations.neighbour import Neighbour
from tests.server.mutations.wire import RawAnswer, RawRequest, requests, send
from tests.server_process import LIMIT_S, ServerProcess, metrics, wait_for, wait_idle
from tests.tiny_models import make_tiny_model

SLOTS = 4096


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = make_tiny_model(tmp_path_factory.mktemp("models") / MODEL, "llama")
    server = ServerProcess(
        "--model", str(folder), "--served-model-name", MODEL, "--dtype", "float32", "--num-threads", "1",
        "--kv-cache-tokens", str(SLOTS), "--max-running-requests", "16", "--check-invariants",
        "--request-timeout-s", "20", "--compile-timeout-s", "2",
    ).wait_ready()  # fmt: skip
    yield server
    assert server.stop() == 0, "".join(server.lines[-50:])


def test_every_post_route_has_bodies_to_mutate() -> None:
    posted = {path for route in ROUTES if route.method == "POST" for path in route.paths}
    assert posted == set(BODIES), "add the route's struct to BODIES"


def descriptors(server: ServerProcess) -> dict[int, int]:
    """Return the number of open files by process id."""
    main = psutil.Process(server.process.pid)
    engine = [child for child in main.children(recursive=True) if "radixrt.engine.process" in child.cmdline()]
    return {process.pid: process.num_fds() for process in (main, *engine)}


def slots_in_use(url: str) -> float:
    values = dict(line.rsplit(" ", 1) for line in metrics(url) if not line.startswith("#"))
    free = sum(float(values[f'radixrt_kv_slots{{state="{state}"}}']) for state in ("free", "evictable"))
    return float(values["radixrt_kv_slots_capacity"]) - free


def problem(request: RawRequest, answer: RawAnswer) -> str | None:
    """Return the reason why an answer is not acceptable, or None."""
    if answer.status == 0:
        return "no answer" if request.whole else None
    if not 200 <= answer.status < 500:
        return f"status {answer.status}: {answer.body[:500]!r}"
    if request.method == "HEAD":
        return None
    if answer.status >= 400 and request.whole and not json.loads(answer.body)["error"]["message"]:
        return "an error without a message"
    if b'"code":"internal_error"' in answer.body or b'"code":"engine_dead"' in answer.body:
        return f"an error of the server in a stream: {answer.body[-500:]!r}"
    return None


@pytest.mark.timeout(7200)
def test_mutated_requests_are_answered_and_nobody_else_notices(
    tiny: ServerProcess, request: pytest.FixtureRequest
) -> None:
    count = request.config.getoption("--mutated-requests")
    table: Counter[tuple[str, int]] = Counter()
    warm_up(tiny)
    before = descriptors(tiny)

    @settings(
        max_examples=count, derandomize=count <= 300, database=None, deadline=None, print_blob=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(requests())
    def send_all(mutated: RawRequest) -> None:
        answer = send(tiny.url, mutated)
        table[mutated.route, answer.status] += 1
        assert tiny.process.poll() is None, "the server is gone: " + "".join(tiny.lines[-20:])
        found = problem(mutated, answer)
        assert found is None, f"{found}\n{mutated!r}\n" + "".join(tiny.lines[-20:])

    with Neighbour(tiny.url) as neighbour:
        send_all()
    print(report(table, neighbour))
    assert not neighbour.errors
    assert len(set(neighbour.texts)) == 1, "the neighbour's text changed"
    wait_idle(tiny.url)
    assert wait_for(lambda: slots_in_use(tiny.url) == 0), metrics(tiny.url)
    assert set(descriptors(tiny)) == set(before), "a process was replaced"
    assert wait_for(lambda: all(now <= before[pid] for pid, now in descriptors(tiny).items())), (
        f"open files: before {before}, after {descriptors(tiny)}"
    )


def warm_up(server: ServerProcess) -> None:
    """Let every process open what it opens once: kernels, grammar compilers, sockets."""
    for fields in ({}, {"regex": "[ab]+"}, {"json_schema": {"type": "object"}}):
        body = {"prompt": "hello", "max_tokens": 4, **fields}
        assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=LIMIT_S).status_code == 200
    wait_idle(server.url)


def report(table: Counter[tuple[str, int]], neighbour: Neighbour) -> str:
    """Return the table of answers by route, and the neighbour's figures."""
    statuses = sorted({status for _, status in table})
    lines = ["| request | " + " | ".join(str(status or "closed") for status in statuses) + " |"]
    lines.append("|---|" + "---:|" * len(statuses))
    for route in sorted({route for route, _ in table}):
        lines.append(f"| {route} | " + " | ".join(str(table[route, status] or "") for status in statuses) + " |")
    gaps = ", ".join(f"p{q} {1e3 * percentile(neighbour.gaps_s, q):.1f} ms" for q in (50, 99, 100))
    lines.append(f"{sum(table.values())} requests; a neighbour's {len(neighbour.texts)} streams: gaps {gaps}")
    return "\n".join(lines)
