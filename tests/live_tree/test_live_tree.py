"""`radixrt tree`: the copy of the tree equals the scheduler's, and its picture shows the heaviest nodes."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.common.synthetic_scheduler import SyntheticScheduler
from radixrt.cli import main
from radixrt.errors import ConfigError
from radixrt.live_tree.command import show_tree
from radixrt.live_tree.feed import FeedTree
from radixrt.live_tree.picture import picture
from radixrt.mem_cache.cache_replica import CacheReplica
from radixrt.messages.cache_events import CacheAck, CacheEvents, WatchCacheReq
from radixrt.server.ui.lines import line, short_event, snapshot_line


def followed(steps: int) -> tuple[FeedTree, SyntheticScheduler]:
    """A tree that followed a scheduler through a pool which evicts, and the scheduler."""
    scheduler = SyntheticScheduler(200, running=8, waiting=2, num_slots=9000)
    replica, tree = CacheReplica(), FeedTree()
    scheduler.handle(WatchCacheReq())
    for step in range(steps):
        scheduler.step()
        for batch in scheduler.turn():
            assert isinstance(batch, CacheEvents)
            assert replica.apply(batch)
            scheduler.handle(CacheAck(batch.seq))
            shorts = [short for event in batch.events if (short := short_event(event)) is not None]
            sent = line("events", clock=batch.clock, at=100.0 + step, events=shorts)
            if batch.header is not None:
                sent = snapshot_line(replica, [(batch.clock, 100.0)])
            tree.take(json.loads(sent))
    return tree, scheduler


def test_the_copy_equals_the_tree() -> None:
    tree, scheduler = followed(300)
    cache = scheduler.scheduler.kv.cache
    assert cache.stats.evicted_tokens > 1000
    assert tree.num_tokens == cache.total_size
    journal = cache.journal
    assert journal is not None
    for node in cache.iter_nodes():
        copy = tree.nodes[journal.number(node)]
        assert (copy.tokens, copy.hits, copy.last, copy.locks, copy.retention) == (
            node.num_tokens, node.hits, node.last_access, node.lock_ref, node.retention
        )  # fmt: skip
        assert copy.below == node.num_tokens + sum(tree.nodes[journal.number(c)].below for c in node.children.values())
    assert len(tree.nodes) - len(tree.roots) == sum(1 for _ in cache.iter_nodes())


def test_the_picture_shows_the_heaviest_nodes_within_its_size() -> None:
    tree, _ = followed(100)
    tree.take({"t": "hello", "model": "some\x1b[2Jmodel"})
    tree.take({"t": "samples", "rows": [[0.0, 8, 2, 0, 0, 0, 0, 1000, 5000, 2000, 1000, None, None]]})
    tree.take({"t": "bounds", "since": 0, "prompt": 1000, "hits": 500, "belady": 750, "infinite": 800})
    lines = picture(tree, 100, 24)
    assert len(lines) <= 24
    assert all(len(line) <= 100 and line.isprintable() for line in lines)
    assert "50.0 % reused, optimum 75.0 %" in " ".join(picture(tree, 300, 24))
    assert "33 % held, 56 % cached" in lines[1]
    found = [re.match(r" *[\d,]+ +([\d,]+) ", each) for each in lines]
    below = [int(each.group(1).replace(",", "")) for each in found if each]
    assert below[0] == max(below)
    assert any("more" in each for each in lines)


def test_an_empty_tree_and_a_cache_that_is_off() -> None:
    tree = FeedTree()
    tree.take(
        {"t": "snapshot", "clock": 0, "header": {"enabled": True}, "ticks": [], "roots": [[1, "", 0]], "nodes": []}
    )
    assert "Nothing is cached yet." in picture(tree, 80, 20)
    empty = {"t": "snapshot", "clock": 0, "ticks": [], "roots": [[1, "", 0]], "nodes": []}
    tree.take({**empty, "header": {"enabled": True}})
    assert "Nothing is cached yet." in picture(tree, 80, 20)
    tree.take({**empty, "header": {"enabled": False}})
    assert "The prefix cache is off." in picture(tree, 80, 20)


def test_a_server_that_does_not_answer_is_an_error_with_its_address() -> None:
    with pytest.raises(ConfigError, match=r"http://127.0.0.1:1 does not answer"):
        show_tree("http://127.0.0.1:1", out=io.StringIO())


class TwoReplicas(BaseHTTPRequestHandler):
    """Feed of a server whose replica 0 serves and whose replica 1 is fenced."""

    def do_GET(self) -> None:
        replica = int(self.path.partition("?replica=")[2] or 0)
        rows = [{"replica": 0, "state": "serving"}, {"replica": 1, "state": "fenced"}]
        tree = {"clock": 0, "header": {"enabled": True}, "ticks": [], "roots": [[1, "", 0]], "nodes": []}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(line("hello", model="m", replica=replica) + line("fleet", rows=rows))
        if replica == 0:
            self.wfile.write(line("snapshot", **tree) + line("bounds", since=0, prompt=0))

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), TwoReplicas) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_the_tree_of_a_replica(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tree", "--base-url", url]) == main(["tree", "--base-url", url, "--replica", "0"]) == 0
    assert capsys.readouterr().out.count("m, replica 0 · 0 nodes") == 2
    assert main(["tree", "--base-url", url, "--replica", "1"]) == 2
    assert "replica 1 is fenced and shows no tree" in capsys.readouterr().err
