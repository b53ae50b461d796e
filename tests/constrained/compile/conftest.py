"""Grammar managers with and without worker processes, and with hostile ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from radixrt import os_process
from radixrt.constrained.compile import client as compile_client
from radixrt.constrained.compile.grammar_manager import GrammarManager
from radixrt.constrained.compile.protocol import WorkerSettings
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.os_process import ProcessStat
from tests.constrained.compile.managers import COMPILE_S, Clock, MakeManager
from tests.constrained.conftest import EOS_IDS, VOCAB_SIZE


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of workers is that of a small machine, wherever the tests run."""
    monkeypatch.setattr(compile_client, "available_cores", lambda: 2)


@pytest.fixture
def inline(vocabulary: Vocabulary) -> GrammarManager:
    return GrammarManager(lambda: vocabulary, inline=True)


@pytest.fixture
def with_worker(vocabulary: Vocabulary, model_folder: Path, tmp_path: Path) -> Iterator[MakeManager]:
    made: list[GrammarManager] = []

    def make(**options: Any) -> GrammarManager:
        settings = WorkerSettings(str(model_folder), VOCAB_SIZE, list(EOS_IDS), str(tmp_path / "cache"))
        made.append(
            GrammarManager(
                lambda: vocabulary, worker=settings, **{"inline": False, "compile_timeout_s": COMPILE_S, **options}
            )
        )
        return made[-1]

    yield make
    for manager in made:
        manager.close()


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch, with_worker: MakeManager, clock: Clock) -> MakeManager:
    """Workers on which some constraints have bad effects. Their processor time is the time of the test's clock."""

    def read_stat(pid: int) -> ProcessStat | None:
        stat = os_process.read_stat(pid)
        return None if stat is None else replace(stat, cpu_s=clock.now)

    monkeypatch.setattr(compile_client, "read_stat", read_stat)
    monkeypatch.setattr(compile_client, "WORKER_MODULE", "tests.constrained.compile.hostile_worker")
    return with_worker
