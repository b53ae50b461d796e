"""`TaskThread`: results are taken while they come."""

from __future__ import annotations

import select
import threading
import time

from radixrt.task_thread import TaskThread


def test_results_may_come_at_any_moment() -> None:
    """Results are taken while they come: none is lost, and afterwards nothing is left to wake up for."""
    tasks: TaskThread[str, int] = TaskThread("tasks")
    try:
        taken: list[tuple[str, int | Exception]] = []
        for i in range(2000):
            tasks.submit(str(i), lambda i=i: i)  # type: ignore[misc]
            taken += tasks.take()
        deadline = time.monotonic() + 60
        while len(taken) < 2000 and time.monotonic() < deadline:
            taken += tasks.take()
        assert taken == [(str(i), i) for i in range(2000)]
        tasks.stop()
        assert tasks.take() == []
        assert select.select([tasks.fileno()], [], [], 0)[0] == []
    finally:
        tasks.close()


def test_an_exception_is_a_result_and_the_thread_goes_on() -> None:
    tasks: TaskThread[str, float] = TaskThread("tasks")
    tasks.submit("bad", lambda: 1 / 0)
    tasks.submit("good", lambda: 1.0)
    tasks.stop()
    (bad, error), good = tasks.take()
    assert (bad, type(error), good) == ("bad", ZeroDivisionError, ("good", 1.0))
    tasks.close()


def test_a_task_is_overdue_once_its_part_takes_longer_than_announced() -> None:
    now = 100.0
    tasks: TaskThread[str, bool] = TaskThread("tasks", clock=lambda: now)
    parts = [threading.Event(), threading.Event()]
    go_on = [threading.Event(), threading.Event()]

    def task() -> bool:
        for begun, end, seconds in zip(parts, go_on, (5.0, 2.0), strict=True):
            tasks.expect(seconds)
            begun.set()
            assert end.wait(60)
        return True

    assert not tasks.is_overdue()
    tasks.submit("a", task)
    for begun, end, seconds in zip(parts, go_on, (5.0, 2.0), strict=True):
        assert begun.wait(60)
        now += seconds
        assert not tasks.is_overdue()
        now += 0.1
        assert tasks.is_overdue()
        end.set()
    assert select.select([tasks.fileno()], [], [], 60)[0]
    assert tasks.take() == [("a", True)]
    assert not tasks.is_overdue()
    tasks.close()
