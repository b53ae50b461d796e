"""CUDA devices of ranks: one for each, numbered over all replicas of a machine. CUDA itself is replaced here."""

from __future__ import annotations

import pytest
import torch

from radixrt.distributed.parallel import rank_device
from radixrt.distributed.rank_info import RankInfo
from radixrt.errors import ConfigError

CUDA = torch.device("cuda")


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Devices that were made the current one, on a machine with two of them."""
    found: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    return found


def test_a_single_rank_takes_the_current_device(chosen: list[int]) -> None:
    assert rank_device(CUDA, RankInfo()) == CUDA
    assert rank_device(torch.device("cpu"), RankInfo(1, 2, 1, 2)) == torch.device("cpu")
    assert chosen == []


@pytest.mark.parametrize(
    "info", [RankInfo(1, 2, 1, 2), RankInfo(0, 1, 1, 2), RankInfo(0, 1, 1, 1)],
    ids=["second rank", "second of two replicas", "replica added to one"],
)  # fmt: skip
def test_each_rank_has_the_device_of_its_number(info: RankInfo, chosen: list[int]) -> None:
    assert rank_device(CUDA, info) == torch.device("cuda", 1)
    assert chosen == [1]


@pytest.mark.parametrize("info", [RankInfo(2, 3, 2, 3), RankInfo(0, 1, 2, 1)], ids=["third rank", "replica 2"])
def test_a_device_that_is_not_there_is_named_with_the_options(info: RankInfo, chosen: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"number 2\), and this machine shows 2; lower tp, pp or replicas, or show"):
        rank_device(CUDA, info)
