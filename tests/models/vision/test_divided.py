"""Sizes of a tower, and images that ranks divide among themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from radixrt.models.vision.divided import divide, encode_divided
from tests.distributed.rank_threads import ThreadGroup, on_ranks
from tests.models.vision.reference import random_pixels
from tests.models.vision.test_towers import assert_close, sizes_of, tower_of
from tests.tiny_models import VISION_KINDS


@pytest.mark.parametrize("kind", VISION_KINDS)
def test_parameters_and_operations(kind: str, tiny_model: Callable[[str], Path]) -> None:
    tower = tower_of(tiny_model(kind))
    assert tower.spec.num_parameters == sum(parameter.numel() for parameter in tower.parameters())
    for size in sizes_of(tower.spec)[-2:]:
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            tower.encode(random_pixels(*size))
        assert counter.get_total_flops() == tower.spec.flops(*size)


def test_images_are_divided_by_their_cost() -> None:
    assert divide([5, 9, 1, 4], 2) == [[1, 2], [0, 3]]
    assert divide([1], 3) == [[0], [], []]
    assert divide([2, 2, 2], 1) == [[0, 1, 2]]


@pytest.mark.parametrize(("images", "gathered"), [(0, 0), (1, 0), (2, 1), (5, 1)])
def test_every_rank_has_the_rows_of_all_images(
    images: int, gathered: int, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tower = tower_of(tiny_model("qwen3_vl"))
    sizes = ((16, 32), (64, 64), (48, 16), (16, 16), (32, 96))[:images]
    pixels = [random_pixels(*size, seed) for seed, size in enumerate(sizes)]
    expected = [tower.encode(each) for each in pixels]
    begun: list[torch.Size] = []
    begin = tower.begin
    monkeypatch.setattr(tower, "begin", lambda *each: (begun.extend(x.shape for x in each), begin(*each))[1])

    def one(group: ThreadGroup) -> list[torch.Tensor]:
        rows = encode_divided(tower, pixels, group)
        assert group.calls == ["all_gather_rows"] * gathered
        return rows

    for found in on_ranks(2, one):
        assert len(found) == images
        for rows, alone in zip(found, expected, strict=True):
            assert_close(rows, alone)
    assert len(begun) == (images if gathered else 2 * images), "an image that is divided is encoded once"
