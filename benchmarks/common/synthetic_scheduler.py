"""A real scheduler with a large tree and many requests, on a device that answers at once, for whoever watches it."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.common.simulated_engine import Life, SimulatedDevice, SimulatedEngine, SimulatedRequest
from radixrt.messages.cache_events import FromWatched, ToWatched
from radixrt.messages.parts import ProgramHint
from radixrt.messages.request import Request
from radixrt.messages.scheduler_stats import StepTimes
from radixrt.messages.wire import pack_i32
from radixrt.parts.watch.scheduler import CacheStream
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.kv_manager import KVManager

INSTANT = StepTimes(1e-9, 0.0, 0.0, 0.0, 0.0, 0.0)


class SyntheticScheduler(SimulatedEngine):
    """Prompts of a few apps, each followed by documents and questions, as programs send them.

    Args:
        nodes: nodes of the tree before the first request, at least.
        running, waiting: requests that are kept in these states by `step`.
        num_slots: slots of the pool; default: room for the nodes and the requests.
        program: beginning of the names of programs.
    """

    def __init__(
        self, nodes: int, running: int, waiting: int = 0, *, num_slots: int = 0, seed: int = 0, program: str = "program"
    ) -> None:
        slots = num_slots or 24 * nodes + 1200 * (running + waiting) + 4096
        device = SimulatedDevice(INSTANT, num_slots=slots, noise=0.0, slow_share=0.0)
        super().__init__(device, seed, max_running_requests=max(running, 1), max_queued_requests=10**6)
        self.stream = CacheStream(self.scheduler.core)
        self._target = running + waiting
        self._random = np.random.default_rng(seed)
        self._sent = 0
        self._program = program
        self._fill(self.scheduler.kv, nodes)

    def _fill(self, kv: KVManager, nodes: int) -> None:
        for _ in range(nodes):
            key = self._prompt()
            slots = kv.allocator.alloc_extend(0, len(key), 0)
            if slots is None:
                return
            found = kv.cache.insert(key, slots)
            if found.existing_len:
                kv.allocator.free(slots[: found.existing_len])

    def _prompt(self) -> np.ndarray:
        """An app of 1 in 40, a document of 1 in 12 and a question: int32."""
        app, document = int(self._random.zipf(1.6)) % 40, int(self._random.zipf(1.4)) % 12
        question = self._random.integers(2, 900, int(self._random.integers(4, 40)), dtype=np.int32)
        lengths = np.random.default_rng(1000 * app + document)
        shared = [np.full(60 + 9 * app, 100 + app), np.full(int(lengths.integers(20, 200)), 200 + document)]
        return np.concatenate([*shared, question]).astype(np.int32)

    def step(self) -> None:
        """Send requests up to the target, and let the device compute one step."""
        self.now = max(self.now, time.monotonic())
        for rid in [rid for rid, life in self.lives.items() if life.finish is not None]:
            del self.lives[rid]
        while len(self.lives) < self._target:
            prompt, rid = self._prompt(), f"req-{self._sent:05d}"
            most = int(self._random.integers(20, 400))
            hint = ProgramHint(f"{self._program}-{self._sent // 6}", f"0/{self._sent % 6}", 60, 6, self._sent % 6 == 0)
            self.lives[rid] = Life(SimulatedRequest(self.now, prompt, most, most), 0.0)
            message = Request.generate(
                rid, pack_i32(prompt), SamplingParams(max_tokens=most, temperature=0.0), program=hint
            )
            self.scheduler.intake.add(message, self.now)
            self._sent += 1
        self.advance(self.now)
        self.take()

    def handle(self, message: ToWatched) -> list[FromWatched]:
        return self.stream.handle(message)

    def turn(self) -> list[FromWatched]:
        """Messages to the reader, as in the scheduler's loop."""
        return self.stream.turn(time.monotonic()) if self.stream.is_on else []
