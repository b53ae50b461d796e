"""Prompts with images: greedy output equals transformers', whatever is cached, chunked, shared or computed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from radixrt.channel import LocalChannel
from radixrt.messages.wire import unpack_f32
from radixrt.models.model_config import load_model_spec
from radixrt.models.vision_spec import VisionSpec
from tests.equivalence.images import Part, Picture, greedy, logits, request
from tests.runner.test_model_runner import Bench

TOKENS = 8
MODELS = ("qwen3_vl", "qwen3_5_vl", "smolvlm", "llava")


def vision(folder: Path) -> VisionSpec:
    spec = load_model_spec(folder).vision
    assert spec is not None
    return spec


def pictures(folder: Path) -> tuple[Picture, Picture, Picture]:
    """Three images of a model, the second of another shape if the model has any."""
    spec = vision(folder)
    if spec.image_size:
        return tuple(Picture(spec.image_size, spec.image_size, seed) for seed in range(3))  # type: ignore[return-value]
    side = spec.patch * spec.merge
    return Picture(3 * side, 4 * side), Picture(2 * side, 7 * side, 1), Picture(3 * side, 4 * side, 2)


def token_ids(folder: Path, parts: Sequence[Part]) -> list[int]:
    """The tokens that the model reads."""
    spec = vision(folder)
    ids: list[int] = []
    for part in parts:
        rows, columns = spec.grid(part.height, part.width) if isinstance(part, Picture) else (1, 1)
        ids += [spec.image_token_id if isinstance(part, Picture) else part] * (rows * columns)
    return ids


class ImageBench(Bench):
    """As `Bench`, for prompts with images."""

    def __init__(self, folder: Path, files: Path, **options: Any) -> None:
        super().__init__(folder, **{"kv_cache_tokens": 512, "check_invariants": True, **options})
        self.folder, self.files = folder, files
        self.prompts: dict[str, tuple[Part, ...]] = {}

    def show(self, rid: str, parts: Sequence[Part], **sampling: Any) -> None:
        self.prompts[rid] = tuple(parts)
        fields = {"max_tokens": TOKENS, "min_tokens": TOKENS, **sampling}
        self.inbox.send(request(rid, self.folder, self.files, parts, **fields))

    def assert_equal(self) -> None:
        """Every answer equals that of transformers."""
        self.drain()
        for rid, parts in self.prompts.items():
            assert self.finishes[rid].error is None
            assert tuple(self.tokens[rid]) == greedy(self.folder, parts, TOKENS), rid


def layouts(folder: Path) -> list[list[Part]]:
    first, second, third = pictures(folder)
    return [
        [105, 106, first, 107, 108],
        [first, 109],
        [105, second],
        [105, first, 104, second, 107],
        [105, first, 106, first, 107],
        [105, third, 111, second, 112, 113],
        [105, 106, 107],
    ]


PAGES = [(model, size) for model in MODELS for size in (1, 16) if (model, size) != ("qwen3_5_vl", 16)]
"""Models and sizes of pages; recurrent layers have pages of one token."""


@pytest.mark.parametrize(("model", "page_size"), PAGES)
def test_layouts_cold_and_warm(model: str, page_size: int, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tiny_model(model)
    bench = ImageBench(folder, tmp_path, page_size=page_size)
    for i, parts in enumerate(layouts(folder)):
        bench.show(f"cold{i}", parts)
    bench.drain()
    for i, parts in enumerate(layouts(folder)):
        bench.show(f"warm{i}", parts)
    bench.assert_equal()


@pytest.mark.parametrize("model", MODELS)
def test_a_chunk_cuts_an_image_at_every_offset(model: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tiny_model(model)
    first, second, _ = pictures(folder)
    for chunk in (1, 2, 3, 5, 7, 11, 13):
        bench = ImageBench(folder, tmp_path, chunked_prefill_size=chunk, prefix_cache=False)
        bench.show("r", [105, first, 106, second, 107])
        bench.assert_equal()


@pytest.mark.parametrize("model", MODELS)
def test_logprobs_at_every_position_of_the_prompt(
    model: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tiny_model(model)
    first, second, _ = pictures(folder)
    parts: list[Part] = [105, first, 106, second, 107]
    bench = ImageBench(folder, tmp_path)
    bench.show("r", parts, prompt_logprobs=0)
    bench.assert_equal()
    found = torch.tensor(unpack_f32(bench.scores["r"]))
    expected = logits(folder, parts).log_softmax(-1)
    ids = token_ids(folder, parts)
    assert torch.allclose(found, expected[range(len(ids) - 1), ids[1:]], atol=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_the_same_text_with_another_picture(model: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tiny_model(model)
    first, _, third = pictures(folder)
    bench = ImageBench(folder, tmp_path)
    for rid, picture in (("a", first), ("b", third), ("c", first)):
        bench.show(rid, [105, 106, picture, 107])
        bench.drain()
    bench.assert_equal()
    assert bench.tokens["a"] == bench.tokens["c"]
    assert bench.tokens["a"] != bench.tokens["b"]


@pytest.mark.parametrize("model", MODELS)
def test_many_questions_in_a_small_pool(model: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Rows are retracted after output and begin again behind what the cache has kept."""
    folder = tiny_model(model)
    shapes = pictures(folder)
    shown = [replace(shapes[i % 2], seed=10 + i) for i in range(6)]
    tokens = 2 * max(len(token_ids(folder, [105, picture, 120])) for picture in shown) + 4
    bench = ImageBench(
        folder, tmp_path, kv_cache_tokens=tokens, schedule_conservativeness=0.0, max_running_requests=4,
        chunked_prefill_size=64,
    )  # fmt: skip
    for i in range(6):
        bench.show(f"r{i}", [105, shown[i], 120 + i])
    bench.assert_equal()
    assert bench.core.counters.retractions > 0


@pytest.mark.parametrize("model", MODELS)
def test_a_runner_that_died(model: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tiny_model(model)
    first, second, _ = pictures(folder)
    bench = ImageBench(folder, tmp_path, chunked_prefill_size=9)
    bench.show("a", [105, first, 106])
    bench.show("b", [105, 109, second, 104, first, 106])
    for _ in range(7):
        bench.turn()
    bench.restart()
    bench.assert_equal()


def test_a_new_scheduler_finds_no_offsets(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """A runner outlives its scheduler; the next scheduler takes rows for those of text."""
    bench = ImageBench(tiny_model("qwen3_vl"), tmp_path)
    bench.show("r", [105, pictures(bench.folder)[0], 107])
    bench.assert_equal()
    assert bench.runner.batches.rotary_offsets is not None
    assert bench.runner.batches.rotary_offsets.any()
    bench.executor._worker.reconnect(LocalChannel())  # type: ignore[attr-defined]
    assert not bench.runner.batches.rotary_offsets.any()
