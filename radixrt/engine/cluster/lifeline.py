"""Connections between the main process and each of its ranks on other machines. A rank exits when its connection ends,
and the main process recognizes a lost rank by the end of the connection. Almost nothing is sent over a connection.

ZMQ's heartbeats end a connection whose other end has fallen silent. Neither end reconnects.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import zmq

from radixrt.channel import HEARTBEAT_TIMEOUT_S, Curve, ZmqInbox, ZmqOutbox
from radixrt.executor.external_executor import ConnectionWatch
from radixrt.messages.ranks import RankAddresses

ORPHAN_S = 60.0
"""Seconds that a rank waits for the next scheduler after its scheduler is gone."""
CONNECT_S = HEARTBEAT_TIMEOUT_S
"""Seconds that a rank waits for its connection after the end of the process that started the rank."""


class RankLines:
    """The main process's ends of the connections. All methods must be called by the same thread.

    Args:
        host: address at which the ranks reach this machine.
        size: number of ranks.
    """

    def __init__(self, context: zmq.Context[Any], host: str, size: int) -> None:
        keys = Curve.make()
        self._key = keys.public.decode()
        self._outboxes: list[ZmqOutbox[RankAddresses]] = [
            ZmqOutbox(context, f"tcp://{host}:*", bind=True, curve=keys) for _ in range(size)
        ]
        self._watches = [ConnectionWatch(outbox.socket, accepts=True) for outbox in self._outboxes]
        self._unsent: dict[int, RankAddresses] = {}

    def of_rank(self, rank: int) -> dict[str, str]:
        """Return the endpoint and the key with which a rank connects."""
        return {"endpoint": self._outboxes[rank].endpoint, "key": self._key}

    def sockets(self) -> list[zmq.Socket[Any]]:
        """Sockets that become readable when `lost` may have something to return."""
        return [watch.socket for watch in self._watches]

    def lost(self) -> list[int]:
        """Return the ranks whose connections have ended since the last call. Also send the pending addresses to ranks
        that have connected since. Never waits."""
        gone = [rank for rank, watch in enumerate(self._watches) if watch.lost()]
        self._send()
        return gone

    def is_connected(self, rank: int) -> bool:
        return self._watches[rank].is_connected

    def announce(self, epoch: int, addresses: str) -> None:
        """Send the addresses of an epoch's scheduler to all ranks; to ranks that have not connected yet, later.

        Args:
            addresses: JSON of `radixrt.executor.external_executor.write_addresses`.
        """
        given = json.loads(addresses)
        for rank in range(len(self._outboxes)):
            self._unsent[rank] = RankAddresses(epoch, given["ranks"][str(rank)], given["answers"], given["key"])
        self._send()

    def _send(self) -> None:
        for rank in [rank for rank in self._unsent if self.is_connected(rank)]:
            self._outboxes[rank].send(self._unsent.pop(rank))

    def close(self) -> None:
        """End the connections, which ends the ranks."""
        for watch in self._watches:
            watch.socket.close()
        for outbox in self._outboxes:
            outbox.close()


class Lifeline:
    """A rank's end of the connection. Exits the process when the connection ends.

    The process that started the rank keeps the rank's standard input open. After standard input has ended, the rank
    exits unless it is connected, or connects within `CONNECT_S`.

    Args:
        endpoint, key: from `RankLines.of_rank`.
    """

    def __init__(self, context: zmq.Context[Any], endpoint: str, key: str) -> None:
        self._inbox: ZmqInbox[RankAddresses] = ZmqInbox(
            context, endpoint, RankAddresses, bind=False, curve=Curve.make(server=key.encode()), reconnects=False
        )
        self._watch = ConnectionWatch(self._inbox.socket, accepts=False)
        self._latest: RankAddresses | None = None
        self._news = threading.Condition()
        self._connected = threading.Event()  # set by the thread that alone reads the watch
        threading.Thread(target=self._serve, name="radixrt-lifeline", daemon=True).start()
        threading.Thread(target=self._watch_stdin, name="radixrt-stdin", daemon=True).start()

    def addresses(self, after: int = -1, timeout_s: float | None = None) -> RankAddresses | None:
        """Wait for the addresses of an epoch later than `after`; None if none arrive within timeout_s."""
        with self._news:
            self._news.wait_for(lambda: self._epoch > after, timeout_s)
            return self._latest if self._epoch > after else None

    def ended(self, epoch: int) -> bool:
        """Return True if there is a later epoch."""
        return self._epoch > epoch

    @property
    def _epoch(self) -> int:
        return -1 if self._latest is None else self._latest.epoch

    def exit_without_scheduler(self, epoch: int, watches: Sequence[ConnectionWatch]) -> None:
        """Start a thread that exits the process if a connection to an epoch's scheduler ends and no later epoch
        follows, because messages may be missing.

        Args:
            watches: watches of the rank's sockets; the thread closes the watches when the epoch has ended.
        """

        def guard() -> None:
            poller = zmq.Poller()
            for watch in watches:
                poller.register(watch.socket, zmq.POLLIN)
            while not self.ended(epoch):
                poller.poll(1000)
                if any(watch.lost() for watch in watches) and self.addresses(epoch, ORPHAN_S) is None:
                    exit_with_error("the connection to the scheduler has ended, and no other scheduler came")
            for watch in watches:
                watch.socket.close()

        threading.Thread(target=guard, name=f"radixrt-scheduler-{epoch}", daemon=True).start()

    def _watch_stdin(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stdin.read()
        if not self._connected.wait(CONNECT_S):
            exit_with_error("whoever started this rank is gone, and the main process cannot be reached")

    def _serve(self) -> NoReturn:
        poller = zmq.Poller()
        for readable in (self._inbox.socket, self._watch.socket):
            poller.register(readable, zmq.POLLIN)
        while True:
            poller.poll()
            while (message := self._inbox.recv()) is not None:
                with self._news:
                    self._latest = message
                    self._news.notify_all()
            if self._watch.lost():
                os._exit(0)
            if self._watch.is_connected:
                self._connected.set()


def exit_with_error(why: str) -> NoReturn:
    """Exit the process with code 1 at once, from any thread."""
    with contextlib.suppress(OSError):  # the reader of stderr may be gone as well
        print(f"radixrt: {why}", file=sys.stderr, flush=True)
    os._exit(1)
