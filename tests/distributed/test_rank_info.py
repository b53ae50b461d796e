"""Ranks as torchrun and SLURM describe them, and combinations of tensor parallelism options."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from radixrt.config import make_config
from radixrt.distributed import parallel
from radixrt.distributed.rank_info import RankInfo, rank_from_environment
from radixrt.engine.endpoints import process_kinds, process_name
from radixrt.engine.settings import resolve_settings
from radixrt.errors import ConfigError
from radixrt.kernels.threads import pick_threads

MASTER = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
TORCHRUN = {**MASTER, "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
SLURM = {**MASTER, "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "2"}


def test_torchrun_and_slurm() -> None:
    assert rank_from_environment(TORCHRUN, 60.0) == RankInfo(5, 8, 1, 4, None, 60.0, launcher_rank=5)
    assert rank_from_environment(SLURM, 60.0) == RankInfo(3, 4, 1, 2, None, 60.0, launcher_rank=3)
    assert rank_from_environment({**SLURM, **TORCHRUN}, 60.0).rank == 5
    without = {k: v for k, v in SLURM.items() if k != "SLURM_NTASKS_PER_NODE"}
    assert rank_from_environment(without, 60.0).local_size == 4


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"])
def test_a_missing_variable_is_named(missing: str) -> None:
    with pytest.raises(ConfigError, match=missing):
        rank_from_environment({k: v for k, v in TORCHRUN.items() if k != missing}, 60.0)


@pytest.mark.parametrize("value", ["-1", "two", "1.0", "8"])
def test_a_rank_that_cannot_be_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="RANK"):
        rank_from_environment({**TORCHRUN, "RANK": value}, 60.0)


def test_ranks_of_pipeline_stages() -> None:
    ranks = [RankInfo(rank, 6, rank, 6, stages=3) for rank in range(6)]
    assert [(rank.stage, rank.tp_rank) for rank in ranks] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert [rank.answers for rank in ranks] == [False] * 4 + [True, False]
    assert RankInfo().answers


def test_the_launchers_rank_0_is_the_one_that_answers() -> None:
    """So the tokens and masks of a step stay on the machine of the scheduler."""
    given = [{**TORCHRUN, "RANK": str(rank)} for rank in range(8)]
    found = [rank_from_environment(each, 60.0, stages=4) for each in given]
    assert [rank.rank for rank in found] == [6, 7, 0, 1, 2, 3, 4, 5]
    assert [rank.answers for rank in found] == [True] + [False] * 7
    assert [rank.launcher_rank for rank in found] == list(range(8))
    with pytest.raises(ConfigError, match=r"pp=3, but 8 ranks were started.*start 3 \* tp"):
        rank_from_environment(TORCHRUN, 60.0, stages=3)


@pytest.mark.parametrize("option", ["tp", "pp"])
def test_one_process_cannot_be_several_ranks(option: str) -> None:
    with pytest.raises(ConfigError, match=rf"{option}=2 .*executor=uni.* use executor=mp"):
        make_config(**{option: 2}, executor="uni")


def test_sizes_are_checked_before_anything_is_started(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match=r"tp=3 .* tp may be 1, 2, 4"):
        resolve_settings(make_config(model=tiny_model("llama"), tp=3), show_progress=False)


def test_tp_is_the_number_of_ranks_that_were_started(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    model = tiny_model("llama")
    for options in ({}, {"tp": 4}):
        config = make_config(model=model, executor="external", **options)
        _, settings = resolve_settings(config, show_progress=False)
        assert settings.tp == 4
        assert process_kinds(config, settings) == ("tokenizer", "scheduler", "runner-0")
    with pytest.raises(ConfigError, match="tp=2, but 4 ranks were started"):
        resolve_settings(make_config(model=model, executor="external", tp=2), show_progress=False)
    _, settings = resolve_settings(make_config(model=model, executor="external", pp=2), show_progress=False)
    assert (settings.tp, settings.stage_layers, settings.num_ranks) == (2, (2, 1), 4)
    with pytest.raises(ConfigError, match="tp=4 and pp=2, but 4 ranks were started; start 8"):
        resolve_settings(make_config(model=model, executor="external", tp=4, pp=2), show_progress=False)


def test_each_rank_is_a_process(tiny_model: Callable[[str], Path]) -> None:
    config = make_config(model=tiny_model("llama"), tp=2)
    kinds = process_kinds(*resolve_settings(config, show_progress=False))
    assert kinds == ("tokenizer", "scheduler", "runner-0", "runner-1")
    assert [process_name(kind) for kind in kinds] == ["tokenizer", "scheduler", "ModelRunner 0", "ModelRunner 1"]
    assert process_name("runner") == "ModelRunner"
    config = make_config(model=tiny_model("llama"), tp=2, pp=3)
    assert len(process_kinds(*resolve_settings(config, show_progress=False))) == 2 + 6


def test_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(12)))
    assert [pick_threads(None, ranks) for ranks in (1, 2, 4, 16)] == [12, 6, 3, 1]
    assert pick_threads(5, 4) == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert pick_threads(None, 4) == 3


@pytest.mark.parametrize(("machines", "one"), [(["a", "a", "a"], True), (["a", "b", "a"], False)])
def test_ranks_find_out_whether_they_share_a_machine(
    machines: list[str], one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM need not set the number of tasks of a node."""
    store = dist.HashStore()
    monkeypatch.setattr(parallel, "_boot_id", lambda: threading.current_thread().name)
    said: list[bool] = []

    def ask(rank: int) -> None:
        said.append(parallel._on_one_machine(RankInfo(rank, 3, rank, 3), store))

    threads = [threading.Thread(target=ask, args=(rank,), name=name) for rank, name in enumerate(machines)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert said == [one] * 3
