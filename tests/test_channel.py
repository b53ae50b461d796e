"""Channels: order, frames that do not decode, frames that are too large, and the local channel's wire form."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from radixrt import channel
from radixrt.channel import UNDECODABLE, LocalChannel, ZmqInbox, ZmqOutbox
from radixrt.messages.client import OutputBatch, RequestOutput, ToMain
from radixrt.messages.reads import TokenLogprob
from radixrt.messages.scheduler import AbortReq, ControlReply, ControlReq, ToScheduler

WAIT_S = 30.0
"""Timeout for events that are certain to occur, in seconds."""


class Ends:
    """Inboxes and outboxes on one endpoint, closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.endpoint = f"ipc://{folder}/inbox"
        self.sockets: list[Any] = []

    def inbox(self, kind: Any = ToMain) -> ZmqInbox[Any]:
        self.sockets.append(ZmqInbox(self.context, self.endpoint, kind))
        return self.sockets[-1]

    def outbox(self) -> ZmqOutbox[Any]:
        self.sockets.append(ZmqOutbox(self.context, self.endpoint))
        return self.sockets[-1]


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    ends = Ends(tmp_path)
    yield ends
    for end in ends.sockets:
        end.close()
    ends.context.term()


def reply(i: int) -> ControlReply:
    return ControlReply(str(i), ok=True)


# --- over ZMQ ---


def test_messages_arrive_in_order_and_whole(ends: Ends) -> None:
    inbox, outbox = ends.inbox(), ends.outbox()
    sent = [OutputBatch([RequestOutput(str(i), "x" * (i * 37 % 5000))]) for i in range(2000)]
    for message in sent:
        outbox.send(message)
    assert [inbox.recv(WAIT_S) for _ in sent] == sent
    assert inbox.recv() is None


def test_each_senders_messages_arrive_in_its_order(ends: Ends) -> None:
    inbox = ends.inbox()
    outboxes = [ends.outbox() for _ in range(3)]
    for i in range(200):
        for who, outbox in enumerate(outboxes):
            outbox.send(ControlReply(str(i), ok=True, message=str(who)))
    got = [inbox.recv(WAIT_S) for _ in range(600)]
    for who in range(3):
        assert [m.id for m in got if m.message == str(who)] == [str(i) for i in range(200)]


def test_what_is_sent_before_the_inbox_exists_arrives(ends: Ends) -> None:
    outbox = ends.outbox()
    for i in range(3):
        outbox.send(reply(i))
    inbox = ends.inbox()
    assert [inbox.recv(WAIT_S) for _ in range(3)] == [reply(i) for i in range(3)]


def test_sending_never_blocks_on_a_reader_that_does_not_read(ends: Ends) -> None:
    outbox = ends.outbox()  # no inbox at all; ZMQ's own limit would be 1,000 messages
    sender = threading.Thread(target=lambda: [outbox.send(reply(i)) for i in range(5000)], daemon=True)
    sender.start()
    sender.join(WAIT_S)
    assert not sender.is_alive()
    inbox = ends.inbox()
    assert [inbox.recv(WAIT_S) for _ in range(5000)] == [reply(i) for i in range(5000)]


@pytest.mark.parametrize("timeout_s", [0.0, 1e-9, 0.001, 0.05])
def test_an_empty_inbox_gives_none(ends: Ends, timeout_s: float) -> None:
    assert ends.inbox().recv(timeout_s) is None


def test_recv_without_a_timeout_waits_for_a_message(ends: Ends) -> None:
    inbox, outbox = ends.inbox(), ends.outbox()
    timer = threading.Timer(0.1, lambda: outbox.send(reply(7)))
    timer.start()
    assert inbox.recv(None) == reply(7)
    timer.join()


def nested(depth: int) -> bytes:
    """A OutputBatch whose logprobs hold alternatives of alternatives, deeper than Python can follow."""
    delta = msgspec.msgpack.encode(OutputBatch([RequestOutput("r", logprobs=[TokenLogprob(1, "a", b"a", None)])]))
    one = msgspec.msgpack.encode(TokenLogprob(1, "a", b"a", None))
    assert delta.count(one) == 1
    head, tail = one.split(b"\x90")  # around the list of alternatives, which is empty
    return delta.replace(one, (head + b"\x91") * depth + one + tail * depth)


BAD_FRAMES = {
    "empty": b"",
    "not MessagePack": b"\xc1",
    "cut short": msgspec.msgpack.encode(reply(1))[:-1],
    "with bytes after it": msgspec.msgpack.encode(reply(1)) + b"\x00",
    "no message": msgspec.msgpack.encode({"id": "1"}),
    "of no type": msgspec.msgpack.encode(["Nothing", 1]),
    "of another channel": msgspec.msgpack.encode(ControlReq("1", "check")),
    "of wrong fields": msgspec.msgpack.encode(["ControlReply", 1, "yes"]),
    "not UTF-8": msgspec.msgpack.encode(reply(1)).replace(b"1", b"\xff"),
    "nested without end": nested(100_000),
    "a pickle": b"\x80\x04K\x01.",
}


