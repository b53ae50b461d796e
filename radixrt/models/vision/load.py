"""`load_tower`: builds a model's tower and loads its weights, apart from the decoder."""

from __future__ import annotations

from pathlib import Path

import torch

from radixrt.errors import ModelLoadError
from radixrt.layers.ops import LayerOps, TorchOps
from radixrt.models.loading.weights import Checkpoint, check_tensors, draw_parameters, read_parameters
from radixrt.models.model_config import DTYPES, ModelSpec
from radixrt.models.precision import tower_precision
from radixrt.models.vision.idefics3 import Idefics3Tower
from radixrt.models.vision.llava import LlavaTower
from radixrt.models.vision.normalization import check_image_size, read_normalization
from radixrt.models.vision.qwen_vl import QwenTower
from radixrt.models.vision.tower import VisionTower

TOWERS: dict[str, type[VisionTower]] = {"qwen_vl": QwenTower, "idefics3": Idefics3Tower, "llava": LlavaTower}
"""Classes of towers by `VisionSpec.kind`."""


def load_tower(
    folder: Path,
    spec: ModelSpec,
    *,
    dtype: str,
    device: str | torch.device,
    load_format: str = "auto",
    seed: int = 0,
    show_progress: bool = False,
    ops: LayerOps | None = None,
) -> VisionTower:
    """Build the tower of a vision model and load its weights. Every rank holds the whole tower.

    Args:
        folder, dtype, device, load_format, seed, show_progress, ops: as of `load_model`.
        spec: of that folder, with a vision part.

    Raises:
        ModelLoadError: a file or tensor is missing, unexpected, malformed or of another shape; the message names it.
    """
    if dtype not in DTYPES:
        raise ModelLoadError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    if spec.vision is None:
        raise ValueError(f"{spec.architecture} has no vision part")
    device = torch.device(device)
    precision = tower_precision(dtype, device.type)
    check_image_size(folder, spec.vision)
    normalization = read_normalization(folder, spec.vision)
    tower = TOWERS[spec.vision.kind](spec.vision, precision, ops or TorchOps(), normalization)
    sources = tower.checkpoint_tensors()
    if load_format == "dummy":
        draw_parameters(tower, sources, device, seed=seed, show_progress=show_progress)
    else:
        with Checkpoint(folder, tower.names) as checkpoint:
            check_tensors(
                folder, checkpoint, sources, lambda name: not name.startswith(tower.prefixes) or tower.unused(name)
            )
            read_parameters(tower, sources, checkpoint, device, show_progress=show_progress)
    tower.finalize()
    return tower.eval()
