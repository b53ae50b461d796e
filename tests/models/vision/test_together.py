"""Several images in one call of a tower."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from radixrt.models.vision import together
from radixrt.models.vision.together import encode_together, equal_calls, packed_calls
from tests.models.vision.reference import random_pixels, reference_rows
from tests.models.vision.test_towers import assert_close, sizes_of, tower_of
from tests.tiny_models import VISION_KINDS


@pytest.mark.parametrize("kind", VISION_KINDS)
def test_rows_of_a_call_equal_transformers(kind: str, tiny_model: Callable[[str], Path]) -> None:
    """Images of one size and of others, in any order; whole and in pieces of blocks."""
    tower = tower_of(tiny_model(kind))
    sizes = sizes_of(tower.spec)
    shown = [random_pixels(*size, seed) for seed, size in enumerate([*sizes, sizes[0], sizes[0], *sizes[-2:]])]
    expected = [reference_rows(tiny_model(kind), pixels) for pixels in shown]
    counts = [len(rows) for rows in expected]
    for rows, wanted in zip(tower.encode(*shown).split(counts), expected, strict=True):
        assert_close(rows, wanted)
    encoding = tower.begin(*shown)
    for block in range(tower.num_blocks):
        encoding.run(block, 1)
    for rows, wanted in zip(encoding.rows().split(counts), expected, strict=True):
        assert_close(rows, wanted)


@pytest.mark.parametrize("captured", [False, True])
def test_images_keep_their_order(
    captured: bool, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "CALL_PATCHES", 40)
    tower = tower_of(tiny_model("qwen3_vl"))
    sizes = [(16, 32), (96, 96), (48, 16), (16, 32), (32, 16), (16, 32), (16, 32), (48, 16)]
    shown = [random_pixels(*size, seed) for seed, size in enumerate(sizes)]
    calls: list[list[tuple[int, ...]]] = []

    def replay(images: Sequence[torch.Tensor]) -> torch.Tensor | None:
        calls.append([tuple(each.shape[:2]) for each in images])
        return tower.encode_directly(*images) if captured and images[0].shape[:2] == (16, 32) else None

    tower.replay = replay
    found = encode_together(tower, shown)
    for rows, pixels in zip(found, shown, strict=True):
        assert_close(rows, tower.encode_directly(pixels))
    assert sorted(calls, key=len) == [[(32, 16)], [(96, 96)], [(48, 16)] * 2, [(16, 32)] * 4]


def test_calls_of_one_size_are_powers_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "CALL_PATCHES", 80)
    for images in range(30):
        calls = list(equal_calls(range(images), [10] * images))
        assert list(itertools.chain(*calls)) == list(range(images))
        assert all(len(call) in (1, 2, 4, 8) for call in calls)
        assert len(calls) == images // 8 + (images % 8).bit_count()
    assert list(equal_calls(range(2), [100] * 2)) == [range(1), range(1, 2)]


def test_calls_of_any_sizes_are_filled_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "CALL_PATCHES", 80)
    patches = [100, 40, 40, 10, 100, 70, 10, 10]
    assert list(packed_calls(range(8), patches)) == [[0], [1, 2], [3], [4], [5, 6], [7]]
    assert list(packed_calls([], patches)) == []
