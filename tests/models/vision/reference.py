"""transformers' rows of an image, from pixels that are cut into patches by loops."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch

from radixrt.models.model_config import load_model_spec
from radixrt.models.vision.normalization import Normalization, read_normalization
from radixrt.models.vision_spec import VisionSpec


def random_pixels(height: int, width: int, seed: int = 0) -> torch.Tensor:
    """uint8 [height, width, 3]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator)


@lru_cache(maxsize=10)
def reference_model(folder: Path):  # type: ignore[no-untyped-def]
    import transformers

    kind = transformers.AutoModelForImageTextToText
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.inference_mode()
def reference_rows(folder: Path, pixels: torch.Tensor) -> torch.Tensor:
    """Return the rows [n, out_columns] of an image, uint8 [H, W, 3]."""
    spec = load_model_spec(folder).vision
    assert spec is not None
    normal = _normalized(pixels, read_normalization(folder, spec))
    model = reference_model(folder).model
    if spec.kind == "qwen_vl":
        height, width = (size // spec.patch for size in pixels.shape[:2])
        found = model.visual(_qwen_patches(normal, spec), grid_thw=torch.tensor([[1, height, width]]))
        return torch.cat((found.pooler_output, *(getattr(found, "deepstack_features", None) or ())), dim=1)
    batch = normal[None, None] if spec.kind == "idefics3" else normal[None]
    rows: torch.Tensor = model.get_image_features(pixel_values=batch).pooler_output[0]
    return rows


def _normalized(pixels: torch.Tensor, by: Normalization) -> torch.Tensor:
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (by.mean, by.std))
    return (pixels.permute(2, 0, 1).double() * by.scale - mean).div(std).float()


def _qwen_patches(pixels: torch.Tensor, spec: VisionSpec) -> torch.Tensor:
    patch, merge = spec.patch, spec.merge
    found = []
    for top in range(0, pixels.shape[1], patch * merge):
        for left in range(0, pixels.shape[2], patch * merge):
            for row in range(top, top + patch * merge, patch):
                for column in range(left, left + patch * merge, patch):
                    cut = pixels[:, row : row + patch, column : column + patch]
                    found.append(torch.stack([cut] * spec.frames, dim=1).flatten())
    return torch.stack(found)
