"""The plan finds the load at which programs take too long, and how many GPUs carry it."""

from __future__ import annotations

import argparse

from benchmarks.fleet.plan import FLEETS, Point, SimulatedFleet, capacity, measure, plan, traffic


def point(rate: float, program: float) -> Point:
    return Point(rate, program, 0.0, 0.0, 0.0, 1e-4, 6.0, 1000.0, 50.0)


def test_the_capacity_lies_between_the_rates_on_both_sides_of_the_limit() -> None:
    points = [point(1.0, 2.0), point(2.0, 4.0), point(3.0, 8.0)]
    assert capacity(points, 5.0) == 2.25
    assert capacity(points, 9.0) is None
    options = argparse.Namespace(users=9000, period=100.0)
    assert plan([(FLEETS[0], points, 2.25), (FLEETS[1], points, None)], options) == [
        [FLEETS[0].name, "2.25", "40"], [FLEETS[1].name, "-", "-"],
    ]  # fmt: skip


def test_traffic_is_that_of_all_users() -> None:
    text = traffic(point(1.0, 1.0), 100.0)
    assert "100 programs/s, 600 calls/s, 0.6 M prompt and 0.03 M output tokens/s" in text
    assert "to the replicas 0.02 Gb/s" in text


def test_longer_steps_make_longer_programs() -> None:
    usual, longer = (measure(SimulatedFleet("priced", 1, (), step), 1.0, 3.0, 0) for step in (1.0, 1.5))
    assert longer.program > 1.3 * usual.program
    assert usual.output == 96
    assert usual.router_s > 0
