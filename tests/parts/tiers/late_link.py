"""`LateLink`: side streams between staging memory and the arena that copy as late as the test wants."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import torch

from radixrt.messages.wire import Int32Array
from radixrt.parts.tiers.runner.arena import Arena
from radixrt.parts.tiers.runner.staging import Transfer, equal_parts, parts_of


def copy_all(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for target, source in pairs:
        target.copy_(source)


class Launch:
    """Work on a stream, which is done after all earlier work of the stream and after the work that it waits for."""

    seconds = 0.5

    def __init__(self, device: Device, work: Callable[[], object], after: list[Launch]) -> None:
        self._device, self._work, self._after = device, work, after
        self.is_done = False

    def try_to_run(self) -> bool:
        if all(each.is_done for each in self._after):
            self._work()
            self.is_done = True
        return self.is_done

    def wait(self) -> None:
        while not self.is_done:
            for name in self._device.streams:
                self._device.run(name)


class Device:
    """Three streams, whose work is done when `run` is called.

    Attributes:
        late: also work on the compute stream; otherwise it is done at once.
        current: stream on which the pool is gathered and scattered.
    """

    def __init__(self) -> None:
        self.streams: dict[str, deque[Launch]] = {"compute": deque(), "out": deque(), "in": deque()}
        self.late = False
        self.current = "compute"

    def launch(self, stream: str, work: Callable[[], object], after: list[Launch] | None = None) -> Launch:
        launch = Launch(self, work, after or [])
        self.streams[stream].append(launch)
        if stream == "compute" and not self.late:
            self.run("compute")
        return launch

    def run(self, name: str, count: int = 1) -> None:
        for _ in range(min(count, len(self.streams[name]))):
            if not self.streams[name][0].try_to_run():
                return
            self.streams[name].popleft()


class LateLink(Device):
    """A link whose rows of the arena are ready, not ready, or cannot be prepared."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self.arena = arena
        self.ready: bool | OSError = True

    def mark(self) -> Launch:
        return self.launch("compute", lambda: None)

    def is_ready(self, places: Int32Array) -> bool:
        if isinstance(self.ready, OSError):
            raise self.ready
        return self.ready

    def store(self, piece: torch.Tensor, places: Int32Array, after: Launch) -> Launch:
        parts = equal_parts(piece, self.arena, places)
        return self.launch("out", lambda: [rows.copy_(staged) for staged, rows in parts], [after])

    def load(
        self, places: Int32Array, piece: torch.Tensor, after: Launch, then: Callable[[slice, torch.Tensor], None]
    ) -> Launch:
        for part, rows in parts_of(places, piece):
            self.launch("in", partial(copy_all, equal_parts(rows, self.arena, places[part])))
            self.launch("in", lambda: None, [after])
            self.current = "in"
            then(part, rows)
            self.current = "compute"
        return self.launch("in", lambda: None)

    def hold(self, transfer: Transfer) -> None:
        assert isinstance(transfer, Launch)
        if self.late:
            self.launch("compute", lambda: None, [transfer])
        else:
            transfer.wait()

    def close(self) -> None:
        for stream in self.streams.values():
            while stream:
                stream[0].wait()
