"""Checkpoints are read whole or refused with the names of what does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixrt.errors import ModelLoadError
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from radixrt.models.registry import Model
from tests.models.dense_attention import run_in_steps
from tests.models.test_decoder import sequences
from tests.tiny_models import make_tiny_model

Tensors = dict[str, torch.Tensor]


def load(folder: Path, **options: object) -> Model:
    return load_model(folder, load_model_spec(folder), **{"dtype": "float32", "device": "cpu", **options})  # type: ignore[arg-type]


def edit(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_shards_equal_one_file(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    expected = run_in_steps(load(folder), sequences(1))[0]
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for i, name in enumerate(sorted(tensors)):
        weight_map[name] = f"model-0000{i % 3}-of-00003.safetensors"
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name in tensors if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert torch.equal(run_in_steps(load(folder), sequences(1))[0], expected)
    (folder / "model-00001-of-00003.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="lacks model-00001-of-00003"):
        load(folder)


def test_every_tensor_that_does_not_fit_is_named(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")

    def spoil(tensors: Tensors) -> None:
        del tensors["model.layers.1.self_attn.k_proj.weight"]
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
        tensors["model.layers.2.mlp.up_proj.weight"] = torch.zeros(3, 64)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)  # derived: ignored

    edit(folder, spoil)
    with pytest.raises(ModelLoadError) as raised:
        load(folder)
    message = str(raised.value)
    assert "missing: model.layers.1.self_attn.k_proj.weight;" in message
    assert "unexpected: model.layers.0.self_attn.q_proj.bias;" in message
    assert "model.layers.2.mlp.up_proj.weight [3, 64] instead of [112, 64]" in message
    assert "inv_freq" not in message


def test_a_head_in_a_tied_checkpoint_is_used(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", tie_word_embeddings=True)
    tied = run_in_steps(load(folder), sequences(1))[0]
    edit(folder, lambda t: t.update({"lm_head.weight": 2 * t["model.embed_tokens.weight"]}))
    torch.testing.assert_close(run_in_steps(load(folder), sequences(1))[0], 2 * tied, atol=1e-4, rtol=1e-5)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin.*not read"):
        load(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(ModelLoadError, match="no weights"):
        load(folder)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors cannot be read"):
        load(folder)


def test_an_index_may_not_name_other_folders(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../secret.safetensors"}}')
    with pytest.raises(ModelLoadError, match="outside"):
        load(folder)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dummy_weights_need_a_config_alone(dtype: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", "qwen3")
    (folder / "model.safetensors").unlink()
    one, same, other = (
        run_in_steps(load(folder, dtype=dtype, load_format="dummy", seed=seed), sequences(1))[0] for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.isfinite(one).all()


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    with pytest.raises(ModelLoadError, match="int8"):
        load(folder, dtype="int8")


def test_a_progress_bar_is_drawn_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_tiny_model(tmp_path / "m")
    capsys.readouterr()  # saving draws one too
    load(folder)
    assert capsys.readouterr().err == ""
    load(folder, show_progress=True)
    captured = capsys.readouterr()
    assert "Loading weights" in captured.err
    assert captured.out == ""
    load(folder, show_progress=True, load_format="dummy")
    assert "Drawing weights: 100%" in capsys.readouterr().err
