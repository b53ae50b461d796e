"""`RayDistributedExecutor`: runs steps on ranks that agents of a Ray cluster started, on this machine or on others.

Ray places, starts and watches the ranks (`radixrt.engine.cluster`); nothing that happens per step goes through it. The
ranks connect to the scheduler over TCP, with new keys in each epoch. The main process notices the loss of a rank and
restarts all ranks, as for ranks on its own machine.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from radixrt.channel import Curve
from radixrt.errors import ConfigError
from radixrt.executor.external_executor import write_addresses
from radixrt.executor.multiproc_executor import MultiprocExecutor, RankEndpoints
from radixrt.messages.runner import GrammarMask


class RayDistributedExecutor(MultiprocExecutor):
    """Opens a TCP port for each rank, and a port for the messages of the ranks.

    Args:
        host: address at which the other nodes of the cluster reach this machine; no other address is bound.
        size: number of ranks.
        address_file: returns the path of an epoch's file, which is written once the ports are open; the main process
            passes its content to the ranks.
        epoch, answering: see the base class. The answering rank also samples, so no other rank reads grammar masks.

    Raises:
        ConfigError: host is not an address of this machine.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        *,
        host: str,
        size: int,
        address_file: Callable[[int], str],
        epoch: int,
        answering: int = 0,
    ) -> None:
        anywhere = f"tcp://{socket.gethostbyname(host)}:*"
        self._host = host
        self._address_file = address_file
        super().__init__(
            context,
            lambda epoch: RankEndpoints([anywhere] * size, anywhere, Curve.make()),
            epoch=epoch,
            mask_path=None,
            answering=answering,
        )

    def _connect(self, epoch: int) -> None:
        try:
            super()._connect(epoch)
        except zmq.ZMQError as error:
            raise ConfigError(f"cannot listen on {self._host}, this machine's address in Ray: {error}") from error
        assert self._keys is not None
        endpoints = {rank: outbox.endpoint for rank, outbox in enumerate(self._ranks)}
        write_addresses(self._address_file(epoch), endpoints, self._answers.endpoint, self._keys)

    def send_mask(self, mask: GrammarMask) -> None:
        """Send the mask to the sampling rank. The other ranks wait for the mask too, and get a message without
        content."""
        content = self._encoder.encode(mask)
        notice = self._encoder.encode(msgspec.structs.replace(mask, bits=b"")) if mask.bits else content
        for rank, outbox in enumerate(self._ranks):
            outbox.send_frame(content if rank == self._answering else notice)
