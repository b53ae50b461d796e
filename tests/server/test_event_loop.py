"""No request occupies the event loop: the server answers probes at once, whatever a client sends or has stored."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from radixrt.server.routes.table import ROUTES
from tests.server.large_bodies import BODY_BYTES, FIELDS, large_bodies
from tests.server.served import Served

RESPONSES = "/v1/responses"
MIB = 2**20


SMALL_BOUND_S = 0.1
"""Longest gap in processor time that a small request may cause."""


LARGE_BOUND_S = 0.5
"""The same for the largest body. On a quiet machine the longest gap is 0.14 s, in one call that decodes the body."""


def served(response: httpx.Response) -> None:
    assert response.status_code < 500, response.text[:500]


def refused(response: httpx.Response) -> None:
    assert response.status_code == 400, response.text[:500]


class Watched:
    """A server, and the longest time for which its event loop did nothing else.

    Attributes:
        slowest_s: slowest answer to /health while `during` ran, in seconds.
    """

    def __init__(self, served: Served) -> None:
        self._served = served
        self.slowest_s = 0.0
        self.http = httpx.Client(base_url=served.url, timeout=300)

    def check(self, act: Callable[[], None], bound_s: float = SMALL_BOUND_S) -> None:
        """Run `act` while /health is asked, and check that the event loop is never occupied for long."""
        ended = threading.Event()
        self.slowest_s = 0.0

        def ask() -> None:
            with httpx.Client(base_url=self._served.url, timeout=300) as client:
                while not ended.is_set():
                    began = time.monotonic()
                    assert client.get("/health").status_code == 200
                    self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                    time.sleep(0.005)

        prober = threading.Thread(target=ask)
        self._served.gaps()
        prober.start()
        try:
            act()
        finally:
            ended.set()
            prober.join()
        loop_s, process_s = self._served.gaps()
        print(f"loop {loop_s:.3f} s, process {process_s:.3f} s, slowest /health {self.slowest_s:.3f} s")
        assert loop_s < bound_s
        assert process_s < bound_s


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    served = Served(1)
    made = Watched(served)
    yield made
    made.http.close()
    served.process.kill()
    served.process.communicate()


def test_conversations_with_reasoning_that_no_prompt_shows(watched: Watched) -> None:
    """The conversation is 120 MiB as it was sent, and a request that continues it has 120 bytes."""
    thoughts = [{"type": "reasoning_text", "text": "x" * (4 * MIB - 1024)}] * 2
    items = [{"type": "reasoning", "summary": [], "content": thoughts}, {"role": "user", "content": "hi"}]
    last: dict[str, Any] = {"id": None}
    for _ in range(15):
        previous = {} if last["id"] is None else {"previous_response_id": last["id"]}
        last = watched.http.post(RESPONSES, json={"input": items, "max_output_tokens": 3, **previous}).json()
    continued = {"input": "hi", "max_output_tokens": 3, "store": False, "previous_response_id": last["id"]}

    def many() -> None:
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda _: watched.http.post(RESPONSES, json=continued), range(16)))
        assert [answer.status_code for answer in answers] == [200] * 16

    watched.check(many)


def test_references_to_one_large_item(watched: Watched) -> None:
    words = {"input": "hi", "max_output_tokens": 400, "top_logprobs": 20}
    made = watched.http.post(RESPONSES, json=words).json()
    reference = {"type": "item_reference", "id": made["output"][0]["id"]}
    watched.check(lambda: refused(watched.http.post(RESPONSES, json={"input": [reference] * 1_000})))


def test_every_route_that_takes_a_body_is_sent_large_ones() -> None:
    assert {route.path for route in ROUTES if route.decoder is not None} == set(FIELDS)


@pytest.mark.parametrize("path", FIELDS)
def test_large_bodies(watched: Watched, path: str) -> None:
    headers = {"content-type": "application/json"}
    for name, body in large_bodies(path):
        assert len(body) <= BODY_BYTES
        print(f"{name}: {len(body)} bytes, ", end="")
        watched.check(lambda body=body: served(watched.http.post(path, content=body, headers=headers)), LARGE_BOUND_S)


def test_large_responses_are_stored_listed_and_continued(watched: Watched) -> None:
    texts = [{"role": "user", "content": "x" * 2_000}] * 4_000
    small = [{"role": "user", "content": "x"}] * 4_000
    for items in ([{"role": "user", "content": "x" * 4_000_000}] * 2, texts, small):
        made: dict[str, Any] = {}

        def store(items: list[Any] = items, made: dict[str, Any] = made) -> None:
            made.update(watched.http.post(RESPONSES, json={"input": items, "max_output_tokens": 3}).json())

        watched.check(store, LARGE_BOUND_S)
        own = f"{RESPONSES}/{made['id']}"
        watched.check(lambda own=own: served(watched.http.get(own)))
        watched.check(lambda own=own: served(watched.http.get(f"{own}/input_items?limit=100")))
        more = {"input": "x", "max_output_tokens": 3, "previous_response_id": made["id"]}
        watched.check(lambda more=more: served(watched.http.post(RESPONSES, json=more)))
