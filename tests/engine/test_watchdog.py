"""`Watchdog` on a simulated clock: what is a hang, and what is not."""

from __future__ import annotations

from radixrt.engine.watchdog import SAMPLE_INTERVAL_S, STOPPED_S, Watchdog
from radixrt.heartbeat import Beats
from radixrt.os_process import ProcessStat

BASE_S = 10.0


class Bench:
    """A watched process. Times are seconds of a clock that only `run` advances."""

    def __init__(self) -> None:
        self.watchdog = Watchdog()
        self.now = 100.0
        self.cpu_s = 0.0
        self.count = 0
        self.pid = 7

    def run(
        self, seconds: float, *, state: str = "S", beats: bool = False, cpu: float = 0.0, allowance_s: float = BASE_S,
        interval_s: float = SAMPLE_INTERVAL_S,
    ) -> tuple[float, str] | None:  # fmt: skip
        """Let time pass; return when and how the process was found to hang."""
        end = self.now + seconds
        begun = self.now
        while self.now < end:
            self.now += interval_s
            self.cpu_s += cpu * interval_s
            self.count += beats
            stat = ProcessStat(state, 1, self.cpu_s, 1)
            found = self.watchdog.observe("runner", self.pid, Beats(self.count, allowance_s), stat, self.now)
            if found is not None:
                return self.now - begun, found
        return None


def test_a_process_that_advances_never_hangs() -> None:
    bench = Bench()
    assert bench.run(1000, beats=True) is None
    assert bench.run(1000, beats=True, state="R", cpu=1.0) is None


def test_a_stopped_process_is_noticed_within_four_seconds() -> None:
    bench = Bench()
    bench.run(5, beats=True)
    after, how = bench.run(60, state="T")  # type: ignore[misc]
    assert STOPPED_S <= after <= 4
    assert "stopped by a signal" in how


def test_a_process_that_another_one_stands_in_for_may_be_stopped_for_longer() -> None:
    bench = Bench()
    bench.watchdog = Watchdog({"runner": 30.0})
    bench.run(5, beats=True)
    assert bench.run(29, state="T") is None
    assert bench.run(3, state="T") is not None


def test_a_process_that_was_stopped_for_a_moment_goes_on() -> None:
    bench = Bench()
    for _ in range(20):
        assert bench.run(STOPPED_S - SAMPLE_INTERVAL_S, state="T") is None
        assert bench.run(1, beats=True) is None


def test_a_stuck_process_is_noticed_within_fifteen_seconds() -> None:
    for state, cpu in (("S", 0.0), ("D", 0.0), ("R", 1.0), ("R", 8.0), ("t", 0.0)):
        bench = Bench()
        bench.run(5, beats=True)
        after, how = bench.run(60, state=state, cpu=cpu)  # type: ignore[misc]
        assert BASE_S <= after <= 15, state
        assert "did not respond" in how


def test_a_long_step_has_the_allowance_that_it_announced() -> None:
    bench = Bench()
    bench.run(5, beats=True)
    assert bench.run(100, state="R", cpu=1.0, allowance_s=120.0) is None
    assert bench.run(40, state="R", cpu=1.0, allowance_s=120.0) is not None


def test_time_in_which_main_did_not_run_does_not_count() -> None:
    bench = Bench()
    bench.run(5, beats=True)
    assert bench.run(3600, interval_s=3600.0) is None, "stopped, suspended: one sample after an hour"
    assert bench.run(5) is None
    assert bench.run(10) is not None


def test_a_process_that_waits_for_a_core_on_an_overloaded_machine_does_not_hang() -> None:
    bench = Bench()
    bench.run(5, beats=True)
    assert bench.run(90, state="R", cpu=0.1) is None
    assert bench.run(30, state="R", cpu=0.1) is not None, "it has had ten seconds of a core by now"


def test_a_new_process_begins_anew() -> None:
    bench = Bench()
    bench.run(9, state="S")
    bench.pid = 8
    assert bench.run(9, state="S") is None
