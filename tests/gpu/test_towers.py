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
