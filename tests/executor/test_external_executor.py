"""Executor for ranks that were started elsewhere: authentication, and detection of ranks that are gone."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from radixrt.channel import Curve, ZmqInbox, ZmqOutbox
from radixrt.errors import ConfigError, EngineError
from radixrt.executor.external_executor import ConnectionWatch, ExternalLauncherExecutor
from radixrt.messages.runner import ForwardStep, RunnerReady, StepFailed, StepOutput, ToRunner
from tests.server_process import LIMIT_S

STEP = ForwardStep(3, 1, b"", b"", b"")


class Rank:
    """A rank above 0 without a model."""

    def __init__(self, context: zmq.Context[Any], rank: int, addresses: dict[str, Any], keys: Curve) -> None:
        self.rank = rank
        self.inbox: ZmqInbox[ToRunner] = ZmqInbox(
            context, addresses["ranks"][str(rank)], ToRunner, bind=False, curve=keys
        )
        self.watch = ConnectionWatch(self.inbox.socket, accepts=False)
        self.answers: ZmqOutbox[Any] = ZmqOutbox(context, addresses["answers"], curve=keys)

    def close(self) -> None:
        self.watch.socket.close()
        self.inbox.close()
        self.answers.close()


def test_a_descriptor_of_a_socket_that_is_just_closing_is_no_obstacle() -> None:
    """ZMQ gives the address of a monitor free some time after its socket is closed."""
    with zmq.Context() as context:
        watched, closing = context.socket(zmq.PUSH), context.socket(zmq.PAIR)
        closing.bind(f"inproc://monitor.s-{watched.FD}")  # the name that pyzmq makes of the descriptor
        watch = ConnectionWatch(watched, accepts=False)
        assert not watch.lost()
        for socket_ in (watched, watch.socket, closing):
            socket_.close(0)


class Bench:
    def __init__(self, folder: Path, size: int = 3) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        file = folder / "addresses"
        self.executor = ExternalLauncherExecutor(
            self.context, f"ipc://{folder}/runner-0", f"ipc://{folder}/answers", mask_path=str(folder / "masks"),
            host="localhost", size=size, address_file=str(file),
        )  # fmt: skip
        self.addresses = json.loads(file.read_text())
        self.first: ZmqInbox[ToRunner] = ZmqInbox(self.context, f"ipc://{folder}/runner-0", ToRunner)
        self.answers: ZmqOutbox[Any] = ZmqOutbox(self.context, f"ipc://{folder}/answers")
        self.ranks = {
            rank: Rank(self.context, rank, self.addresses, Curve.make(self.addresses["key"].encode()))
            for rank in range(1, size)
        }

    def ready(self) -> None:
        self.answers.send(RunnerReady(0, 100, 512, "cpu", "float32"))
        for rank in self.ranks.values():
            rank.answers.send(RunnerReady(rank.rank, 100, 512, "cpu", "float32"))

    def close(self) -> None:
        for each in (*self.ranks.values(), self.executor, self.first, self.answers):
            each.close()
        self.context.term()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_every_rank_gets_the_same_and_rank_0_answers(bench: Bench) -> None:
    bench.ready()
    assert bench.executor.wait_ready(LIMIT_S).rank == 0
    bench.executor.submit(STEP)
    for inbox in (bench.first, *(rank.inbox for rank in bench.ranks.values())):
        assert inbox.recv(LIMIT_S) == STEP
    bench.answers.send(StepOutput(3, b""))
    assert bench.executor.take(LIMIT_S) == StepOutput(3, b"")
    assert bench.executor.take() is None


def test_a_failure_of_any_rank_is_heard(bench: Bench) -> None:
    bench.ready()
    bench.executor.wait_ready(LIMIT_S)
    bench.ranks[2].answers.send(StepFailed(3, 2, "no memory", fatal=True))
    heard = []
    eventually(lambda: bool(heard.append(bench.executor.take()) or heard[-1]))
    assert heard[-1] == StepFailed(3, 2, "no memory", fatal=True)


def test_a_rank_that_cannot_start_says_why(bench: Bench) -> None:
    bench.ranks[1].answers.send(StepFailed(-1, 1, "there is no such model", fatal=True))
    with pytest.raises(EngineError, match="runner 1 failed to start: there is no such model"):
        bench.executor.wait_ready(LIMIT_S)


def test_a_rank_that_does_not_come_is_missed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.answers.send(RunnerReady(0, 100, 512, "cpu", "float32"))
    arrived = iter([bench.executor.take(LIMIT_S)])
    monkeypatch.setattr(bench.executor, "take", lambda timeout_s: next(arrived, None))
    with pytest.raises(EngineError, match=r"only 1 of 3 runners were ready after 0 s"):
        bench.executor.wait_ready(0.0)


def test_a_rank_that_is_gone_is_named(bench: Bench) -> None:
    bench.ready()
    bench.executor.wait_ready(LIMIT_S)
    bench.ranks.pop(2).close()

    with pytest.raises(EngineError, match="rank 2 is gone"):
        eventually(lambda: bench.executor.take() is not None)


def test_a_rank_notices_that_the_scheduler_is_gone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, size=2)
    bench.ready()
    bench.executor.wait_ready(LIMIT_S)
    rank = bench.ranks[1]
    assert not rank.watch.lost()
    bench.executor.close()
    eventually(rank.watch.lost)
    bench.close()


def test_who_has_no_key_gets_nothing_and_is_not_missed(bench: Bench) -> None:
    bench.ready()
    bench.executor.wait_ready(LIMIT_S)
    stranger = Rank(bench.context, 1, bench.addresses, Curve.make(server=Curve.make().public))
    port = int(bench.addresses["ranks"]["1"].rpartition(":")[2])
    for said in (b"", b"GET / HTTP/1.0\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port)) as scanner:
            scanner.send(said)
    plain = bench.context.socket(zmq.PUSH)
    plain.connect(bench.addresses["answers"])
    plain.send(b"\x93")
    stranger.answers.send(StepFailed(0, 1, "hello", fatal=True))
    for _ in range(4):
        bench.executor.submit(STEP)
    assert stranger.inbox.recv(0.5) is None
    stranger.close()
    plain.close(linger=0)
    time.sleep(0.2)
    assert bench.executor.take() is None
    assert bench.ranks[1].inbox.recv(LIMIT_S) == STEP


def test_ports_are_open_on_the_given_address_alone(bench: Bench) -> None:
    for endpoint in (bench.addresses["answers"], *bench.addresses["ranks"].values()):
        assert endpoint.startswith("tcp://127.0.0.1:")


def test_a_host_that_is_not_this_machine_is_refused(tmp_path: Path) -> None:
    context: zmq.Context[Any] = zmq.Context()
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1.*MASTER_ADDR"):
        ExternalLauncherExecutor(
            context, f"ipc://{tmp_path}/r", f"ipc://{tmp_path}/a", mask_path=str(tmp_path / "m"),
            host="192.0.2.1", size=2, address_file=str(tmp_path / "addresses"),
        )  # fmt: skip
    context.destroy(linger=0)


def test_the_file_with_the_key_is_the_users_alone(bench: Bench, tmp_path: Path) -> None:
    assert os.stat(tmp_path / "addresses").st_mode & 0o077 == 0
