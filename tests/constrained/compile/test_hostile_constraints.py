"""Constraints that hang, crash or flood the worker that compiles them end alone.

Deadlines are those of a clock that only the test moves, so that no verdict depends on the speed of the machine.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from radixrt.constrained.compile import client as compile_client
from radixrt.constrained.compile.grammar_manager import GrammarManager
from radixrt.constraint import StructuredOptions
from radixrt.os_process import read_stat
from tests.constrained.compile.managers import (
    COMPILE_S,
    Clock,
    MakeManager,
    client_of,
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


def test_bombs_of_one_tenant_wait_for_one_another_and_neighbours_for_none(hostile: MakeManager, clock: Clock) -> None:
    """The clock moves by the time of a short job only, so that no verdict depends on the speed of the machine."""
    manager = hostile()
    until_workers_are_ready(manager, clock)
    for i in range(12):
        manager.submit(request(f"bomb{i}", tenant="attacker", regex=f"hang{i}"), clock.now)
    for i in range(20):
        manager.submit(request(f"n{i}", tenant="neighbour", choices=["a", str(i)]), clock.now)
        (ready,) = drain(manager, clock).values()
        assert (ready.message.rid, ready.error) == (f"n{i}", None)
        clock.now += compile_client.SHORT_S
    held = [worker.job.tenant for worker in client_of(manager)._long_workers() if worker.job is not None]
    assert held == ["attacker"]
    # A constraint that takes longer than a short job's time shares the processor with the attacker's bomb.
    manager.submit(request("long", tenant="neighbour", regex="hang"), clock.now)
    for _ in range(3):
        assert manager.poll(clock.now) == []
        clock.now += compile_client.SHORT_WAIT_S
    ran = set()
    for _ in range(20):
        manager.poll(clock.now)
        jobs = [(worker.job, worker.stopped) for worker in client_of(manager)._long_workers()]
        running = [job.tenant for job, stopped in jobs if job is not None and not stopped]
        assert len(running) == 1
        ran |= set(running)
        clock.now += compile_client.SLICE_EVERY_S
    assert ran == {"attacker", "neighbour"}


def test_waiting_is_not_compiling(hostile: MakeManager, clock: Clock) -> None:
    """Bombs before a constraint do not use up its time, and each bomb has its own."""
    manager = hostile(default_timeout_s=100 * COMPILE_S)
    until_workers_are_ready(manager, clock)
    for i in range(3):
        manager.submit(request(f"bomb{i}", regex=f"hang{i}"), clock.now)
    ended: list[str] = []
    for _ in range(3 * 4):
        clock.now += COMPILE_S / 2
        until_workers_are_ready_or_busy(manager, clock, ended)
    assert ended == ["bomb0", "bomb1", "bomb2"]


def test_a_job_that_gets_no_processor_is_not_the_clients_fault(
    hostile: MakeManager, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = hostile(default_timeout_s=100 * COMPILE_S)
    until_workers_are_ready(manager, clock)
    monkeypatch.setattr(compile_client, "read_stat", lambda pid: replace(started, cpu_s=0.0))
    started = read_stat(client_of(manager).pids[0])
    assert started is not None
    manager.submit(request("starved", regex="hang"), clock.now)
    assert manager.poll(clock.now) == []
    clock.now += compile_client.STARVED_TIMEOUTS * COMPILE_S
    (ready,) = manager.poll(clock.now)
    assert ready.error is not None
    assert (ready.error.status, ready.error.code) == (503, "busy")
    manager.submit(request("again", regex="hang"), clock.now)
    assert manager.poll(clock.now) == []  # it is tried again, because the refusal says nothing about the constraint


def test_a_constraint_that_others_wait_for_has_their_turn(hostile: MakeManager, clock: Clock) -> None:
    manager = hostile()
    until_workers_are_ready(manager, clock)
    for i in range(12):
        manager.submit(request(f"bomb{i}", tenant="attacker", regex=f"hang{i}"), clock.now)
    manager.submit(request("theirs", tenant="attacker", choices=["a", "b"]), clock.now)
    manager.submit(request("ours", tenant="neighbour", choices=["a", "b"]), clock.now)
    assert set(drain(manager, clock, 2)) == {"theirs", "ours"}


def test_a_constraint_that_nobody_waits_for_is_not_begun(hostile: MakeManager, clock: Clock) -> None:
    manager = hostile()
    until_workers_are_ready(manager, clock)
    for i in range(12):
        manager.submit(request(f"bomb{i}", regex=f"hang{i}"), clock.now)
    for i in range(12):
        assert manager.abort(f"bomb{i}")
    assert not client_of(manager)._waiting
    manager.submit(request("after", choices=["c", "d"]), clock.now)
    clock.now += compile_client.SHORT_S
    assert drain(manager, clock)["after"].grammar is not None


def until_workers_are_ready_or_busy(manager: GrammarManager, clock: Clock, ended: list[str]) -> None:
    """Poll until a job runs or none waits; append the ids of the requests that are refused."""

    def is_busy() -> bool:
        for each in manager.poll(clock.now):
            assert each.error is not None
            assert each.error.code == "compile_timeout"
            ended.append(each.message.rid)
        client = client_of(manager)
        return not client._waiting or bool(client._long_workers())

    wait_until(is_busy, "no job begins")


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
    manager.submit(request("hang", regex="hang", structured=asked), clock.now)
    wait_until(lambda: not manager.poll(clock.now) and not manager._clients["xgrammar"]._waiting, "it does not begin")
    clock.now += COMPILE_S + 1.0
    (hang,) = manager.poll(clock.now)
    error = hang.error
    assert error is not None
    assert (error.param, error.code) == ("regex", "compile_timeout")
    assert len(manager.sockets()) == 3


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
    manager.submit(request("bomb", regex="hang"), clock.now)
    (worker,) = [each for each in client_of(manager)._workers if each.job is not None]

    def is_stopped() -> bool:
        return Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    stopped = []
    for _ in range(200):
        manager.poll(clock.now, crowded=True)
        stopped.append(worker.stopped)
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
