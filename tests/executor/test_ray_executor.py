"""The executor of ranks in a Ray cluster: its ports, masks for the one rank that samples, and a new epoch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from radixrt.channel import Curve, ZmqInbox, ZmqOutbox
from radixrt.errors import ConfigError
from radixrt.executor.ray_executor import RayDistributedExecutor
from radixrt.messages.runner import ForwardStep, GrammarMask, RunnerReady, StepOutput, ToRunner
from tests.server_process import LIMIT_S, wait_for

STEP = ForwardStep(3, 1, b"", b"", b"")


class Ranks:
    """Two ranks without a model, of one epoch."""

    def __init__(self, context: zmq.Context[Any], file: Path) -> None:
        given = json.loads(file.read_text())
        keys = Curve.make(given["key"].encode())
        self.inboxes: list[ZmqInbox[ToRunner]] = [
            ZmqInbox(context, given["ranks"][str(rank)], ToRunner, bind=False, curve=keys, reconnects=False)
            for rank in range(2)
        ]
        self.answers: ZmqOutbox[Any] = ZmqOutbox(context, given["answers"], curve=keys, reconnects=False)
        for rank in range(2):
            self.answers.send(RunnerReady(rank, 100, 512, "cpu", "float32"))

    def close(self) -> None:
        for end in (*self.inboxes, self.answers):
            end.close()


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.context: zmq.Context[Any] = zmq.Context()
        self.executor = RayDistributedExecutor(
            self.context, host="127.0.0.1", size=2, address_file=lambda epoch: str(self.file(epoch)), epoch=0,
            answering=1,
        )  # fmt: skip
        self.ranks = Ranks(self.context, self.file(0))

    def file(self, epoch: int) -> Path:
        return self.folder / f"addresses.{epoch}"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.ranks.close()
    bench.executor.close()
    bench.context.term()


def test_every_rank_gets_each_step_and_one_answers(bench: Bench) -> None:
    assert bench.executor.wait_ready(LIMIT_S).rank == 1
    bench.executor.submit(STEP)
    assert [inbox.recv(LIMIT_S) for inbox in bench.ranks.inboxes] == [STEP, STEP]
    bench.ranks.answers.send(StepOutput(3, b""))
    assert bench.executor.take(LIMIT_S) == StepOutput(3, b"")


def test_masks_travel_to_the_rank_that_samples_alone(bench: Bench) -> None:
    bench.executor.wait_ready(LIMIT_S)
    mask = GrammarMask(3, b"rows", b"slots", b"new", b"bits")
    bench.executor.send_mask(mask)
    other, sampling = [inbox.recv(LIMIT_S) for inbox in bench.ranks.inboxes]
    assert sampling == mask
    assert other == GrammarMask(3, b"rows", b"slots", b"new")


def test_a_new_epoch_has_new_ports_and_a_new_key(bench: Bench) -> None:
    bench.executor.wait_ready(LIMIT_S)
    before = bench.ranks
    bench.executor.restart(1)
    first, second = (json.loads(bench.file(epoch).read_text()) for epoch in (0, 1))
    assert first["key"] != second["key"]
    bench.executor.submit(STEP)  # the ranks are not there yet
    bench.ranks = Ranks(bench.context, bench.file(1))
    ready: list[RunnerReady | None] = []
    assert wait_for(lambda: ready.append(bench.executor.poll_ready()) or ready[-1] is not None)
    bench.executor.submit(STEP)
    assert [inbox.recv(LIMIT_S) for inbox in bench.ranks.inboxes] == [STEP, STEP]
    assert before.inboxes[0].recv(0.1) is None
    before.close()


def test_the_file_with_the_key_is_the_users_alone(bench: Bench) -> None:
    assert os.stat(bench.file(0)).st_mode & 0o077 == 0
    assert all(end.startswith("tcp://127.0.0.1:") for end in json.loads(bench.file(0).read_text())["ranks"].values())


def test_an_address_that_is_not_this_machines_is_refused(tmp_path: Path) -> None:
    context: zmq.Context[Any] = zmq.Context()
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1, this machine's address in Ray"):
        RayDistributedExecutor(
            context, host="192.0.2.1", size=1, address_file=lambda epoch: str(tmp_path / "a"), epoch=0
        )  # fmt: skip
    context.destroy(linger=0)
