"""Clusters that are too small are refused before anything waits."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.engine.cluster.placement import AgentRequest, fitting_error


def nodes(*gpus: float, alive: bool = True) -> list[dict[str, Any]]:
    return [{"Alive": alive, "Resources": {"GPU": count, "CPU": 8.0} if count else {"CPU": 8.0}} for count in gpus]


@pytest.mark.parametrize("devices", [[1], [4], [4, 4], [4, 4, 4], [1] * 12])
def test_what_fits(devices: list[int]) -> None:
    assert fitting_error(AgentRequest(devices, "GPU"), nodes(8, 0, 4)) is None


def test_ranks_of_a_stage_share_a_node() -> None:
    error = fitting_error(AgentRequest([4], "GPU"), nodes(2, 2, 0) + nodes(8, alive=False))
    assert error is not None
    assert "no node of the Ray cluster has 4 GPU" in error
    assert "its nodes have 2, 2, 0" in error


def test_stages_that_do_not_fit_are_counted() -> None:
    error = fitting_error(AgentRequest([3, 3, 3], "GPU"), nodes(4, 4))
    assert error is not None
    assert "room for 2 stages of 3 GPU, not for 3" in error


def test_a_cluster_without_the_resource() -> None:
    error = fitting_error(AgentRequest([1], "TPU"), nodes(1))
    assert error is not None
    assert "ray_resource" in error
