"""`/ui` without a browser: its files, keys, Host and Origin, the feed of lines, and texts of nodes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from benchmarks.common.synthetic_scheduler import SyntheticScheduler
from radixrt.config import ServerConfig
from radixrt.engine.replica_set import ReplicaStatus
from radixrt.messages.cache_events import (
    CacheEvents,
    FromWatched,
    NodeEvicted,
    NodeTokens,
    NodeTokensReq,
    SnapshotHeader,
    ToWatched,
)
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import Finish
from radixrt.messages.wire import pack_i32
from radixrt.server.routes.ui import FILES
from tests.server.fake_engine import FakeEngine
from tests.server.helpers import Caller, check_error

OPERATORS = ("/ui", "/ui/page.js", "/ui/events", "/ui/node?node=1", "/ui/text?node=1", "/metrics")


def test_the_page_and_its_files_have_a_strict_policy(caller: Caller) -> None:
    for path, kind in [("/ui", "text/html")] + [(f"/ui/{name}", FILES[name]) for name in FILES if name != "page.html"]:
        response = caller.get(path)
        assert response.status_code == 200
        assert response.headers["content-type"].startswith(kind)
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
    page = caller.get("/ui").text
    assert "<script>" not in page
    assert " style=" not in page
    assert "http" not in page.replace("/ui/", "")
    check_error(caller.get("/ui/nothing.js"), 404)
    check_error(caller.get("/ui/page.html"), 404)


def test_scripts_never_write_markup() -> None:
    for path in (Path(__file__).parents[2] / "radixrt/server/ui/page").glob("*.js"):
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http:", "https:"):
            assert word not in path.read_text(), f"{path.name}: {word}"


def test_the_page_can_be_switched_off(engine: FakeEngine) -> None:
    caller = Caller(engine, ServerConfig(ui=False))
    for path in OPERATORS[:-1]:
        check_error(caller.get(path), 404, code="not_found")


def test_data_needs_the_key_of_an_admin(engine: FakeEngine, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[keys.boss]\nkey = "b"\nadmin = true\n[keys.alice]\nkey = "a"\n')
    keys.chmod(0o600)
    caller = Caller(engine, ServerConfig(api_key_file=str(keys), ui_text=True))
    assert caller.get("/ui").status_code == caller.get("/ui/page.js").status_code == 200  # they hold no data
    for path in ("/ui/events", "/ui/node?node=1", "/ui/text?node=1"):
        check_error(caller.get(path), 401)
        check_error(caller.get(path, headers={"authorization": "Bearer a"}), 403, code="admin_key_required")
    check_error(caller.get("/ui/text?node=x", headers={"authorization": "Bearer b"}), 400, "node")
    assert caller.request("HEAD", "/ui/events", headers={"authorization": "Bearer b"}).status_code == 200


# --- the feed ---


class Watched:
    """The scripted engine of a server, with a real scheduler's tree behind it."""

    def __init__(self, engine: FakeEngine, nodes: int = 40) -> None:
        self.scheduler = SyntheticScheduler(nodes, running=2, waiting=1)
        self.engine = engine
        self.lock = threading.Lock()
        engine.watched = self._answer

    def _answer(self, message: ToWatched) -> list[FromWatched]:
        with self.lock:
            for each in [*self.scheduler.handle(message), *self.scheduler.turn()]:
                self.engine.deliver(each)
        return []

    def step(self) -> None:
        with self.lock:
            self.scheduler.step()
            for message in self.scheduler.turn():
                self.engine.deliver(message)


@pytest.fixture
def watched(engine: FakeEngine) -> Watched:
    return Watched(engine)


