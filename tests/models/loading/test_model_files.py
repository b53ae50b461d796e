"""A model's files are looked at before any process starts: each broken file is named, with what to do about it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from radixrt.config import ModelConfig
from radixrt.errors import ModelLoadError
from radixrt.models.loading.model_files import check_folder
from radixrt.models.loading.source import prepare_model

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model("llama"), tmp_path / "model"))


def refusal(folder: Path) -> str:
    with pytest.raises(ModelLoadError) as refused:
        prepare_model(ModelConfig(model=str(folder)))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_whole_files_are_accepted(folder: Path) -> None:
    check_folder(folder)
    assert prepare_model(ModelConfig(model=str(folder))).folder == folder


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "tokenizer.json"])
def test_a_pointer_of_git_lfs(folder: Path, name: str) -> None:
    (folder / name).write_text(POINTER)
    assert refusal(folder) == (
        f"{folder / name} is a pointer of Git LFS and not the file itself; run `git lfs pull` in {folder}"
    )
    if name == WEIGHTS:
        with pytest.raises(ModelLoadError, match="git lfs pull"):
            prepare_model(ModelConfig(model=str(folder), load_format="dummy"))


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (0, "is not a whole safetensors file (0 bytes)"),
        (50, "is not a whole safetensors file (50 bytes)"),
        (-1, "is cut: it has"),
    ],
)
def test_a_cut_file(folder: Path, kept: int, said: str) -> None:
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:kept])
    message = refusal(folder)
    assert message.startswith(f"{file} {said}")
    assert message.endswith("; download it again")
    assert prepare_model(ModelConfig(model=str(folder), load_format="dummy")).folder == folder


def test_a_page_in_place_of_a_file(folder: Path) -> None:
    (folder / WEIGHTS).write_text("<html>" + "no such file " * 100)
    assert "is not a whole safetensors file" in refusal(folder)
    header = b"not JSON"
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header)
    assert "its header is malformed; download it again" in refusal(folder)


def test_a_shard_that_is_missing(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    assert "lacks model-00002-of-00002.safetensors, which" in refusal(folder)


def test_a_gguf_file_that_is_a_pointer(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_text(POINTER)
    assert "run `git lfs pull`" in refusal(tmp_path / "m.gguf")


def test_a_model_of_the_hub_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        ModelLoadError, match=r"the hub cannot be reached: .* `hf download nobody/none --local-dir FOLDER`"
    ):
        prepare_model(ModelConfig(model="nobody/none"))
