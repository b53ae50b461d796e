"""`StageLinks`: a rank's connections to the same tensor-parallel rank of the previous and the next pipeline stage.

Each connected pair of ranks has a separate process group. On CUDA the transfers of a pair therefore have a separate
communicator and stream, and overlap with the collectives and the computation of both stages. A pair transfers in one
direction only, so nothing waits for an opposite transfer of the same communicator. The hidden states of each step are
in newly allocated memory, which is freed after they have been sent or used. Static buffers of CUDA graphs are never
sent or received.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from radixrt.distributed.rank_info import RankInfo

NCCL_WARNING = "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING"
"""Environment variable of torch. torch warns at the first send of a process group that transfers of the group are
serialized; transfers of one direction are meant to be."""

MAX_CTAS = 8
"""Maximum number of thread blocks of a transfer: a receive occupies the GPU while the previous stage computes."""


class StageLinks:
    """See the module's docstring. Without neighbours, the methods do nothing.

    Args:
        before, behind: rank and process group of the counterpart in the previous and in the next stage; None on the
            first and on the last stage.
        kept: maximum number of steps whose hidden states are being sent at once; a further step waits for the oldest.
    """

    def __init__(
        self, before: tuple[int, Any] | None, behind: tuple[int, Any] | None, device: torch.device, kept: int = 1
    ) -> None:
        self._before, self._behind, self._kept = before, behind, kept
        self._sent: deque[tuple[Any, torch.Tensor]] = deque()
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda" and before is not None:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def is_last(self) -> bool:
        """True for the last stage."""
        return self._behind is None

    def receive(self, allocate: Callable[[], torch.Tensor | None]) -> torch.Tensor | None:
        """Return the hidden states that the previous stage computed for a step; None on the first stage.

        On CUDA, the current stream waits for the transfer and the host does not. The transfer does not wait for work
        that is queued on the current stream.

        Args:
            allocate: returns the memory to receive into.
        """
        if self._before is None:
            return None
        if self._stream is None:
            received, arrival = _begin_receiving(allocate, *self._before)
            arrival.wait()
            return received
        with torch.cuda.stream(self._stream):
            received, arrival = _begin_receiving(allocate, *self._before)
        arrival.wait()
        received.record_stream(torch.cuda.current_stream(received.device))
        return received

    def send(self, hidden: torch.Tensor) -> None:
        """Begin to send a step's hidden states to the next stage. Does nothing on the last stage.

        Args:
            hidden: contiguous; the caller must never write to this memory again.
        """
        if self._behind is None:
            return
        if len(self._sent) == self._kept:
            departure, _ = self._sent[0]
            departure.wait()  # on CUDA the current stream waits, and may then use the memory again
            self._sent.popleft()
        rank, group = self._behind
        self._sent.append((dist.isend(hidden, rank, group), hidden))

    def close(self) -> None:
        """Wait until all hidden states have been sent."""
        while self._sent:
            self._sent.popleft()[0].wait()


def _begin_receiving(allocate: Callable[[], torch.Tensor | None], rank: int, group: Any) -> tuple[torch.Tensor, Any]:
    """Return memory for the hidden states of a counterpart, and the transfer to wait for."""
    received = allocate()
    assert received is not None, "the first stage receives nothing"
    return received, dist.irecv(received, rank, group)


def connect_stages(info: RankInfo, device: torch.device) -> StageLinks:
    """Connect a rank to its counterparts. A collective call of all ranks, after `join`."""
    os.environ.setdefault(NCCL_WARNING, "0")
    links: dict[int, tuple[int, Any]] = {}
    for first in range(info.size - info.tp if info.stages > 1 else 0):
        pair = [first, first + info.tp]
        group = dist.new_group(pair, pg_options=_transfer_options() if device.type == "cuda" else None)
        if info.rank in pair:
            other = pair[1 - pair.index(info.rank)]
            links[other] = other, group
    return StageLinks(links.get(info.rank - info.tp), links.get(info.rank + info.tp), device, kept=info.stages)


def _transfer_options() -> Any:
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.max_ctas = MAX_CTAS
    return options
