"""The link of a scheduler with routers: messages of other epochs are dropped, and a new router gets the answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from radixrt.channel import Tag, TaggedInbox, TaggedOutbox, ZmqInbox, ZmqOutbox
from radixrt.messages.fleet import FromReplica
from radixrt.messages.scheduler import AbortReq, ControlReply, Reset, RunnerRestarted, SchedulerReady, ToScheduler
from radixrt.scheduler.router_link import RouterLink

WAIT_S = 20.0
READY = SchedulerReady(64, 4, "cpu", "float32")


class Bench:
    """A link and both of its peers, over real sockets."""

    def __init__(self, folder: Path) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.folder = folder
        self.to_scheduler: TaggedOutbox[ToScheduler] = TaggedOutbox(self.context, self.of("scheduler"))
        self.main: ZmqInbox[SchedulerReady] = ZmqInbox(self.context, self.of("main"), SchedulerReady)
        self.link = RouterLink(
            TaggedInbox(self.context, self.of("scheduler"), ToScheduler),
            lambda endpoint: TaggedOutbox(self.context, endpoint),
            ZmqOutbox(self.context, self.of("main")),
        )

    def of(self, name: str) -> str:
        return f"ipc://{self.folder}/{name}"

    def router(self, name: str) -> TaggedInbox[FromReplica]:
        return TaggedInbox(self.context, self.of(name), FromReplica)

    def reset(self, epoch: int, router: str) -> None:
        self.to_scheduler.send_tagged(Tag(3, epoch), Reset(answers=self.of(router)))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.context.destroy(linger=0)


def test_messages_of_other_epochs_are_dropped(bench: Bench) -> None:
    send = bench.to_scheduler.send_tagged
    bench.reset(5, "router")
    send(Tag(3, 4), AbortReq("late"))
    send(Tag(3, 5), AbortReq("now"))
    bench.reset(5, "router")  # no new epoch
    bench.reset(9, "router")
    send(Tag(3, 5), AbortReq("late"))
    bench.to_scheduler.send(RunnerRestarted(1, "of the main process"))
    send(Tag(3, 9), AbortReq("next"))
    found = [bench.link.recv(WAIT_S) for _ in range(5)]
    assert [each.rid if isinstance(each, AbortReq) else type(each) for each in found] == [
        Reset, "now", Reset, RunnerRestarted, "next"
    ]  # fmt: skip


def test_answers_go_to_the_router_of_the_last_reset_with_its_epoch(bench: Bench) -> None:
    first, second = bench.router("first"), bench.router("second")
    bench.link.send(ControlReply("nobody asked", ok=True))
    bench.link.send(READY)
    assert bench.main.recv(WAIT_S) == READY
    for epoch, name, inbox in ((5, "first", first), (6, "first", first), (7, "second", second)):
        bench.reset(epoch, name)
        assert isinstance(bench.link.recv(WAIT_S), Reset)
        bench.link.send(ControlReply(name, ok=True))
        assert inbox.recv_tagged(WAIT_S) == (Tag(3, epoch), ControlReply(name, ok=True))


def test_a_frame_that_does_not_decode_is_dropped(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.to_scheduler.send_frame(b"short")
    bench.to_scheduler.send_frame(bytes(12) + b"\xc1")
    bench.to_scheduler.send(RunnerRestarted(1, "behind it"))
    assert bench.link.recv(WAIT_S) == RunnerRestarted(1, "behind it")
    assert caplog.text.count("does not decode") == 2
