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
from radixrt.live_tree.feed import LiveTree
from radixrt.live_tree.picture import picture
from radixrt.mem_cache.replica import CacheReplica
from radixrt.messages.cache_events import CacheAck, CacheEvents, WatchCacheReq
from radixrt.messages.scheduler_stats import TierStats
from radixrt.server.ui.lines import line, shown_event, snapshot_line, tiers_line


def followed(steps: int) -> tuple[LiveTree, SyntheticScheduler]:
    """A tree that followed a scheduler through a pool which evicts, and the scheduler."""
    scheduler = SyntheticScheduler(200, running=8, waiting=2, num_slots=9000)
    replica, tree = CacheReplica(), LiveTree()
    scheduler.handle(WatchCacheReq())
    for step in range(steps):
        scheduler.step()
        for batch in scheduler.turn():
            assert isinstance(batch, CacheEvents)
            assert replica.apply(batch)
            scheduler.handle(CacheAck(batch.seq))
            shown = [found for event in batch.events if (found := shown_event(event)) is not None]
            sent = line("events", clock=batch.clock, at=100.0 + step, events=shown)
            if batch.header is not None:
                sent = snapshot_line(replica, [(batch.clock, 100.0)])
            tree.take(json.loads(sent))
    return tree, scheduler


def test_the_copy_equals_the_tree() -> None:
    tree, scheduler = followed(300)
    cache = scheduler.scheduler.kv.cache
    assert cache.evicted_tokens > 1000
    assert tree.replica.num_tokens == cache.total_size
    (journal,) = cache.observers
    nodes = list(cache.iter_nodes())
    for node in nodes:
        copy = tree.replica.nodes[journal.number(node)]
        assert (copy.tokens, copy.hits, copy.last_access, copy.locks, copy.retention) == (
            node.num_tokens, node.hits, node.last_access, node.lock_ref, node.retention
        )  # fmt: skip
        assert not copy.hashes
    assert len(tree.replica.nodes) == len(nodes) + 1
    assert f"{len(nodes):,} nodes, {cache.total_size:,} tokens cached" in picture(tree, 100, 24)[0]


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
    assert "host" not in lines[2]
    tiers = TierStats({"host": 64000, "disk": 128000}, {"host": 1280}, {}, {}, {"host": 640})
    tree.take(json.loads(tiers_line(tiers)))
    words = "host: 1,280 of 64,000 tokens, 640 fetched · disk: 0 of 128,000 tokens, 0 fetched"
    assert picture(tree, 100, 24)[2] == words
    found = [re.match(r" *[\d,]+ +([\d,]+) ", each) for each in lines]
    below = [int(each.group(1).replace(",", "")) for each in found if each]
    assert below[0] == max(below)
    assert any("more" in each for each in lines)


def snapshot(events: list[object], *, enabled: bool = True) -> dict[str, object]:
    header = {"num_slots": 100, "page_size": 1, "granule": 64, "policy": "lru", "enabled": enabled}
    return {"clock": 0, "header": header, "ticks": [], "events": events}


def test_tokens_count_for_all_nodes_above_and_namespaces_have_names() -> None:
    tree = LiveTree()
    nodes = [["insert", 3, 1, 10, "", 1, 1], ["insert", 4, 3, 20, "", 1, 1], ["insert", 5, 2, 5, "", 1, 1]]
    tree.take({"t": "snapshot", **snapshot([["root", 1, ""], ["root", 2, "q83v"], *nodes])})
    rows = [re.sub(r"[█ ]+", " ", each).strip() for each in picture(tree, 100, 24)[3:]]
    assert rows == ["0 30 0 default namespace", "10 30 0 long", "20 20 0 long", "0 5 0 cache_salt abcdef", "5 5 0 long"]


def test_an_empty_tree_and_a_cache_that_is_off() -> None:
    tree = LiveTree()
    for enabled, words in ((True, "Nothing is cached yet."), (False, "The prefix cache is off.")):
        tree.take({"t": "snapshot", **snapshot([["root", 1, ""]], enabled=enabled)})
        assert words in picture(tree, 80, 20)


def test_a_server_that_does_not_answer_is_an_error_with_its_address() -> None:
    with pytest.raises(ConfigError, match=r"http://127.0.0.1:1 does not answer"):
        show_tree("http://127.0.0.1:1", out=io.StringIO())


class TwoReplicas(BaseHTTPRequestHandler):
    """Feed of a server whose replica 0 serves and whose replica 1 is fenced."""

    def do_GET(self) -> None:
        replica = int(self.path.partition("?replica=")[2] or 0)
        rows = [{"replica": 0, "state": "serving"}, {"replica": 1, "state": "fenced"}]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(line("hello", model="m", replica=replica) + line("fleet", rows=rows))
        if replica == 0:
            self.wfile.write(line("snapshot", **snapshot([["root", 1, ""]])) + line("bounds", since=0, prompt=0))

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
