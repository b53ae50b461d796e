"""Executor for ranks in processes of this machine: each epoch has endpoints of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from radixrt.channel import ZmqInbox, ZmqOutbox
from radixrt.errors import EngineError
from radixrt.executor.mask_table import MaskReader
from radixrt.executor.multiproc_executor import MultiprocExecutor, RankEndpoints
from radixrt.messages.runner import ForwardStep, RunnerReady, StepOutput, ToRunner
from tests.executor.test_mask_table import no_file_above
from tests.server_process import LIMIT_S, wait_for

RANKS = 2


def step(step_id: int) -> ForwardStep:
    return ForwardStep(step_id, 1, b"", b"", b"")


class Life:
    """The ranks of one epoch, without a model."""

    def __init__(self, context: zmq.Context[Any], endpoints: RankEndpoints) -> None:
        self.inboxes: list[ZmqInbox[ToRunner]] = [ZmqInbox(context, each, ToRunner) for each in endpoints.ranks]
        self.answers: ZmqOutbox[Any] = ZmqOutbox(context, endpoints.answers)

    def ready(self, rank: int, executed: int = 0) -> None:
        self.answers.send(RunnerReady(rank, 100, 512, "cpu", "float32", executed=executed))

    def close(self) -> None:
        for each in (*self.inboxes, self.answers):
            each.close()


class Bench:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.context: zmq.Context[Any] = zmq.Context()
        self.executor = MultiprocExecutor(self.context, self.endpoints, mask_path=str(folder / "masks"))

    def endpoints(self, epoch: int) -> RankEndpoints:
        ranks = [f"ipc://{self._folder}/runner-{rank}.{epoch}" for rank in range(RANKS)]
        return RankEndpoints(ranks, f"ipc://{self._folder}/answers.{epoch}")

    def start(self, epoch: int) -> Life:
        return Life(self.context, self.endpoints(epoch))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.executor.close()
    made.context.destroy(linger=0)


def test_a_new_life_of_the_ranks_hears_nothing_of_the_one_before(bench: Bench) -> None:
    first = bench.start(0)
    for rank in range(RANKS):
        first.ready(rank)
    assert bench.executor.wait_ready(LIMIT_S).rank == 0
    first.inboxes[0].close()  # rank 0 is dead; what is sent to it is queued
    bench.executor.submit(step(1))
    first.answers.send(StepOutput(1, b""))
    bench.executor.restart(1)
    first.close()
    second = bench.start(1)
    second.ready(1)
    assert bench.executor.poll_ready() is None
    second.ready(0)
    ready: list[RunnerReady | None] = []
    assert wait_for(lambda: bool(ready.append(bench.executor.poll_ready()) or ready[-1]))
    assert ready[-1] == RunnerReady(0, 100, 512, "cpu", "float32")
    assert bench.executor.poll_ready() is None, "it is reported once"
    bench.executor.submit(step(2))
    for inbox in second.inboxes:
        assert inbox.recv(LIMIT_S) == step(2)
    second.answers.send(StepOutput(2, b""))
    assert bench.executor.take(LIMIT_S) == StepOutput(2, b"")
    second.close()


@pytest.mark.parametrize("executed", [(7, 7), (7, 8)])
def test_ranks_of_a_dead_scheduler_must_have_executed_the_same(bench: Bench, executed: tuple[int, int]) -> None:
    life = bench.start(0)
    for rank, count in enumerate(executed):
        life.ready(rank, count)
    if len(set(executed)) == 1:
        assert bench.executor.wait_ready(LIMIT_S).executed == 7
    else:
        with pytest.raises(EngineError, match=r"different steps .* \(7 to 8 messages\)"):
            bench.executor.wait_ready(LIMIT_S)
    life.close()


def test_masks_are_in_the_messages_where_the_file_system_is_full(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with no_file_above(16):
        table = bench.executor.open_masks(4, 16)
    reader = MaskReader(str(tmp_path / "masks"))
    for step_id in range(3):
        mask, _ = reader.read(table.message(step_id, [0, 1], [0, 0], [np.full(16, step_id, np.uint32)]), 512)
        assert mask is not None
        assert (mask.table[mask.slots] == step_id).all()
    assert len(caplog.records) == 1
    assert "masks" in caplog.text


def test_ranks_that_die_while_they_start_are_started_once_more(bench: Bench) -> None:
    bench.executor.restart(1)
    dead = bench.start(1)
    dead.ready(0)
    assert wait_for(lambda: bool(bench.executor.socket.poll(0)))
    assert bench.executor.poll_ready() is None
    bench.executor.restart(2)
    dead.close()
    alive = bench.start(2)
    alive.ready(1)
    assert wait_for(lambda: bool(bench.executor.socket.poll(0)))
    assert bench.executor.poll_ready() is None, "rank 0 was ready in another epoch"
    alive.ready(0)
    assert wait_for(lambda: bench.executor.poll_ready() is not None)
    alive.close()
