"""The router process's loop over real sockets, with a tokenizer, a main process and schedulers that the tests play."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from radixrt.channel import Tag, TaggedInbox, TaggedOutbox, ZmqInbox, ZmqOutbox
from radixrt.mem_cache.granules import prompt_hashes, seed_of
from radixrt.messages.cache_events import (
    CacheAck,
    CacheEvents,
    NodeInserted,
    PageWatch,
    RootOpened,
    SnapshotHeader,
    WatchCacheReq,
)
from radixrt.messages.client import ToTokenizer
from radixrt.messages.fleet import FromReplica, ReplicaNotice, ReplicaStats, RouterQueue, ToRouter
from radixrt.messages.parts import FINISH_LENGTH, Finish, Timings, Usage
from radixrt.messages.request import Request
from radixrt.messages.runner import WeightsInfo
from radixrt.messages.scheduler import (
    AbortReq,
    ControlReply,
    ControlReq,
    Reset,
    SchedulerReady,
    TokenBatch,
    TokenDelta,
    ToScheduler,
)
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.router.loop import RouterLoop
from radixrt.router.router import Router
from radixrt.sampling_params import SamplingParams
from tests.server_process import wait_for

READY = SchedulerReady(10_000, 8, "cpu", "float32", weights=WeightsInfo("int8 rows", ("C++",), 0.5))
PROMPT = pack_i32([7] * 128)


class Scheduler:
    """One life of a replica's scheduler."""

    def __init__(self, bench: Bench, replica: int, life: int) -> None:
        self.bench, self.replica, self.life = bench, replica, life
        self.endpoint = f"{bench.folder}/scheduler{life}"
        self.inbox: TaggedInbox[ToScheduler] = TaggedInbox(bench.context, self.endpoint, ToScheduler)
        self.outbox: TaggedOutbox[FromReplica] = TaggedOutbox(bench.context, f"{bench.folder}/replies")
        self.tag = Tag(replica, 0)

    def notice(self, **fields: Any) -> None:
        fields = {"is_up": True, "endpoint": self.endpoint, "ready": READY, **fields}
        self.bench.outbox.send(ReplicaNotice(self.replica, self.life, **fields))

    def next(self) -> Any:
        """The next message of the router but acknowledgements; the loop turns until it has come."""
        found: list[tuple[Tag, Any]] = []

        def arrived() -> bool:
            self.bench.loop.run_once()
            message = self.inbox.recv_tagged()
            if message is not None and not isinstance(message[1], CacheAck):
                found.append(message)
            return bool(found)

        assert wait_for(arrived)
        self.tag, message = found[0]
        return message

    def join(self) -> None:
        """Join the router with an empty cache."""
        self.notice()
        assert isinstance(self.next(), Reset)
        assert isinstance(self.next(), WatchCacheReq)
        self.snapshot()

    def snapshot(self, prompt: bytes = b"") -> None:
        events: list[Any] = [RootOpened(1, seed_of(""))]
        if prompt:
            events.append(NodeInserted(2, 1, len(prompt) // 4, prompt_hashes(prompt, ""), 0, 0))
        header = SnapshotHeader(10_000, 1, 64, "lru")
        self.outbox.send_tagged(self.tag, CacheEvents(1, 1, True, events, header))

    def say(self, rid: str, tokens: list[int], *, ends: bool = False) -> None:
        finish = (Finish(FINISH_LENGTH), Usage(128, 9), Timings()) if ends else ()
        self.outbox.send_tagged(self.tag, TokenBatch([TokenDelta(rid, pack_i32(tokens), *finish)]))


class Bench:
    """A router with sockets; `outbox` sends as the tokenizer and as main."""

    def __init__(self, folder: Path, stall_s: float = 4.0) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.folder = f"ipc://{folder}"
        self.tokenizer: ZmqInbox[ToTokenizer] = ZmqInbox(self.context, f"{self.folder}/tokenizer", ToTokenizer)
        self.loop = RouterLoop(
            Router(context_length=4096, first_epoch=100, stall_s=stall_s),
            ZmqInbox(self.context, f"{self.folder}/router", ToRouter),
            TaggedInbox(self.context, f"{self.folder}/replies", FromReplica),
            ZmqOutbox(self.context, f"{self.folder}/tokenizer"),
            lambda endpoint: TaggedOutbox(self.context, endpoint), epoch=3, chunked_prefill_size=1024,
        )  # fmt: skip
        self.outbox: ZmqOutbox[ToRouter] = ZmqOutbox(self.context, f"{self.folder}/router")

    def ask(self, rid: str, prompt: bytes = PROMPT) -> None:
        self.outbox.send(Request.generate(rid, prompt, SamplingParams(max_tokens=9, temperature=0.0)))

    def heard(self, kind: type) -> Any:
        """The next message of this kind to the tokenizer; others are skipped."""
        found: list[Any] = []

        def arrived() -> bool:
            self.loop.run_once()
            while not found and (message := self.tokenizer.recv()) is not None:
                if isinstance(message, kind):
                    found.append(message)
            return bool(found)

        assert wait_for(arrived)
        return found[0]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.context.destroy(linger=0)


def test_a_lost_replica_is_followed_by_another_life_of_its_own_epoch(bench: Bench) -> None:
    first, second = Scheduler(bench, 0, 1), Scheduler(bench, 1, 2)
    first.join()
    ready = bench.heard(SchedulerReady)
    assert (ready.epoch, ready.weights) == (3, READY.weights)
    second.join()
    bench.ask("a")
    assert first.next().rid == "a"
    first.say("a", [5, 6])
    assert unpack_i32(bench.heard(TokenBatch).deltas[0].token_ids).tolist() == [5, 6]
    first.notice(is_up=False)
    resumed = second.next()
    assert unpack_i32(resumed.resume_ids).tolist() == [5, 6]
    first.say("a", [9])  # too late
    again = Scheduler(bench, 0, 3)
    again.join()
    first.notice()  # of an earlier life
    assert again.tag.epoch > second.tag.epoch
    second.say("a", [7], ends=True)
    batch = bench.heard(TokenBatch)
    assert unpack_i32(batch.deltas[0].token_ids).tolist() == [7]
    assert bench.heard(ReplicaStats).life in (2, 3)


def test_a_new_router_waits_for_what_replicas_cache(bench: Bench) -> None:
    bench.ask("a")
    cold, warm = Scheduler(bench, 0, 1), Scheduler(bench, 1, 2)
    for each in (cold, warm):
        each.notice()
        reset = each.next()
        assert isinstance(reset, Reset)
        assert reset.keeps_cache
        assert isinstance(each.next(), WatchCacheReq)
    cold.snapshot()
    warm.snapshot(PROMPT)
    assert warm.next().rid == "a"
    sent = iter(cold.inbox.recv_tagged, None)
    assert not any(isinstance(message, Request) for _, message in sent), "it was sent to the other one before"


def test_commands_and_drained_replicas(bench: Bench) -> None:
    one, two = Scheduler(bench, 0, 1), Scheduler(bench, 1, 2)
    one.join()
    two.join()
    one.notice(takes_new=False)
    bench.ask("a")
    assert two.next().rid == "a"
    bench.outbox.send(ControlReq("1", "check"))
    bench.outbox.send(ControlReq("2", "drain"))
    for each in (one, two):
        assert each.next() == ControlReq("1", "check")
    one.outbox.send_tagged(one.tag, ControlReply("1", ok=True))
    two.outbox.send_tagged(two.tag, ControlReply("1", ok=False, message="no"))
    assert bench.heard(ControlReply) == ControlReply("1", ok=False, message="replica 1: no")
    bench.outbox.send(AbortReq("a"))
    assert two.next() == AbortReq("a")
    two.say("a", [], ends=True)
    assert bench.heard(ControlReply) == ControlReply("2", ok=True)


def test_a_replica_that_was_not_up_drops_prompts_before_it_gets_a_request(bench: Bench) -> None:
    one, two = Scheduler(bench, 0, 1), Scheduler(bench, 1, 2)
    one.join()
    two.join()
    two.notice(is_up=False)
    command = ControlReq("1", "forget_owner", "k5:alice")
    bench.outbox.send(command)
    assert one.next() == command
    one.outbox.send_tagged(one.tag, ControlReply("1", ok=True))
    assert bench.heard(ControlReply) == ControlReply("1", ok=True)
    one.notice(takes_new=False)
    bench.ask("a")
    for life in (3, 4):
        two = Scheduler(bench, 1, life)
        two.notice()
        assert isinstance(two.next(), Reset)
        if life == 3:  # which executes the command, so that the next life need not
            assert two.next() == command
            two.outbox.send_tagged(two.tag, ControlReply("1", ok=True))
        assert isinstance(two.next(), WatchCacheReq)
        assert two.next().rid == "a"
        two.notice(is_up=False)


def test_prompts_of_a_request_that_waits_in_the_router_cannot_be_dropped(bench: Bench) -> None:
    one = Scheduler(bench, 0, 1)
    one.join()
    one.notice(takes_new=False)
    bench.ask("a")
    for number, namespace in ((1, ""), (2, "other")):
        bench.outbox.send(ControlReq(str(number), "forget", namespace))
        assert one.next() == ControlReq(str(number), "forget", namespace)
        one.outbox.send_tagged(one.tag, ControlReply(str(number), ok=True))
        message = "" if namespace else "1 requests wait and would leave it again"
        assert bench.heard(ControlReply) == ControlReply(str(number), ok=bool(namespace), message=message)


def test_a_page_is_told_what_the_router_holds_while_it_watches(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixrt.router.loop.VIEW_S", 0.0)
    one = Scheduler(bench, 0, 1)
    one.join()
    for i in range(9):  # the replica has eight rows
        bench.ask(f"r{i}")
    assert [one.next().rid for _ in range(8)] == [f"r{i}" for i in range(8)]
    watch = PageWatch(0, WatchCacheReq(requests=True))
    bench.outbox.send(watch)
    assert one.next() == watch
    found = bench.heard(RouterQueue)
    assert [(each.rid, each.replica, each.obstacle) for each in found.requests] == [("r8", 0, "requests")]
    one.notice(is_up=False)
    while (found := bench.heard(RouterQueue)).waiting != 9:
        pass
    assert {each.obstacle for each in found.requests} == {"replicas"}, "the page watches on"
    bench.outbox.send(PageWatch(0, WatchCacheReq(watch=False)))
    bench.outbox.send(ControlReq("1", "check"))
    bench.heard(ControlReply)
    for _ in range(3):
        bench.loop.run_once()
    assert not any(isinstance(message, RouterQueue) for message in iter(bench.tokenizer.recv, None))


def test_a_request_and_the_death_of_its_replica_are_read_at_once(bench: Bench) -> None:
    first, second = Scheduler(bench, 0, 1), Scheduler(bench, 1, 2)
    first.join()
    bench.ask("a")
    assert first.next().rid == "a"
    bench.ask("b")
    first.notice(is_up=False)
    second.notice()
    assert isinstance(second.next(), Reset)
    found = [second.next() for _ in range(3)]
    assert {message.rid for message in found if isinstance(message, Request)} == {"a", "b"}


def test_a_command_to_a_replica_that_is_fenced_as_it_joins_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, stall_s=0.05)
    monkeypatch.setattr("radixrt.router.loop.VIEW_S", 60.0)  # it is fenced before main has its first numbers
    bench.loop.run_once()
    Scheduler(bench, 0, 1).join()
    bench.ask("a")
    bench.outbox.send(ControlReq("1", "flush_cache"))
    stats = bench.heard(ReplicaStats)
    assert (stats.view.state, stats.view.fences) == ("fenced", 1)
    reply = bench.heard(ControlReply)
    assert (reply.id, reply.ok) == ("1", True)
    assert reply.message.startswith("replica 0 is silent and counts as dead")
    bench.outbox.send(ControlReq("2", "flush_cache"))
    assert bench.heard(ControlReply).message == reply.message, "it is asked no more"
    bench.context.destroy(linger=0)


def test_a_command_to_an_idle_replica_that_is_silent_fails_in_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path, stall_s=0.05)
    Scheduler(bench, 0, 1).join()
    bench.outbox.send(ControlReq("1", "flush_cache"))
    reply = bench.heard(ControlReply)
    assert (reply.id, reply.ok) == ("1", False)
    assert reply.message.startswith("replica 0 has not answered for ")
    bench.context.destroy(linger=0)