def test_nesting_itself_is_a_message() -> None:
    """So that the frame above is refused for its depth alone."""
    batch = msgspec.msgpack.decode(nested(3), type=OutputBatch)
    assert batch.outputs[0].logprobs is not None
    assert batch.outputs[0].logprobs[0].top[0].top[0].top[0].top == []


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_a_frame_that_is_no_message_is_logged_and_dropped(
    ends: Ends, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox, outbox = ends.inbox(), ends.outbox()
    outbox.send(reply(1))
    outbox.socket.send(BAD_FRAMES[name])
    outbox.send(reply(2))
    with caplog.at_level(logging.ERROR, "radixrt.channel"):
        assert inbox.recv(WAIT_S) == reply(1)
        assert inbox.recv(WAIT_S) == reply(2)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"dropped a frame of {len(BAD_FRAMES[name])} bytes" in caplog.text


@given(st.binary(max_size=60), st.integers(0, 60), st.binary(max_size=4))
def test_no_bytes_raise_anything_else_than_undecodable(noise: bytes, at: int, patch: bytes) -> None:
    frame = msgspec.msgpack.encode(OutputBatch([RequestOutput("rid", "naïve", b"\0\0\0\0")]))
    for data in (noise, frame[:at] + patch + frame[at + len(patch) :]):
        with contextlib.suppress(UNDECODABLE):
            msgspec.msgpack.decode(data, type=ToMain)


def test_a_frame_beyond_the_limit_is_lost_and_the_sender_comes_back(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_FRAME_BYTES", 10_000)  # the real one is 256 MiB
    inbox, outbox = ends.inbox(), ends.outbox()
    largest = ControlReply("1", ok=True, message="x" * (10_000 - len(msgspec.msgpack.encode(reply(1))) - 2))
    assert len(msgspec.msgpack.encode(largest)) == 10_000
    outbox.send(largest)
    assert inbox.recv(WAIT_S) == largest
    outbox.send(ControlReply("2", ok=True, message=largest.message + "x"))
    got = None
    for i in range(3, 300):  # what is sent before ZMQ has connected again may be lost with the frame
        outbox.send(reply(i))
        got = inbox.recv(0.1)
        if got is not None:
            break
    assert got is not None
    assert got.id not in ("1", "2")


@pytest.mark.parametrize("reconnects", [True, False])
def test_a_connection_that_ended_is_made_anew_only_if_that_is_wanted(reconnects: bool) -> None:
    contexts: list[zmq.Context[Any]] = [zmq.Context() for _ in range(3)]
    sender: ZmqOutbox[Any] = ZmqOutbox(contexts[0], "tcp://127.0.0.1:*", bind=True)
    inbox: ZmqInbox[Any] = ZmqInbox(contexts[1], sender.endpoint, ToMain, bind=False, reconnects=reconnects)
    assert sender.socket.poll(WAIT_S * 1000, zmq.POLLOUT)
    contexts[0].destroy(linger=0)  # returns when the port is free
    successor: ZmqOutbox[Any] = ZmqOutbox(contexts[2], sender.endpoint, bind=True)
    came = successor.socket.poll(WAIT_S * 1000 if reconnects else 500, zmq.POLLOUT)
    assert bool(came) is reconnects
    inbox.close()
    for context in contexts[1:]:
        context.destroy(linger=0)


# --- within one thread ---


def make(kind: Any) -> Callable[[], LocalChannel[Any]]:
    return lambda: LocalChannel(kind)


@pytest.mark.parametrize("new", [make(None), make(ToScheduler)], ids=["as it is", "encoded"])
def test_a_local_channel_keeps_the_order(new: Callable[[], LocalChannel[Any]]) -> None:
    local = new()
    assert local.recv() is None
    sent = [AbortReq(str(i)) for i in range(100)]
    for message in sent:
        local.send(message)
    assert [local.recv() for _ in sent] == sent
    assert local.recv(0.01) is None


def test_a_local_channel_hands_over_the_object_itself_unless_it_encodes() -> None:
    message = AbortReq("a")
    for kind, same in ((None, True), (ToScheduler, False)):
        local: LocalChannel[Any] = LocalChannel(kind)
        local.send(message)
        received = local.recv()
        assert received == message
        assert (received is message) is same


def test_an_encoding_local_channel_refuses_what_could_not_cross() -> None:
    local: LocalChannel[Any] = LocalChannel(ToScheduler)
    with pytest.raises(msgspec.ValidationError):
        local.send(reply(1))  # not a message to the scheduler
    with pytest.raises(msgspec.ValidationError):
        local.send(AbortReq(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        local.send(AbortReq(object()))  # type: ignore[arg-type]
    assert local.recv() is None


def test_closing_a_local_channel_drops_what_it_holds() -> None:
    local: LocalChannel[Any] = LocalChannel()
    local.send(AbortReq("a"))
    local.close()
    assert local.recv() is None
