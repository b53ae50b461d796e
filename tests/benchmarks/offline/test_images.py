"""Workloads of `benchmarks.offline.images` that run on a CPU: what they encode, and what the cache has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.offline import images
from benchmarks.offline.images import HEAD_TOKENS, TEXT_TOKENS, Bench

COUNT = 64
"""Tokens of an image of 128 x 128 pixels."""
SIZE = (128, 128)
ANSWER = 8


@pytest.fixture
def bench(tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(images, "shape_folder", lambda _: tiny_model("qwen3_vl"))
    monkeypatch.setattr(Bench, "text", lambda self, length: self._random.integers(10, 400, length).astype("int32"))
    monkeypatch.setattr(images, "TILES", 3)
    monkeypatch.setattr(images, "TURNS", 4)
    return Bench("tiny", tmp_path, {"dtype": "float32", "device": "cpu", "kv_cache_tokens": 1024, "num_threads": 1})


def test_a_conversation_encodes_its_image_once_and_hits_in_each_turn(bench: Bench) -> None:
    rows = images.conversation(bench, SIZE, ANSWER)
    first = HEAD_TOKENS + COUNT + TEXT_TOKENS
    prompts = [first + turn * (TEXT_TOKENS + ANSWER) for turn in range(4)]
    assert [int(row[1]) for row in rows] == prompts
    # The last token of an answer is not computed.
    assert [int(row[2]) for row in rows] == [0, *(prompt + ANSWER - 1 for prompt in prompts[:-1])]
    assert [int(row[3]) for row in rows] == [1] * 4


def test_first_tokens_of_images_that_are_new_or_cached(bench: Bench) -> None:
    rows = images.first_tokens(bench, SIZE, 1)
    assert [row[0] for row in rows] == ["1 image", "3 images", "3 images again"]
    assert [int(row[1]) for row in rows] == [HEAD_TOKENS + n * COUNT + TEXT_TOKENS for n in (1, 3, 3)]
    assert [int(row[2]) for row in rows] == [1, 3, 0]
