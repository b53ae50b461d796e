"""The number of threads of a runner."""

from __future__ import annotations

import os

import pytest

from radixrt.kernels.threads import pick_threads


@pytest.mark.parametrize(("said", "expected"), [("1", 1), ("3,2", 3), (" 2 ", 2), ("64", 4)])
def test_omp_num_threads_is_honoured_up_to_the_cores(said: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    assert pick_threads(None) == expected
    assert pick_threads(7) == 7


@pytest.mark.parametrize("said", ["", "0", "many", "-1"])
def test_otherwise_the_cores_of_the_process(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert pick_threads(None) == len(os.sched_getaffinity(0))
