"""`Watchdog`: recognizes hanging workers from samples of their heartbeats. Does no I/O and reads no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from radixrt.heartbeat import Beats
from radixrt.os_process import ProcessStat

SAMPLE_INTERVAL_S = 0.5
"""Time between two samples, in seconds. A longer gap means that the main process itself did not run."""
STOPPED_S = 2.0
"""Seconds after which a process that was stopped by a signal counts as hung, if no other process can replace it."""


@dataclass
class _Record:
    """Samples of a process since its last beat.

    Attributes:
        silent_s: seconds in which the process could run and did not beat.
        stopped_s: seconds for which the process has been stopped by a signal.
    """

    pid: int
    count: int
    cpu_s: float
    seen: float
    silent_s: float = 0.0
    stopped_s: float = 0.0


class Watchdog:
    """Measures for each process how long its loop has not advanced although the process could run.

    Only time in which the process had a chance to run counts. Between two samples, at most two intervals count: a
    longer gap means that the main process was stopped, suspended or starved, and probably the worker as well. For a
    runnable process, only the processor time counts that the process got, because on an overloaded machine a process
    waits for a core.

    Args:
        stopped_s: by process name, the seconds after which a process stopped by a signal counts as hung; processes
            without an entry have `STOPPED_S`.
    """

    def __init__(self, stopped_s: Mapping[str, float] | None = None) -> None:
        self._stopped_s = stopped_s or {}
        self._records: dict[str, _Record] = {}

    def observe(self, name: str, pid: int, beats: Beats, stat: ProcessStat, now: float) -> str | None:
        """Take a sample of a process; return how it hangs ("did not respond for 10 s"), or None if it does not.

        Args:
            now: time of a monotonic clock, in seconds.
        """
        record = self._records.get(name)
        if record is None or record.pid != pid or record.count != beats.count:
            self._records[name] = _Record(pid, beats.count, stat.cpu_s, now)
            return None
        elapsed = min(now - record.seen, 2 * SAMPLE_INTERVAL_S)
        used, record.cpu_s, record.seen = stat.cpu_s - record.cpu_s, stat.cpu_s, now
        if stat.state == "T":
            record.stopped_s += elapsed
        else:
            record.stopped_s = 0.0
            record.silent_s += min(elapsed, used) if stat.state == "R" else elapsed
        if record.stopped_s >= self._stopped_s.get(name, STOPPED_S):
            return f"was stopped by a signal for {record.stopped_s:.0f} s"
        if record.silent_s >= beats.allowance_s:
            return f"did not respond for {record.silent_s:.0f} s"
        return None
