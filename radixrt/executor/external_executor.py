"""`ExternalLauncherExecutor`: runs steps on ranks that torchrun or SLURM started, on this machine or on others.

Ranks have the launcher's numbers, in which rank 0 is the answering rank (`rank_from_environment`). The ModelRunner of
rank 0 is a child process of the engine; the other ranks connect over TCP, with keys from the store of
torch.distributed's rendezvous. Steps are sent as messages instead of broadcasts in the process group, so that an idle
rank can wait for a message without a timeout, and rank 0's ModelRunner spends no time on the other ranks.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from radixrt.channel import Curve, ZmqInbox, ZmqOutbox
from radixrt.errors import ConfigError, EngineError
from radixrt.executor.multiproc_executor import MultiprocExecutor, RankEndpoints
from radixrt.messages.runner import FromRunner, ToRunner

REFUSED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
"""Events that ZMQ usually reports right before it closes a connection whose peer failed to authenticate."""


_NUMBERS = itertools.count()
"""Numbers for addresses of monitors. pyzmq would derive an address from the watched socket's descriptor, but a new
socket may get the descriptor of a closed socket before ZMQ has released the old address."""


class ConnectionWatch:
    """Detects that the peer of a socket is gone; ignores peers that never authenticated.

    Args:
        accepts: the socket is the binding end, and has no connection yet.

    Attributes:
        is_connected: a connection had authenticated when `lost` last returned, and had not ended.
    """

    def __init__(self, watched: zmq.Socket[Any], *, accepts: bool) -> None:
        events = REFUSED | zmq.EVENT_DISCONNECTED | zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
        self.socket = watched.get_monitor_socket(events, f"inproc://connection-watch-{next(_NUMBERS)}")
        self._accepts = accepts
        self._strangers: set[int] = set()  # descriptors of connections accepted since the last authentication
        self._refused = False
        self.is_connected = False

    def lost(self) -> bool:
        """Return whether an authenticated connection has ended since the last call. Never waits."""
        while True:
            try:
                message = parse_monitor_message(self.socket.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return False
            # A disconnection counts only if the connection had authenticated. ZMQ reports a refusal right before the
            # disconnection, and the binding end may have accepted connections that never authenticated.
            event, descriptor = message["event"], message["value"]
            refused, self._refused = self._refused, bool(event & REFUSED)
            if event == zmq.EVENT_ACCEPTED:
                self._strangers.add(descriptor)
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:  # the event does not name the connection
                self._strangers.clear()
                self.is_connected = True
            elif event == zmq.EVENT_DISCONNECTED:
                stranger = refused or (self._accepts and descriptor in self._strangers)
                self._strangers.discard(descriptor)
                if not stranger:
                    self.is_connected = False
                    return True


class ExternalLauncherExecutor(MultiprocExecutor):
    """Reaches rank 0 like the base class. Opens a TCP port for every other rank, and a port for the messages of these
    ranks.

    Args:
        rank_endpoint, answer_endpoint, mask_path: for rank 0, see the base class.
        host: name or address at which the other ranks reach this machine; no other address is bound.
        size: number of ranks.
        address_file: file that is written when the ports are open, for rank 0's runner to publish.

    Raises:
        ConfigError: host is not an address of this machine.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        rank_endpoint: str,
        answer_endpoint: str,
        *,
        mask_path: str,
        host: str,
        size: int,
        address_file: str,
    ) -> None:
        own = RankEndpoints([rank_endpoint], answer_endpoint)
        super().__init__(context, lambda epoch: own, mask_path=mask_path)
        keys = Curve.make()
        try:
            anywhere = f"tcp://{socket.gethostbyname(host)}:*"
            self._remote: ZmqInbox[FromRunner] = ZmqInbox(context, anywhere, FromRunner, curve=keys)
            others: list[ZmqOutbox[ToRunner]] = [
                ZmqOutbox(context, anywhere, bind=True, curve=keys) for _ in range(1, size)
            ]
        except (OSError, zmq.ZMQError) as error:
            raise ConfigError(
                f"cannot listen on {host}: {error}; MASTER_ADDR must be rank 0's own address, which the others reach"
            ) from error
        self._ranks += others
        self._watches = {rank: ConnectionWatch(other.socket, accepts=True) for rank, other in enumerate(others, 1)}
        self._poller = zmq.Poller()
        for readable in (self._remote.socket, *(watch.socket for watch in self._watches.values())):
            self._poller.register(readable, zmq.POLLIN)
        endpoints = {rank: other.endpoint for rank, other in enumerate(others, 1)}
        write_addresses(address_file, endpoints, self._remote.endpoint, keys)

    def take(self, timeout_s: float = 0.0) -> FromRunner | None:
        """Same as in the base class; also returns the messages by which other ranks report that they are ready or have
        failed.

        Raises:
            EngineError: a rank is gone.
        """
        message = super().take(timeout_s)
        if message is not None or not self._poller.poll(0):
            return message
        if (message := self._remote.recv()) is not None:
            return message
        self.check_ranks()
        return None

    def check_ranks(self) -> None:
        for rank, watch in self._watches.items():
            if watch.lost():
                raise EngineError(f"the process of rank {rank} is gone; its own output says why")

    def restart(self, epoch: int) -> None:
        raise EngineError("ranks that were started externally cannot be restarted")

    @property
    def is_restartable(self) -> bool:
        return False

    def close(self) -> None:
        for watch in self._watches.values():
            watch.socket.close()
        self._remote.close()
        super().close()


def write_addresses(path: str, ranks: dict[int, str], answers: str, keys: Curve) -> None:
    """Write the data with which ranks connect, as JSON: endpoint of each rank, endpoint of the answers, and the public
    key.

    The file is readable by this user alone, and appears under its name when it is complete.
    """
    addresses = {"answers": answers, "ranks": ranks, "key": keys.public.decode()}
    with open(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(json.dumps(addresses))
    os.rename(f"{path}.new", path)
