"""The towers' benchmark encodes every size and prints a line for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import vision_shapes
from benchmarks.common.model_shapes import CONFIGS, shape_folder
from benchmarks.kernels import towers
from radixrt.models.model_config import parse_model_spec
from radixrt.models.vision.normalization import Normalization, read_normalization


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """SmolVLM with a small tower and vocabulary."""
    config: dict[str, Any] = {**vision_shapes.VISION_CONFIGS["smolvlm-256m"], "image_token_id": 300}
    config["text_config"] = {**config["text_config"], "vocab_size": 320, "eos_token_id": 2}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "image_size": 64, "num_hidden_layers": 2}
    config["vision_config"] = {**config["vision_config"], **sizes, "num_attention_heads": 2}
    monkeypatch.setitem(CONFIGS, "smolvlm-256m", config)
    name = config["architectures"][0]
    preprocessor = {**vision_shapes.PREPROCESSORS[name], "max_image_size": {"longest_edge": 64}}
    monkeypatch.setitem(vision_shapes.PREPROCESSORS, name, preprocessor)


@pytest.mark.usefixtures("tiny")
def test_a_line_for_each_attention(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(towers, "shape_folder", lambda shape, root: shape_folder(shape, tmp_path))
    towers.main([
        "--device", "cpu", "--dtype", "float32", "--shape", "smolvlm-256m", "--rounds", "1",
        "--attention", "default", "flash",
    ])  # fmt: skip
    printed = capsys.readouterr().out
    lines = [line.split("|") for line in printed.splitlines() if "| smolvlm-256m" in line]
    assert [[cell.strip() for cell in line[1:6]] for line in lines] == [
        ["smolvlm-256m", "64 x 64", "16", "1", attention] for attention in ("default", "flash")
    ]


@pytest.mark.parametrize(
    ("shape", "parameters", "teraflops"),
    [("qwen3-vl-2b", 0.407e9, 4.3), ("qwen3-vl-8b", 0.58e9, 5.9), ("smolvlm-256m", 0.093e9, 0.22)],
)
def test_the_cost_of_published_towers(shape: str, parameters: float, teraflops: float, tmp_path: Path) -> None:
    spec = parse_model_spec(CONFIGS[shape], {}).vision
    assert spec is not None
    assert spec.num_parameters == pytest.approx(parameters, rel=0.01)
    side = spec.image_size or 1024
    assert spec.flops(side, side) / 1e12 == pytest.approx(teraflops, rel=0.03)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    assert read_normalization(tmp_path, spec) == Normalization()