@pytest.fixture
def feed(live: str) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Reads the feed up to the next line of a kind."""
    with httpx.stream("GET", f"{live}/ui/events", timeout=60) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        lines = response.iter_lines()

        def read(kind: str) -> dict[str, Any]:
            while True:
                line = next(lines)
                if line and (found := json.loads(line))["t"] == kind:
                    return found

        yield read


def test_the_feed_has_the_tree_its_events_and_the_requests(
    watched: Watched, feed: Callable[[str], dict[str, Any]]
) -> None:
    hello = feed("hello")
    assert (hello["model"], hello["slots"], hello["shows_text"], hello["images"]) == ("fake", 4096, False, 0)
    tree = feed("snapshot")
    cache = watched.scheduler.scheduler.kv.cache
    nodes = [event[1:] for event in tree["events"] if event[0] == "insert"]
    assert sum(node[2] for node in nodes) == cache.total_size
    assert not any(node[3] for node in nodes), "hashes stay here"
    known = {event[1] for event in tree["events"] if event[0] == "root"}
    for node in nodes:
        assert node[1] in known, "a node stands before its parent"
        known.add(node[0])
    assert feed("bounds")["since"] > 0
    for _ in range(3):
        watched.step()
    events = feed("events")
    assert {event[0] for event in events["events"]} >= {"insert", "use", "lock"}
    misses = feed("misses")["rows"]
    assert {row[0] for row in misses} <= {"req-00000", "req-00001", "req-00002"}
    assert misses[0][14] == "program-0"


def test_a_feed_ends_if_the_hub_fails_so_that_its_page_connects_again(
    engine: FakeEngine, watched: Watched, live: str
) -> None:
    for _ in range(2):
        with httpx.stream("GET", f"{live}/ui/events", timeout=60) as response:
            lines = response.iter_lines()
            assert any('"snapshot"' in line for line in lines)
            engine.deliver(CacheEvents(1, 0, True, [NodeEvicted(10**9)], SnapshotHeader(1, 1, 64, "lru")))
            for _ in lines:
                pass  # to the end


class TwelveReplicas:
    """Replicas of a server, as its routes see them."""

    def describe(self) -> list[ReplicaStatus]:
        return [ReplicaStatus(number, "serving", "", {}, None) for number in range(12)]


def test_a_replica_is_named_by_its_whole_number(engine: FakeEngine) -> None:
    caller = Caller(engine, ServerConfig(ui_text=True))
    path = "/ui/text?node=1&replica="
    assert "no router" in check_error(caller.get(f"{path}0"), 400, "replica")
    caller.app.state.service.replicas = TwelveReplicas()
    for number in ("0", "11"):
        check_error(caller.get(path + number), 404, "node")  # nobody watches that tree
    for wrong in ("12", "-1", "", "x", "0000000000", "0000000001", "1111111111", "9" * 5000, "%D9%A1"):
        assert "there are 0, 1, 2," in check_error(caller.get(path + wrong), 400, "replica")


def test_texts_of_nodes_are_shown_only_where_the_operator_allows_it(engine: FakeEngine, live: str) -> None:
    check_error(httpx.get(f"{live}/ui/text?node=1"), 404, code="no_texts")
    Watched(engine)
    caller = Caller(engine, ServerConfig(ui_text=True))
    check_error(caller.get("/ui/text?node=1"), 404, "node")  # at once: nobody watches
    engine.answer = lambda question: RequestOutput(question.rid, "<b>text</b>", finish=Finish("stop"))
    hub = caller.app.state.service.ui
    opened = hub.open()
    taken: list[bytes] = []
    engine.wait_for(lambda: taken.append(opened.take()) or b'"snapshot"' in taken[-1])
    node = json.loads(next(line for line in taken[-1].splitlines() if b'"snapshot"' in line))["events"][-1][1]
    answer = caller.get(f"/ui/text?node={node}").json()
    assert answer["text"] == "<b>text</b>"
    assert answer["tokens"] > 0
    check_error(caller.get("/ui/text?node=999999"), 404, "node")
    for bad in ("", "x", "-1", "1e3", "9" * 40, "²"):
        check_error(caller.get("/ui/text", params={"node": bad}), 400, "node")
    hub.close(opened)


def test_images_of_a_node_have_no_text(engine: FakeEngine) -> None:
    """Keys of images are no token ids."""
    Watched(engine)
    caller = Caller(engine, ServerConfig(ui_text=True))
    engine.answer = lambda question: RequestOutput(question.rid, "text", finish=Finish("stop"))
    hub = caller.app.state.service.ui
    opened = hub.open()
    taken: list[bytes] = []
    engine.wait_for(lambda: taken.append(opened.take()) or b'"snapshot"' in taken[-1])
    node = json.loads(next(line for line in taken[-1].splitlines() if b'"snapshot"' in line))["events"][-1][1]
    ids = pack_i32([1, 2, -2, -700, -3, 4])
    engine.watched = lambda message: [NodeTokens(message.id, ids, {})] if isinstance(message, NodeTokensReq) else []
    answer = caller.get(f"/ui/text?node={node}").json()
    assert answer == {"node": node, "text": "text[3 tokens of images]text", "tokens": 6}
    hub.close(opened)


def test_a_node_says_what_tiers_have_of_its_prefix(engine: FakeEngine) -> None:
    Watched(engine)
    caller = Caller(engine)
    check_error(caller.get("/ui/node?node=1"), 404, "node")  # at once: nobody watches
    hub = caller.app.state.service.ui
    opened = hub.open()
    taken: list[bytes] = []
    engine.wait_for(lambda: taken.append(opened.take()) or b'"snapshot"' in taken[-1])
    node = json.loads(next(line for line in taken[-1].splitlines() if b'"snapshot"' in line))["events"][-1][1]
    assert caller.get(f"/ui/node?node={node}").json() == {"node": node, "kept": {}}, "without tiers"
    answer = NodeTokens("", b"", {"host": 128})
    engine.watched = lambda message: (
        [msgspec.structs.replace(answer, id=message.id)] if isinstance(message, NodeTokensReq) else []
    )
    assert caller.get(f"/ui/node?node={node}").json() == {"node": node, "kept": {"host": 128}}
    check_error(caller.get("/ui/node?node=-1"), 400, "node")
    hub.close(opened)


def test_too_many_pages_are_refused(engine: FakeEngine) -> None:
    caller = Caller(engine)
    hub = caller.app.state.service.ui
    feeds = [hub.open() for _ in range(16)]
    assert None not in feeds
    check_error(caller.get("/ui/events"), 503, code="too_many_pages")
    for opened in feeds:
        hub.close(opened)


def test_a_page_that_does_not_read_gets_a_snapshot_instead(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixrt.server.ui.hub.MAX_FEED_BYTES", 3_000)
    watched = Watched(engine)
    hub = Caller(engine).app.state.service.ui
    opened = hub.open()
    engine.wait_for(lambda: b'"snapshot"' in opened.take())

    for _ in range(40):
        watched.step()
        time.sleep(0.02)  # so that lines are written, which nobody takes
    engine.wait_for(lambda: b'"snapshot"' in opened.take())
    hub.close(opened)


def test_watching_ends_after_the_last_page_and_begins_again(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixrt.server.ui.hub.LINGER_S", 0.3)
    watched = Watched(engine)
    hub = Caller(engine).app.state.service.ui
    assert not watched.scheduler.stream.is_on, "nobody looks"

    def look() -> None:
        opened = hub.open()
        engine.wait_for(lambda: b'"snapshot"' in opened.take())
        assert watched.scheduler.stream.is_on
        hub.close(opened)
        engine.wait_for(lambda: not watched.scheduler.stream.is_on)

    look()
    look()
    assert watched.scheduler.scheduler.kv.cache.observers == ()
