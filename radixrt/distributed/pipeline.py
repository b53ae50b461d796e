"""`StageLinks`: one rank's connections to its counterparts in the pipeline stages before and behind its own.

Each pair of counterparts has a process group of its own, so that on CUDA its transfers have a communicator and a stream
of their own: they run beside the collectives and the computation of both stages. Every step's hidden states lie in
memory of their own, which is freed when they have been sent or computed on; nothing that a CUDA graph writes is ever
sent or received.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from radixrt.distributed.rank_info import RankInfo

MAX_CTAS = 8
"""Most blocks of a GPU that one transfer takes. A receiver waits on the GPU while the stage before it computes."""


class StageLinks:
    """See the module's docstring. Without neighbours it does nothing.

    Args:
        before, behind: rank and process group of the counterpart in the stage before and the one behind; None on the
            first and the last stage.
        kept: number of steps whose hidden states may be on their way at once; the next one waits for the oldest.
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
        """True if no stage is behind this one."""
        return self._behind is None

    def receive(self, allocate: Callable[[], torch.Tensor | None]) -> torch.Tensor | None:
        """Return what the stage before has computed for a step; None on the first stage.

        On CUDA only the current stream waits for it, and what that stream has yet to compute does not delay it.

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
        """Begin to send what this stage has computed for a step to the next one, if there is one.

        Args:
            hidden: contiguous; the caller never writes it again.
        """
        if self._behind is None:
            return
        if len(self._sent) == self._kept:
            departure, _ = self._sent[0]
            departure.wait()  # on CUDA the current stream waits, which then may use the memory again
            self._sent.popleft()
        rank, group = self._behind
        self._sent.append((dist.isend(hidden, rank, group), hidden))

    def close(self) -> None:
        """Wait until everything is sent."""
        while self._sent:
            self._sent.popleft()[0].wait()


def _begin_receiving(allocate: Callable[[], torch.Tensor | None], rank: int, group: Any) -> tuple[torch.Tensor, Any]:
    """Return memory that a counterpart's hidden states will be in, and the transfer to wait for."""
    received = allocate()
    assert received is not None, "the first stage receives nothing"
    return received, dist.irecv(received, rank, group)


def connect_stages(info: RankInfo, device: torch.device) -> StageLinks:
    """Connect a rank to its counterparts; a collective call of all ranks, which have joined their group."""
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
