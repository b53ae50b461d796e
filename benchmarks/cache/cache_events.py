"""Table "Cache events" of docs/benchmarks.md: the scheduler's time per step, with and without a reader of its tree.

The real scheduler on a simulated device (`benchmarks.common.simulated_engine`) that answers at once: prompts of 1,088
tokens with one of 64 prefixes of 1,024, 32 output tokens each, batches of 64, in a pool that evicts all the time. Times
are processor time of everything that the scheduler does, per step, and of making the messages and encoding them.

    nobody     no reader
    watched    a reader that acknowledges at once, of events alone (a router)
    a page     the same, of events and requests (/ui)
    stuck      a reader that never acknowledges: after one window, here of 4,096 events, the stream rests

Then a snapshot of a tree of 100,000 nodes: its slices, and the longest one, which is what it adds to a step at most.

Run: python -m benchmarks.cache.cache_events
"""

from __future__ import annotations

import argparse
import time

import msgspec
import numpy as np

from benchmarks.cache.radix_cache import Workload, build
from benchmarks.common.simulated_engine import SimulatedDevice, SimulatedEngine, SimulatedRequest
from benchmarks.common.tables import table
from radixrt.bench.result import percentile
from radixrt.mem_cache import RadixCache, TokenToKVPoolAllocator
from radixrt.mem_cache.cache_journal import CacheJournal
from radixrt.messages.cache_events import CacheAck, CacheEvents, WatchCacheReq
from radixrt.messages.scheduler_stats import StepTimes
from radixrt.parts.watch.scheduler import SLICE_TOKENS, WINDOW, CacheStream

MODES = ("nobody", "watched", "a page", "stuck")
INSTANT = StepTimes(1e-9, 0.0, 0.0, 0.0, 0.0, 0.0)


class WatchedEngine(SimulatedEngine):
    """A simulated engine whose every turn ends with that of a stream, as in the scheduler's loop."""

    def __init__(self, mode: str) -> None:
        super().__init__(SimulatedDevice(INSTANT, num_slots=64 * 1024 + 64 * 1200), max_queued_requests=10**6)
        self.stream = CacheStream(self.scheduler.core)
        self.encode = msgspec.msgpack.Encoder().encode
        self.acknowledges = mode != "stuck"
        if mode == "stuck":
            self.stream.window = 4096
        self.bytes = self.events = 0
        if mode != "nobody":
            self.stream.handle(WatchCacheReq(True, mode == "a page"))

    def take(self) -> None:
        super().take()
        if not self.stream.is_on:
            return
        for message in self.stream.turn(time.monotonic()):
            self.bytes += len(self.encode(message))
            if isinstance(message, CacheEvents):
                self.events += len(message.events)
                if self.acknowledges:
                    self.stream.handle(CacheAck(message.seq))


def run(mode: str, requests: list[SimulatedRequest]) -> tuple[float, WatchedEngine]:
    """Play the requests; returns seconds of the processor for each step, and the engine."""
    engine = WatchedEngine(mode)
    started = time.process_time()
    engine.run(requests)
    return (time.process_time() - started) / engine.steps, engine


def snapshot(nodes: int) -> list[float]:
    """Seconds of each slice of a snapshot."""
    cache = RadixCache(TokenToKVPoolAllocator(64 * 1024 + 64 * nodes + 4096, 1))
    build(cache, Workload(64), nodes)
    journal, times = CacheJournal(), []
    started = time.perf_counter()
    journal.begin(cache)
    cache.watch(journal)
    while not journal.is_complete:
        journal.visit(cache, SLICE_TOKENS, WINDOW // 2)
        msgspec.msgpack.encode(CacheEvents(1, cache.clock, False, journal.events))
        journal.events = []
        times.append(time.perf_counter() - started)
        started = time.perf_counter()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    workload = Workload(64)
    requests = [SimulatedRequest(0.0, workload.key(i).astype(np.int32), 32, 32) for i in range(args.requests)]
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    engines = {}
    for _ in range(args.rounds):
        for mode in MODES:
            seconds, engines[mode] = run(mode, requests)
            times[mode].append(seconds)
    rows = []
    for mode in MODES:
        engine, median = engines[mode], percentile(times[mode], 50)
        rows.append(
            [
                mode,
                f"{1e6 * median:.0f}",
                f"{1e6 * min(times[mode]):.0f} to {1e6 * max(times[mode]):.0f}",
                f"{engine.events / args.requests:.1f}",
                f"{engine.bytes / args.requests:.0f}",
            ]
        )
    print(table(["reader", "µs/step", "of the rounds", "events/request", "bytes/request"], rows))
    slices = snapshot(100_000)
    print(
        f"\nsnapshot of 100,000 nodes: {len(slices)} slices, {1e3 * sum(slices):.0f} ms in all, "
        f"median {1e3 * percentile(slices, 50):.1f} ms, longest {1e3 * max(slices):.1f} ms"
    )


if __name__ == "__main__":
    main()
