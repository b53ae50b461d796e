"""Connections between nodes that are half open: no byte passes, and neither end closes. Both notice by heartbeats."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import zmq

from radixrt.channel import Curve, ZmqInbox, ZmqOutbox
from radixrt.executor.external_executor import ConnectionWatch
from radixrt.messages.runner import ForwardStep, ToRunner
from tests.server_process import wait_for

PIECE = 65536


class StallingProxy:
    """Forwards one TCP connection to a port of this machine until `stall` is called; then it keeps it open, and reads
    and writes nothing.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._stalled = threading.Event()
        self._ends: list[socket.socket] = []
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def stall(self) -> None:
        self._stalled.set()

    def close(self) -> None:
        for end in (self._listener, *self._ends):
            end.close()

    def _serve(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", self._target))
        self._ends += [near, far]
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        while not self._stalled.is_set() and (piece := source.recv(PIECE)) and not self._stalled.is_set():
            target.sendall(piece)


class Link:
    """The scheduler's and the rank's end of a link for steps, through a proxy."""

    def __init__(self) -> None:
        context, keys = zmq.Context.instance(), Curve.make()
        self.outbox: ZmqOutbox[ToRunner] = ZmqOutbox(context, "tcp://127.0.0.1:*", bind=True, curve=keys)
        self.proxy = StallingProxy(int(self.outbox.endpoint.rpartition(":")[2]))
        self.inbox: ZmqInbox[ToRunner] = ZmqInbox(
            context, self.proxy.endpoint, ToRunner, bind=False, curve=Curve.make(server=keys.public), reconnects=False
        )
        self.watches = [
            ConnectionWatch(self.outbox.socket, accepts=True), ConnectionWatch(self.inbox.socket, accepts=False)
        ]  # fmt: skip

    def close(self) -> None:
        for watch in self.watches:
            watch.socket.close()
        self.inbox.close()
        self.outbox.close()
        self.proxy.close()


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    monkeypatch.setattr("radixrt.channel.HEARTBEAT_INTERVAL_S", 0.1)
    monkeypatch.setattr("radixrt.channel.HEARTBEAT_TIMEOUT_S", 0.5)
    link = Link()
    yield link
    link.close()


@pytest.mark.parametrize("waiting", [0, 300], ids=["idle", "full"])
def test_both_ends_notice_a_half_open_connection(link: Link, waiting: int) -> None:
    assert wait_for(lambda: not any(watch.lost() for watch in link.watches) and link.watches[0].is_connected)
    step = ForwardStep(1, 0, b"", b"", b"")
    link.outbox.send(step)
    assert link.inbox.recv(None) == step
    link.proxy.stall()
    for _ in range(waiting):  # more than the kernel's buffers hold, so that no heartbeat fits behind it
        link.outbox.send_frame(bytes(PIECE))
    lost = [False, False]

    def both() -> bool:
        for i, watch in enumerate(link.watches):
            lost[i] |= watch.lost()
        return all(lost)

    assert wait_for(both)
