"""The process of a CPU's ModelRunner that starts before the settings of the engine are known."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from radixrt import Engine, ModelLoadError
from radixrt.config import ExecutorConfig
from radixrt.engine import head_start as module
from radixrt.engine.head_start import head_start
from radixrt.engine.worker_process import WorkerProcess
from radixrt.os_process import is_alive, read_stat


def alive(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and is_alive(pid, stat.start_time)


def test_a_worker_that_nobody_takes_is_ended() -> None:
    with head_start(ExecutorConfig(device="cpu")) as early:
        ((kind, worker),) = early.items()
        assert (kind, worker.name) == ("runner", "ModelRunner")
        assert alive(worker.pid)
    assert not alive(worker.pid)


def test_a_worker_that_was_taken_lives_on() -> None:
    with head_start(ExecutorConfig(device="cpu")) as early:
        worker = early.pop("runner")
    try:
        assert alive(worker.pid)
    finally:
        worker.kill()
        worker.close()


@pytest.mark.parametrize(
    "options",
    [
        {"device": "cuda"},
        {"device": "cpu", "executor": "uni"},
        {"device": "cpu", "executor": "external"},
        {"device": "cpu", "executor": "ray"},
        {"device": "cpu", "cluster": "auto"},
        {"device": "cpu", "tp": 2},
        {"device": "cpu", "pp": 2},
        {"device": "cpu", "replicas": 1},
    ],
)
def test_engines_without_a_head_start(options: dict[str, Any]) -> None:
    with head_start(ExecutorConfig(**options)) as early:
        assert early == {}


def test_a_thread_that_may_end_before_the_engine_starts_no_worker() -> None:
    found: list[dict[str, WorkerProcess]] = []

    def start() -> None:
        with head_start(ExecutorConfig(device="cpu")) as early:
            found.append(dict(early))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert found == [{}]


def test_a_model_that_is_missing_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[WorkerProcess] = []

    def start(kind: str, **options: Any) -> WorkerProcess:
        started.append(WorkerProcess(kind, **options))
        return started[-1]

    monkeypatch.setattr(module, "WorkerProcess", start)
    with pytest.raises(ModelLoadError, match=r"no model '\./nothing'"):
        Engine("./nothing", device="cpu")
    assert [alive(worker.pid) for worker in started] == [False]
