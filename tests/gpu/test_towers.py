"""Towers on a GPU: rows of the CPU, and no wait for the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from radixrt.models.model_config import load_model_spec
from radixrt.models.vision.load import load_tower
from radixrt.models.vision.together import encode_together
from radixrt.parts.media.runner.tower_graphs import TowerGraphs
from tests.models.vision.reference import random_pixels
from tests.models.vision.test_towers import sizes_of, tower_of
from tests.tiny_models import make_tiny_vision_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "head 64": ("qwen3_vl", {"vision_config": {"num_heads": 2, "hidden_size": 128}}),
    "head 72": ("qwen3_vl", {"vision_config": {"num_heads": 2, "hidden_size": 144}}),
    "smolvlm": ("smolvlm", {}),
    "llava": ("llava", {}),
}


@contextmanager
def no_waits() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_equal_those_of_the_cpu(shape: str, tmp_path: Path) -> None:
    from radixrt.layers.cuda_ops import CudaOps

    kind, overrides = SHAPES[shape]
    folder = make_tiny_vision_model(tmp_path, kind, **overrides)
    spec = load_model_spec(folder)
    exact, rounded = (
        load_tower(folder, spec, dtype=dtype, device="cuda", ops=CudaOps()) for dtype in ("float32", "bfloat16")
    )
    reference = tower_of(folder)
    for seed, size in enumerate(sizes_of(reference.spec)):
        pixels = random_pixels(*size, seed)
        expected, moved = reference.encode(pixels), pixels.cuda()
        torch.testing.assert_close(exact.encode(moved).cpu(), expected, atol=1e-4 * float(expected.abs().max()), rtol=0)
        rounded.encode(moved)  # loads kernels, for which the host waits
        torch.cuda.synchronize()
        with no_waits():
            rows = rounded.encode(moved)
        assert (rows.float().cpu() - expected).norm() < 0.03 * expected.norm()


def test_graphs_are_captured_at_once_or_later(tmp_path: Path) -> None:
    """Beside decode rows, an image is encoded kernel by kernel, and its graph is captured while there is no step."""
    from radixrt.layers.cuda_ops import CudaOps

    folder = make_tiny_vision_model(tmp_path, "qwen3_vl")
    tower = load_tower(folder, load_model_spec(folder), dtype="bfloat16", device="cuda", ops=CudaOps())
    graphs = TowerGraphs(tower, torch.device("cuda"))
    first, second = sizes_of(tower.spec)[:2]
    pixels = {size: random_pixels(*size, 3).cuda() for size in (first, second)}
    with torch.inference_mode():
        graphs.may_capture = False
        for size in (first, second, first):
            assert graphs.encode([pixels[size]]) is None
        assert graphs.capture_next()
        assert not graphs.capture_next()  # one image of the second size has asked for no graph
        captured = graphs.encode([pixels[first]])
        graphs.may_capture = True
        at_once = graphs.encode([pixels[second]])
        for size, rows in ((first, captured), (second, at_once)):
            assert rows is not None
            torch.testing.assert_close(rows, tower.encode_directly(pixels[size]))


def test_several_images_have_a_graph(tmp_path: Path) -> None:
    from radixrt.layers.cuda_ops import CudaOps

    folder = make_tiny_vision_model(tmp_path, "smolvlm")
    tower = load_tower(folder, load_model_spec(folder), dtype="bfloat16", device="cuda", ops=CudaOps())
    tower.replay = TowerGraphs(tower, torch.device("cuda")).encode
    with torch.inference_mode():
        for seed in range(3):
            shown = [random_pixels(64, 64, 10 * seed + i).cuda() for i in range(7)]
            for rows, pixels in zip(encode_together(tower, shown), shown, strict=True):
                alone = tower.encode_directly(pixels).float()
                assert (rows.float() - alone).norm() < 0.02 * alone.norm()
