"""Rows of images equal transformers', whole and in pieces of blocks, and an error in a tower is seen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixrt.errors import ModelLoadError
from radixrt.kernels.build import load_kernels
from radixrt.layers.ops import CpuOps
from radixrt.models.model_config import load_model_spec
from radixrt.models.vision import parts, qwen_vl
from radixrt.models.vision.load import load_tower
from radixrt.models.vision.normalization import CLIP_MEAN, Normalization, read_normalization
from radixrt.models.vision.tower import VisionTower
from radixrt.models.vision_spec import VisionSpec
from tests.models.vision.reference import random_pixels, reference_rows
from tests.tiny_models import VISION_KINDS, make_tiny_vision_model

QWEN_SIZES = ((16, 16), (32, 48), (48, 16), (96, 96), (112, 160))
"""Among them one patch along an axis after merging, the table's own size and more than that."""


def tower_of(folder: Path, **options: Any) -> VisionTower:
    options = {"dtype": "float32", "device": "cpu", **options}
    return load_tower(folder, load_model_spec(folder), **options)


def assert_close(rows: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare within 1e-5 of the largest number."""
    torch.testing.assert_close(rows, expected, atol=1e-5 * float(expected.abs().max()), rtol=0.0)


def sizes_of(spec: VisionSpec) -> Sequence[tuple[int, int]]:
    return QWEN_SIZES if spec.image_size is None else ((spec.image_size, spec.image_size),)


@pytest.mark.parametrize("kind", VISION_KINDS)
def test_rows_equal_transformers(kind: str, tiny_model: Callable[[str], Path]) -> None:
    tower = tower_of(tiny_model(kind))
    for seed, (height, width) in enumerate(sizes_of(tower.spec)):
        pixels = random_pixels(height, width, seed)
        rows = tower.encode(pixels)
        grid = tower.spec.grid(height, width)
        assert rows.shape == (grid[0] * grid[1], tower.out_columns)
        assert_close(rows, reference_rows(tiny_model(kind), pixels))
        for cut in range(tower.num_blocks + 1):
            encoding = tower.begin(pixels)
            encoding.run(0, cut)
            encoding.run(cut, tower.num_blocks - cut)
            assert torch.equal(encoding.rows(), rows)


OTHER_SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "three patches": ("qwen3_vl", {"vision_config": {"spatial_merge_size": 3, "patch_size": 4}}),
    "one frame": ("qwen3_vl", {"vision_config": {"temporal_patch_size": 1}}),
    "wide head": ("qwen3_5_vl", {"vision_config": {"num_heads": 2, "hidden_size": 144}}),
    "27 patches": ("smolvlm", {"vision_config": {"image_size": 110, "patch_size": 4}, "scale_factor": 3}),
    "no bias": ("llava", {"multimodal_projector_bias": False, "vision_feature_layer": -1}),
    "first layers": ("llava_siglip", {"vision_feature_layer": 1, "vision_config": {"hidden_act": "gelu"}}),
}


@pytest.mark.parametrize("case", OTHER_SHAPES)
def test_rows_of_other_shapes(case: str, tmp_path: Path) -> None:
    kind, overrides = OTHER_SHAPES[case]
    folder = make_tiny_vision_model(tmp_path, kind, **overrides)
    tower = tower_of(folder)
    side = tower.spec.patch * tower.spec.merge
    size = tower.spec.image_size
    pixels = random_pixels(*((3 * side, 2 * side) if size is None else (size, size)))
    assert_close(tower.encode(pixels), reference_rows(folder, pixels))


def _align_no_corners(place: torch.Tensor, size: int, side: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    exact = ((place.float() + 0.5) * side / size - 0.5).clamp(min=0)
    first = exact.floor().long()
    return first, (first + 1).clamp(max=side - 1), (exact - exact.floor())[:, None]


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "corners that are not aligned": lambda patch: patch.setattr(qwen_vl, "_taps", _align_no_corners),
    "patches row by row": lambda patch: patch.setattr(
        qwen_vl, "patches_of", lambda pixels, size, merge: parts.patches_of(pixels, size, 1)
    ),
    "positions row by row": lambda patch: patch.setattr(
        qwen_vl, "coordinates", lambda rows, columns, merge, device: parts.coordinates(rows, columns, 1, device)
    ),
    "rows and columns exchanged": lambda patch: patch.setattr(
        qwen_vl, "rotary_of", lambda rows, columns, *others: parts.rotary_of(columns, rows, *others)
    ),
    "no rotary embedding": lambda patch: patch.setattr(
        parts.Block, "_rotate", lambda self, qkv, rotary: qkv.split(qkv.shape[1] // 3, dim=1)
    ),
    "deepstack of the block before": lambda patch: patch.setattr(
        qwen_vl.QwenTower, "deepstack", lambda self, index, x: self.deepstack_mergers[index - 1](x)
    ),
    "GELU of the other kind": lambda patch: patch.setattr(
        parts, "activate", lambda x, activation: torch.nn.functional.gelu(x)
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_an_error_in_the_tower_is_seen(
    mutant: str, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[mutant](monkeypatch)
    pixels = random_pixels(48, 80)
    difference = tower_of(tiny_model("qwen3_vl")).encode(pixels) - reference_rows(tiny_model("qwen3_vl"), pixels)
    assert difference.abs().max() > 5e-4, "tens of the tolerance"


@pytest.mark.parametrize("kind", ["qwen3_vl", "smolvlm", "llava"])
def test_compiled_kernels(kind: str, tiny_model: Callable[[str], Path], cache_folder: Path) -> None:
    """In bfloat16 too, with panels where the shapes fit."""
    ops = CpuOps(load_kernels(cache_folder / "kernels"))
    pixels = random_pixels(64, 64)
    expected = reference_rows(tiny_model(kind), pixels)
    assert_close(tower_of(tiny_model(kind), ops=ops).encode(pixels), expected)
    rounded = tower_of(tiny_model(kind), ops=ops, dtype="bfloat16").encode(pixels)
    assert (rounded - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize("kind", ["qwen3_vl", "smolvlm", "llava"])
def test_bfloat16_is_close(kind: str, tiny_model: Callable[[str], Path]) -> None:
    tower = tower_of(tiny_model(kind), dtype="bfloat16")
    pixels = random_pixels(*sizes_of(tower.spec)[-1])
    expected = reference_rows(tiny_model(kind), pixels)
    assert (tower.encode(pixels) - expected).norm() < 0.02 * expected.norm()


def test_dummy_weights(tiny_model: Callable[[str], Path]) -> None:
    """The same for a seed, others for another; without a file of weights."""
    pixels = random_pixels(64, 64)
    for kind in ("qwen3_vl", "smolvlm", "llava"):
        first, again, other = (
            tower_of(tiny_model(kind), load_format="dummy", seed=seed).encode(pixels) for seed in (1, 1, 2)
        )
        assert torch.equal(first, again)
        assert not torch.allclose(first, other, atol=1e-4)


def test_pieces_in_the_wrong_order(tiny_model: Callable[[str], Path]) -> None:
    tower = tower_of(tiny_model("qwen3_vl"))
    encoding = tower.begin(random_pixels(32, 32))
    encoding.run(0, 2)
    for first, count in ((0, 2), (3, 1), (2, 3)):
        with pytest.raises(ValueError, match="cannot follow block 2"):
            encoding.run(first, count)
    with pytest.raises(ValueError, match="2 of 4 blocks have run"):
        encoding.rows()


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [
        ("qwen3_vl", (24, 32), "24 x 32 pixels; the tower encodes multiples of 16"),
        ("smolvlm", (64, 32), "the tower encodes 64 x 64"),
        ("llava", (32, 32), "the tower encodes 64 x 64"),
    ],
)
def test_images_of_other_sizes(
    kind: str, size: tuple[int, int], message: str, tiny_model: Callable[[str], Path]
) -> None:
    with pytest.raises(ValueError, match=message):
        tower_of(tiny_model(kind)).begin(random_pixels(*size))


@pytest.mark.parametrize(
    ("kind", "lost", "added"),
    [
        ("qwen3_vl", "model.visual.blocks.1.attn.qkv.bias", "model.visual.blocks.1.attn.qkv.weight_scale"),
        ("smolvlm", "model.connector.modality_projection.proj.weight", "model.connector.norm.weight"),
        ("llava", "multi_modal_projector.linear_2.bias", "vision_tower.encoder.norm.weight"),
    ],
)
def test_tensors_that_do_not_fit(
    kind: str, lost: str, added: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_model(kind), tmp_path / "broken")
    tensors = load_file(folder / "model.safetensors")
    tensors[added] = tensors.pop(lost)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match=rf"missing: {lost}; unexpected: {added}"):
        tower_of(folder)


@pytest.mark.parametrize("begin", ["vision_tower.vision_model.", "model.vision_tower."])
def test_other_names_of_llava(begin: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model("llava"), tmp_path / "named")
    tensors = {
        name.replace("vision_tower.", begin, 1): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    tensors[f"{begin}embeddings.position_ids"] = torch.arange(65)[None]
    save_file(tensors, folder / "model.safetensors")
    pixels = random_pixels(64, 64)
    assert torch.equal(tower_of(folder).encode(pixels), tower_of(tiny_model("llava")).encode(pixels))


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("smolvlm", {"max_image_size": {"longest_edge": 32}}, "max_image_size .* image_size is 64"),
        ("llava", {"crop_size": {"height": 64, "width": 32}}, "crop_size .* image_size is 64"),
        ("llava_siglip", {"size": {"height": 48, "width": 48}}, "size .* image_size is 64"),
    ],
)
def test_images_that_are_processed_to_another_size(
    kind: str, changes: dict[str, Any], message: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_model(kind), tmp_path / "resized")
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(ModelLoadError, match=f"preprocessor_config.json: {message}"):
        tower_of(folder)


def test_normalization(tmp_path: Path, tiny_model: Callable[[str], Path]) -> None:
    llava, qwen = (load_model_spec(tiny_model(kind)).vision for kind in ("llava", "qwen3_vl"))
    assert llava is not None
    assert qwen is not None
    assert read_normalization(tmp_path, llava).mean == CLIP_MEAN
    assert read_normalization(tmp_path, qwen) == Normalization()

    def read(fields: dict[str, Any]) -> Normalization:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(fields))
        return read_normalization(tmp_path, qwen)

    assert read({"image_mean": [0, 0.5, 1]}).mean == (0.0, 0.5, 1.0)
    assert read({"do_normalize": False, "do_rescale": False}) == Normalization((0.0,) * 3, (1.0,) * 3, 1.0)
    scale, shift = read({"image_mean": [0.4] * 3, "image_std": [0.2] * 3}).factors()
    assert 255 * scale[0] + shift[0] == pytest.approx(3.0)
    for fields, message in (
        ({"image_std": [0.5, 0.5]}, "preprocessor_config.json: image_std must be three numbers"),
        ({"image_std": [0.5, 0.0, 0.5]}, "must be positive"),
        ({"rescale_factor": "1/255"}, "rescale_factor and image_std must be positive, not '1/255'"),
    ):
        with pytest.raises(ModelLoadError, match=message):
            read(fields)
    (tmp_path / "preprocessor_config.json").unlink()
    inner = {"image_processor": {"image_mean": [0.1] * 3}}
    (tmp_path / "processor_config.json").write_text(json.dumps(inner))
    assert read_normalization(tmp_path, qwen).mean == (0.1,) * 3
