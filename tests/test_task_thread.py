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


def test_the_running_task_is_seen() -> None:
    tasks: TaskThread[str, bool] = TaskThread("tasks")
    begun, go_on = threading.Event(), threading.Event()
    assert tasks.busy_s() == 0.0
    tasks.submit("a", lambda: begun.set() or go_on.wait(60))
    assert begun.wait(60)
    assert tasks.busy_s() > 0.0
    go_on.set()
    assert select.select([tasks.fileno()], [], [], 60)[0]
    assert tasks.take() == [("a", True)]
    assert tasks.busy_s() == 0.0
    tasks.close()
