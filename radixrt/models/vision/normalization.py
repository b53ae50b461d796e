"""`Normalization`: how a model's files say that pixels become numbers. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radixrt.errors import ModelLoadError
from radixrt.models.config_fields import read_json_object
from radixrt.models.vision_spec import VisionSpec

FILES = ("preprocessor_config.json", "processor_config.json")
HALF = (0.5, 0.5, 0.5)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class Normalization:
    """A pixel p of 0 to 255 becomes (p * scale - mean) / std, with a mean and a std for each channel."""

    mean: tuple[float, float, float] = HALF
    std: tuple[float, float, float] = HALF
    scale: float = 1 / 255

    def factors(self) -> tuple[list[float], list[float]]:
        """Return a factor and an addend for each channel that do the same."""
        factors = [self.scale / std for std in self.std]
        return factors, [-mean / std for mean, std in zip(self.mean, self.std, strict=True)]


def read_normalization(folder: Path, spec: VisionSpec) -> Normalization:
    """Read the normalization of a model's images from its folder; without a file, return the usual one of the tower.

    Raises:
        ModelLoadError: a file is malformed; names the field.
    """
    fields, name = image_processor_fields(folder)
    usual = Normalization(CLIP_MEAN, CLIP_STD) if spec.class_token else Normalization()
    mean, std = (_channels(fields, name, f"image_{key}", getattr(usual, key)) for key in ("mean", "std"))
    if fields.get("do_normalize", True) is False:
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    scale = fields.get("rescale_factor", usual.scale) if fields.get("do_rescale", True) is not False else 1.0
    if not isinstance(scale, (int, float)) or isinstance(scale, bool) or scale <= 0 or min(std) <= 0:
        raise ModelLoadError(f"{name}: rescale_factor and image_std must be positive, not {scale!r} and {list(std)}")
    return Normalization(mean, std, float(scale))


def check_image_size(folder: Path, spec: VisionSpec) -> None:
    """Refuse a tower for images of one size if the processing of images makes images of another size.

    Raises:
        ModelLoadError: names both fields.
    """
    fields, file = image_processor_fields(folder)
    names = ("max_image_size",) if spec.kind == "idefics3" else ("crop_size", "size")
    name = next((name for name in names if fields.get(name)), None)
    if spec.image_size is None or name is None:
        return
    made = fields[name]
    sides = set(made.values()) if isinstance(made, Mapping) else {made}
    if sides != {spec.image_size}:
        raise ModelLoadError(
            f"{file}: {name} {made!r} makes other images than the tower's, whose vision_config: image_size is"
            f" {spec.image_size}"
        )


def image_processor_fields(folder: Path) -> tuple[Mapping[str, Any], str]:
    """Return the fields of the processing of images, and the name of their file; no fields without a file."""
    for name in FILES:
        if (folder / name).is_file():
            fields = read_json_object(folder / name)
            inner = fields.get("image_processor")
            if isinstance(inner, Mapping):
                return inner, name
            if name == FILES[0]:
                return fields, name
    return {}, FILES[0]


def _channels(
    fields: Mapping[str, Any], file: str, name: str, default: tuple[float, float, float]
) -> tuple[float, float, float]:
    found = fields.get(name)
    if found is None:
        return default
    if not isinstance(found, list) or len(found) != 3 or any(type(each) not in (int, float) for each in found):
        raise ModelLoadError(f"{file}: {name} must be three numbers, not {found!r}")
    return float(found[0]), float(found[1]), float(found[2])
