"""Connections between the main process and its ranks, which are processes here: they die, fall silent, survive."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from radixrt.channel import HEARTBEAT_INTERVAL_S, HEARTBEAT_TIMEOUT_S, Curve, ZmqOutbox
from radixrt.engine.cluster.lifeline import RankLines
from radixrt.messages.runner import ForwardStep
from tests.server_process import LIMIT_S, wait_for

ORPHAN = """
import json, sys, threading, zmq
from radixrt.channel import Curve, ZmqInbox
from radixrt.engine.cluster import lifeline
from radixrt.executor.external_executor import ConnectionWatch
from radixrt.messages.runner import ToRunner
lifeline.ORPHAN_S = float(sys.argv[1])
context = zmq.Context()
line = lifeline.Lifeline(context, **json.loads(sys.stdin.readline()))
while (found := line.addresses()) is not None:
    keys = Curve.make(server=found.key.encode())
    inbox = ZmqInbox(context, found.steps, ToRunner, bind=False, curve=keys, reconnects=False)
    line.exit_without_scheduler(found.epoch, [ConnectionWatch(inbox.socket, accepts=False)])
    print(found.epoch, flush=True)
    inbox.recv(None)
    print("a step", flush=True)
    line.addresses(after=found.epoch)
    inbox.close()
"""
ADDRESSES = json.dumps({"ranks": {"0": "tcp://a:1", "1": "tcp://a:2"}, "answers": "tcp://a:3", "key": "k"})
RANK = """
import json, sys, zmq
from radixrt.engine.cluster.lifeline import Lifeline
line = Lifeline(zmq.Context(), **json.loads(sys.stdin.readline()))
epoch = -1
while True:
    found = line.addresses(after=epoch)
    epoch = found.epoch
    print(found.epoch, found.steps, flush=True)
"""


class Bench:
    """The main process's ends for two ranks, and the processes of the ranks."""

    def __init__(self, program: str = RANK, *arguments: str) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.lines = RankLines(self.context, "127.0.0.1", 2)
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]

    def connect(self) -> None:
        for number, rank in enumerate(self.ranks):
            assert rank.stdin is not None
            rank.stdin.write(json.dumps(self.lines.of_rank(number)) + "\n")
            rank.stdin.flush()
        assert wait_for(lambda: not self.lines.lost() and all(self.lines.is_connected(rank) for rank in range(2)))

    def said(self, rank: int) -> str:
        stdout = self.ranks[rank].stdout
        assert stdout is not None
        return stdout.readline()

    def lost(self, limit_s: float = LIMIT_S) -> list[int]:
        """Wait until ranks are lost."""
        poller = zmq.Poller()
        for each in self.lines.sockets():
            poller.register(each, zmq.POLLIN)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            poller.poll(100)
            if found := self.lines.lost():
                return found
        return []


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(*getattr(request, "param", ()))
    yield made
    for rank in made.ranks:
        rank.kill()
        rank.wait()
        assert rank.stdin is not None
        assert rank.stdout is not None
        rank.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            rank.stdin.close()
    made.lines.close()
    made.context.destroy(linger=0)


def test_ranks_learn_of_each_scheduler_and_outlive_who_started_them(bench: Bench) -> None:
    bench.lines.announce(0, ADDRESSES)  # before the ranks run
    bench.connect()
    assert [bench.said(0), bench.said(1)] == ["0 tcp://a:1\n", "0 tcp://a:2\n"]
    for rank in bench.ranks:
        assert rank.stdin is not None
        rank.stdin.close()
    bench.lines.announce(4, ADDRESSES)
    assert [bench.said(0), bench.said(1)] == ["4 tcp://a:1\n", "4 tcp://a:2\n"]
    bench.lines.close()  # as the death of the main process does
    assert [rank.wait(LIMIT_S) for rank in bench.ranks] == [0, 0]


def test_a_rank_whose_starter_is_gone_before_it_has_connected_goes_on(bench: Bench) -> None:
    bench.lines.announce(0, ADDRESSES)
    for number, rank in enumerate(bench.ranks):
        assert rank.stdin is not None
        rank.stdin.write(json.dumps(bench.lines.of_rank(number)) + "\n")
        rank.stdin.close()  # the rank finds its input ended when it begins to connect
    assert wait_for(lambda: not bench.lines.lost() and all(bench.lines.is_connected(rank) for rank in range(2)))
    assert [bench.said(0), bench.said(1)] == ["0 tcp://a:1\n", "0 tcp://a:2\n"]
    assert [rank.poll() for rank in bench.ranks] == [None, None]


def test_a_rank_that_cannot_reach_the_main_process_ends_with_its_input(bench: Bench) -> None:
    """Also if nobody reads its output any more, as where the agent is gone that had both."""
    nowhere = bench.lines.of_rank(0)
    bench.lines.close()
    reader, writer = os.pipe()
    rank = subprocess.Popen([sys.executable, "-c", RANK], stdin=subprocess.PIPE, stderr=writer, text=True)
    os.close(writer)
    os.close(reader)
    rank.communicate(json.dumps(nowhere) + "\n", timeout=LIMIT_S)
    assert rank.returncode == 1


def test_a_rank_that_dies_is_noticed_by_its_connection_and_one_that_falls_silent_by_heartbeats(bench: Bench) -> None:
    bench.connect()
    assert bench.lines.lost() == []
    bench.ranks[0].kill()
    assert bench.lost(HEARTBEAT_INTERVAL_S) == [0]
    os.kill(bench.ranks[1].pid, signal.SIGSTOP)
    begun = time.monotonic()
    assert bench.lost() == [1]
    assert time.monotonic() - begun > HEARTBEAT_TIMEOUT_S / 2  # it is not the connection that ended


class Scheduler:
    """The port of a scheduler for both ranks."""

    def __init__(self, bench: Bench, epoch: int) -> None:
        keys = Curve.make()
        self.outboxes: list[ZmqOutbox[ForwardStep]] = [
            ZmqOutbox(bench.context, "tcp://127.0.0.1:*", bind=True, curve=keys) for _ in range(2)
        ]
        ranks = {str(rank): outbox.endpoint for rank, outbox in enumerate(self.outboxes)}
        bench.lines.announce(
            epoch, json.dumps({"ranks": ranks, "answers": "", "key": keys.public.decode()})
        )  # fmt: skip

    def send(self, bench: Bench) -> None:
        for rank, outbox in enumerate(self.outboxes):
            outbox.socket.poll(LIMIT_S * 1000, zmq.POLLOUT)
            outbox.send(ForwardStep(1, 1, b"", b"", b""))
            assert bench.said(rank) == "a step\n"

    def close(self) -> None:
        for outbox in self.outboxes:
            outbox.close()


@pytest.mark.parametrize("bench", [(ORPHAN, "0.1")], indirect=True)
def test_a_rank_whose_scheduler_is_gone_for_good_ends(bench: Bench) -> None:
    bench.connect()
    scheduler = Scheduler(bench, 0)
    assert [bench.said(0), bench.said(1)] == ["0\n", "0\n"]
    scheduler.send(bench)
    scheduler.close()
    assert [rank.wait(LIMIT_S) for rank in bench.ranks] == [1, 1]


@pytest.mark.parametrize("bench", [(ORPHAN, "100")], indirect=True)
def test_a_rank_waits_for_the_next_scheduler(bench: Bench) -> None:
    bench.connect()
    for epoch in (0, 3):
        scheduler = Scheduler(bench, epoch)
        assert [bench.said(0), bench.said(1)] == [f"{epoch}\n"] * 2
        scheduler.send(bench)
        scheduler.close()
