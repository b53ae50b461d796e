"""Constraints that hang, crash or flood the worker that compiles them end alone.

Deadlines are those of a clock that only the test moves, so that no verdict depends on the speed of the machine.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from radixrt.constrained.compile import client as compile_client
from radixrt.constraint import StructuredOptions
from tests.constrained.compile.managers import (
    COMPILE_S,
    Clock,
    MakeManager,
    drain,
    request,
    until_workers_are_ready,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("two_cores")


def test_a_bomb_is_ended_and_delays_nobody(hostile: MakeManager, clock: Clock) -> None:
    manager = hostile()
    until_workers_are_ready(manager, clock)
    manager.submit(request("bomb", regex="hang"), clock.now)
    for i in range(5):
        manager.submit(request(f"r{i}", choices=["a", str(i)]), clock.now)
    ready = drain(manager, clock, 5)
    assert "bomb" not in ready
    assert all(each.grammar is not None for each in ready.values())
    clock.now += COMPILE_S
    assert manager.poll(clock.now) == []  # the worker could still give up by itself
    clock.now += compile_client.KILL_GRACE_S
    (bomb,) = manager.poll(clock.now)
    error = bomb.error
    assert error is not None
    assert (error.param, error.code, error.status) == ("regex", "compile_timeout", 400)
    assert manager.stats().timeouts == 1
    manager.submit(request("after", choices=["c", "d"]), clock.now)
    assert drain(manager, clock)["after"].grammar is not None


def test_bombs_in_both_workers_are_ended_one_after_the_other(hostile: MakeManager, clock: Clock) -> None:
    manager = hostile()
    until_workers_are_ready(manager, clock)
    for i in range(3):
        manager.submit(request(f"bomb{i}", regex=f"hang{i}"), clock.now)
    assert manager.poll(clock.now) == []
    clock.now += COMPILE_S + 1.0
    errors = [each.error for each in manager.poll(clock.now)]
    assert len(errors) == 3
    assert all(error is not None and error.code == "compile_timeout" for error in errors)
    manager.submit(request("after", choices=["c", "d"]), clock.now)
    assert drain(manager, clock)["after"].grammar is not None


def test_without_processes_what_could_hang_still_gets_one(hostile: MakeManager, clock: Clock) -> None:
    manager = hostile(inline=True)
    asked = StructuredOptions(backend="xgrammar")
    manager.submit(request("plain", regex="[a-c]{2}"), clock.now)
    assert manager.poll(clock.now)[0].grammar is not None
    assert manager.sockets() == []
    manager.submit(request("good", regex="[a-c]{3}", structured=asked), clock.now)
    manager.submit(request("also", regex="[a-c]{4}"), clock.now)
    assert [each.message.rid for each in manager.poll(clock.now)] == ["also"]
    info = drain(manager, clock)["good"].info
    assert info is not None
    assert info.backend == "xgrammar"
    until_workers_are_ready(manager, clock)
    manager.submit(request("hang", regex="hang", structured=asked), clock.now)
    clock.now += COMPILE_S + 1.0
    (hang,) = manager.poll(clock.now)
    error = hang.error
    assert error is not None
    assert (error.param, error.code) == ("regex", "compile_timeout")
    assert len(manager.sockets()) == 2


@pytest.mark.parametrize(("effect", "status"), [("crash", 400), ("eat", 400), ("defect", 500)])
def test_whatever_a_constraint_does_to_its_worker_concerns_it_alone(
    effect: str, status: int, hostile: MakeManager, clock: Clock
) -> None:
    manager = hostile()
    manager.submit(request("bad", regex=effect), clock.now)
    for i in range(3):
        manager.submit(request(f"good{i}", choices=["a", str(i)]), clock.now)
    ready = drain(manager, clock, 4)
    error = ready.pop("bad").error
    assert error is not None
    assert (error.param, error.status) == ("regex", status)
    assert all(each.grammar is not None for each in ready.values())


def test_what_libraries_print_does_not_get_between_the_frames(hostile: MakeManager, clock: Clock) -> None:
    manager = hostile()
    manager.submit(request("r", regex="noise"), clock.now)
    assert drain(manager, clock)["r"].grammar is not None


def test_a_slow_compilation_makes_way_for_running_requests(hostile: MakeManager, clock: Clock) -> None:
    manager = hostile()
    until_workers_are_ready(manager, clock)
    assert manager._client is not None
    pid = manager._client.pids[0]

    def is_stopped() -> bool:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    manager.submit(request("bomb", regex="hang"), clock.now)
    stopped = []
    for _ in range(200):
        manager.poll(clock.now, crowded=True)
        stopped.append(manager._client._workers[0].stopped)
        wait_until(lambda: is_stopped() is stopped[-1], "a signal did not reach the worker")
        clock.now += 0.005
    assert 0.5 < sum(stopped) / len(stopped) < 1.0
    assert any(now and not after for now, after in itertools.pairwise(stopped))
    manager.poll(clock.now)
    wait_until(lambda: not is_stopped(), "the worker was not let go on")
    clock.now += COMPILE_S
    error = drain(manager, clock)["bomb"].error
    assert error is not None
    assert error.code == "compile_timeout"


def test_a_request_whose_time_is_up_does_not_wait_for_its_constraint(hostile: MakeManager, clock: Clock) -> None:
    manager = hostile()
    manager.submit(request("late", timeout_s=0.5, regex="hang"), clock.now)
    manager.submit(request("later", timeout_s=1.0, regex="hang"), clock.now)
    assert manager.poll(clock.now) == []
    for rid in ("late", "later"):
        clock.now += 0.5
        (ready,) = manager.poll(clock.now)
        assert ready.message.rid == rid
        assert ready.error is not None
        assert ready.error.status == 408
    assert manager.num_pending == 0
