"""Mutated pictures against a real server: each is answered by 200 or by a 400 in radixrt's own words, and memory stays.

2,000 by default; `make mutate` sends 10,000 (`--mutated-pictures`) and prints the table of answers.
"""

from __future__ import annotations

import base64
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.process.helpers import workers
from tests.server_process import LIMIT_S, ServerProcess, wait_idle
from tests.vision.mutations import mutate, seeds
from tests.vision.pictures import encoded, picture, random_image

MAX_GROWTH = 150 * 2**20
NUM_CLIENTS = 4
WARM_UP = 300
OWN_WORDS = ("the image", "the bytes")


@pytest.fixture(scope="module")
def vision(tiny_model: Callable[[str], Path]) -> Iterator[ServerProcess]:
    server = ServerProcess(
        "--model", str(tiny_model("qwen3_vl")), "--dtype", "float32", "--num-threads", "1", "--kv-cache-tokens", "4096",
        "--max-image-tokens", "64", "--check-invariants", "--no-access-log",
    ).wait_ready()  # fmt: skip
    yield server
    assert server.stop() == 0, "".join(server.lines[-50:])


def chat(data: str) -> tuple[str, dict[str, Any]]:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}", "detail": "low"}}
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}], "max_tokens": 2}


def responses(data: str) -> tuple[str, dict[str, Any]]:
    part = {"type": "input_image", "image_url": f"data:image/webp;base64,{data}"}
    given = [{"role": "user", "content": [part]}]
    return "/v1/responses", {"input": given, "max_output_tokens": 2, "store": False}


def messages(data: str) -> tuple[str, dict[str, Any]]:
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": data}}
    return "/v1/messages", {"messages": [{"role": "user", "content": [block]}], "max_tokens": 2}


def decisions(data: str) -> tuple[str, dict[str, Any]]:
    part = {"type": "input_image", "image_url": f"data:image/jpeg;base64,{data}"}
    question = {"type": "predicate", "instructions": "Is it red?"}
    return "/v1/decisions", {"input": [{"role": "user", "content": [part]}], "questions": [question]}


ROUTES = (chat, responses, messages, decisions)


def problem(answer: httpx.Response) -> str | None:
    """The reason why an answer is not acceptable, or None."""
    if answer.status_code == 200:
        return None
    if answer.status_code != 400:
        return f"status {answer.status_code}: {answer.text[:500]}"
    # Messages begin with the name of the part.
    message = answer.json()["error"]["message"].partition(": ")[2]
    return None if message.startswith(OWN_WORDS) else f"words of another: {answer.text[:500]}"


def send(server: ServerProcess, files: list[bytes], table: Counter[tuple[str, int]]) -> None:
    """Send each file to one of the routes, a few at a time."""
    with httpx.Client(base_url=server.url, timeout=LIMIT_S) as http, ThreadPoolExecutor(NUM_CLIENTS) as pool:

        def ask(number: int, data: bytes) -> tuple[str, httpx.Response]:
            path, body = ROUTES[number % len(ROUTES)](base64.b64encode(data).decode())
            return path, http.post(path, json=body)

        for path, answer in pool.map(ask, range(len(files)), files):
            table[path, answer.status_code] += 1
            found = problem(answer)
            assert found is None, f"{path}: {found}\n" + "".join(server.lines[-20:])


def resident(server: ServerProcess) -> dict[str, int]:
    """Resident bytes of each worker by its name and process id: of another process if a worker was replaced."""
    return {f"{name} {process.pid}": process.memory_info().rss for name, process in workers(server).items()}


@pytest.mark.timeout(3600)
def test_mutated_pictures_harm_nobody(vision: ServerProcess, request: pytest.FixtureRequest) -> None:
    count = request.config.getoption("--mutated-pictures")
    rng = random.Random(11)
    originals = [*seeds(), encoded(random_image(5, 48, 64, "P"), "GIF")]
    path, body = chat(base64.b64encode(picture(48, 64)).decode())
    good = {**body, "temperature": 0, "max_tokens": 8}
    before = httpx.post(vision.url + path, json=good, timeout=LIMIT_S).json()["choices"][0]["message"]
    table: Counter[tuple[str, int]] = Counter()

    def files(number: int) -> list[bytes]:
        return [mutate(rng, rng.choice(originals), rng.choice(originals)) for _ in range(number)]

    send(vision, originals * len(ROUTES) + files(WARM_UP), table)
    wait_idle(vision.url)
    first = resident(vision)
    for _ in range(0, count, 500):
        send(vision, files(min(count, 500)), table)
    wait_idle(vision.url)
    last = resident(vision)
    print("\n".join(f"{route}: {number} x {status}" for (route, status), number in sorted(table.items())))
    growth = {name: (last[name] - first[name]) / 2**20 for name in first}
    print(", ".join(f"{name}: {value:+.0f} MiB" for name, value in growth.items()))
    assert min(table[route, status] for route, _ in table for status in (200, 400)) > 0
    assert max(growth.values()) < MAX_GROWTH / 2**20
    after = httpx.post(vision.url + path, json=good, timeout=LIMIT_S).json()["choices"][0]["message"]
    assert after == before
