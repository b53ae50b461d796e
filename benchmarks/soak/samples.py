"""Samples of a server's processes (/proc, Linux) and of its KV slots (/metrics), and a robust slope over them."""

import asyncio
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import httpx

from benchmarks.common.machine import tree
from benchmarks.common.metrics import read_metrics

PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20
WORKER = "radixrt.engine.process"
COMPILER = "radixrt.constrained.compile"


@dataclass(frozen=True)
class Sample:
    """One moment.

    Attributes:
        seconds: since the load began.
        rss: MiB by process: resident, or its proportional share (PSS).
        fds: open file descriptors by process.
        slots: KV slots by state, free, evictable, protected and private; empty if /metrics did not answer.
    """

    seconds: float
    rss: dict[str, float] = field(default_factory=dict)
    fds: dict[str, int] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)


def take(root: int, seconds: float, metrics: Mapping[str, float], *, pss: bool = False) -> Sample:
    """Read the processes of a server now.

    Args:
        root: pid of its main process.
        metrics: its figures; see `benchmarks.common.metrics`.
        pss: divide pages among the processes that map them, such as the memory of a host tier.
    """
    rss: dict[str, float] = {}
    fds: dict[str, int] = {}
    for pid in tree(root):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            mib = _memory(pid, pss=pss)
            count = len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            continue  # it has just ended
        name = process_name(words, is_main=pid == root)
        rss[name] = rss.get(name, 0.0) + mib
        fds[name] = fds.get(name, 0) + count
    return Sample(seconds, rss, fds, kv_slots(metrics))


def _memory(pid: int, *, pss: bool) -> float:
    """Return MiB of a process."""
    if not pss:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_MIB
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def process_name(words: Sequence[str], *, is_main: bool) -> str:
    """Return the name of a process of radixrt by its command line; compilers of grammars share one name."""
    if is_main:
        return "main"
    for at, word in enumerate(words):
        if word.startswith(COMPILER):
            return "grammar compilers"
        if word == WORKER and at + 1 < len(words):
            return words[at + 1]
    return "other"


def kv_slots(metrics: Mapping[str, float]) -> dict[str, int]:
    """Return the KV slots by state."""
    slots = "radixrt_kv_slots:"
    return {name.removeprefix(slots): int(value) for name, value in metrics.items() if name.startswith(slots)}


async def watch(url: str, root: int, samples: list[Sample], interval_s: float, *, pss: bool = False) -> None:
    """Append a sample every interval, until cancelled."""
    started = time.monotonic()
    while True:
        metrics: dict[str, float] = {}
        with suppress(httpx.HTTPError):
            metrics = await asyncio.to_thread(read_metrics, url)
        samples.append(take(root, time.monotonic() - started, metrics, pss=pss))
        await asyncio.sleep(interval_s)


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Return the Theil-Sen slope, the median of the slopes of all pairs, which a few outliers do not change.

    Needs two different times; otherwise it is 0.
    """
    pairs = combinations(zip(times, values, strict=True), 2)
    slopes = [(b - a) / (at - before) for (before, a), (at, b) in pairs if at != before]
    return statistics.median(slopes) if slopes else 0.0
