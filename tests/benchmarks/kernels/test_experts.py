"""The floor of a layer's experts, and the tilings that the search tries."""

from __future__ import annotations

import dataclasses

import pytest
import torch

pytest.importorskip("triton")
from benchmarks.common.device_rates import H200
from benchmarks.common.model_shapes import MXFP4_BYTES
from benchmarks.kernels.experts import MAX_SHARED, Layer, cuts, floor_us
from radixrt.kernels.triton.expert_gemm_config import TILES, find_config
from radixrt.layers.routing import Routing


def test_the_floor_counts_experts_once_and_tokens_each_time() -> None:
    nothing = torch.empty(0)
    layer = Layer(100, 10, 4, Routing(2, True), nothing, nothing, nothing)
    nbytes, flops, floor = floor_us(layer, torch.tensor([[0, 1], [1, 3], [0, 1]]), H200)
    assert (nbytes, flops) == (2 * 3000 * 3, 2 * 3000 * 6)
    assert floor == pytest.approx(18_000 / H200.bytes_per_s * 1e6)
    packed = dataclasses.replace(layer, weight_bytes=MXFP4_BYTES)
    assert floor_us(packed, torch.tensor([[0, 1]]), H200)[0] == 3000 * 2 * 17 / 32


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tile", TILES)
def test_tilings_fit_and_include_the_present_kind(tile: int, gated: bool) -> None:
    tried = set(cuts(tile, gated=gated))
    assert 20 < len(tried) < 120
    assert all((cut.rows * (1 + gated) + tile) * cut.step * 2 * cut.stages <= MAX_SHARED for cut in tried)
    now = find_config(tile, gated=gated)
    assert any(now[:2] == cut[:2] and now[3:] == cut[3:] for cut in tried)  # all but the stages
