"""The dtype of keys and values follows the option, then the checkpoint where it has scales and the device kernels."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from radixrt.attention import make_backend
from radixrt.attention.base import AttentionLayer
from radixrt.attention.kv_cache import KVCache
from radixrt.errors import ConfigError
from radixrt.models.model_config import load_model_spec
from radixrt.runner import kv_cache_dtype
from radixrt.runner.kv_cache_dtype import KVCacheDtype, resolve_kv_cache_dtype
from radixrt.runner.profile_run import largest_step
from tests.layers.formats.formats import CASES
from tests.models.loading.test_kv_scales import add_scales
from tests.models.loading.test_quantized_checkpoints import change_config, make_models
from tests.runner.test_narrowed_steps import runner, runner_config
from tests.tiny_models import make_tiny_model

CUDA = torch.device("cuda")


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA device with FlashInfer."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(kv_cache_dtype, "find_spec", lambda name: object())


def resolve(folder: Path, device: torch.device = CUDA, **options: Any) -> KVCacheDtype:
    config = runner_config(folder, **{"dtype": "bfloat16", **options})
    return resolve_kv_cache_dtype(config, load_model_spec(folder), device)


def declared(folder: Path) -> Path:
    """Write a tiny model whose head size FlashInfer takes, and what ModelOpt says of its keys and values beside it."""
    make_tiny_model(folder, "qwen3", head_dim=64)
    said = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(said))
    return folder


@pytest.mark.usefixtures("hopper")
def test_auto_follows_a_checkpoint_with_scales(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    folder = declared(tmp_path / "m")
    assert resolve(folder) == KVCacheDtype("model")
    assert "though the checkpoint says fp8: it has no scales" in caplog.text
    add_scales(folder)
    assert resolve(folder) == KVCacheDtype("fp8_e4m3", scaled=True)
    assert "keys and values are fp8_e4m3 with scales of the checkpoint" in caplog.text
    assert resolve(folder, kv_cache_dtype="model") == KVCacheDtype("model")
    assert resolve(folder, load_format="dummy") == KVCacheDtype("model")
    assert resolve(folder, kv_cache_dtype="fp8_e4m3", load_format="dummy") == KVCacheDtype("fp8_e4m3")


@pytest.mark.usefixtures("hopper")
def test_auto_follows_a_quantized_checkpoint(tmp_path: Path) -> None:
    folder = make_models(tmp_path, CASES["ct-fp8-channel"], head_dim=64)[0]
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    quantization = {**json.loads((folder / "config.json").read_text())["quantization_config"]}
    change_config(folder, quantization_config={**quantization, "kv_cache_scheme": scheme})
    add_scales(folder, "compressed-tensors")
    assert resolve(folder) == KVCacheDtype("fp8_e4m3", scaled=True)


@pytest.mark.usefixtures("hopper")
def test_the_option_uses_scales_that_the_config_does_not_mention(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", "qwen3", head_dim=64)
    assert resolve(folder, kv_cache_dtype="fp8_e4m3") == KVCacheDtype("fp8_e4m3")
    add_scales(folder, "one-for-both", value=lambda i: (2.0, 2.0))
    assert resolve(folder, kv_cache_dtype="fp8_e4m3") == KVCacheDtype("fp8_e4m3", scaled=True)
    assert resolve(folder) == KVCacheDtype("model"), "auto needs the config's word"


@pytest.mark.usefixtures("hopper")
def test_auto_follows_only_where_there_are_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder = add_scales(declared(tmp_path / "m"))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"device": torch.device("cpu")}, "need a CUDA device and FlashInfer"),
        ({"attention_backend": "torch_native"}, "need a CUDA device and FlashInfer"),
        ({"dtype": "float32"}, "FlashInfer computes in float16 or bfloat16"),
    ]
    for options, reason in cases:
        caplog.clear()
        assert resolve(folder, **options) == KVCacheDtype("model")
        assert reason in caplog.text
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert resolve(folder) == KVCacheDtype("model")
    assert "compute capability 8.9" in caplog.text
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(kv_cache_dtype, "find_spec", lambda name: None)
    assert resolve(folder) == KVCacheDtype("model")
    assert "FlashInfer, which is not installed" in caplog.text


@pytest.mark.parametrize("kind", ["llama", "qwen3", "lfm2"])
def test_the_reference_keeps_divided_keys_and_values_in_float8(kind: str, tmp_path: Path) -> None:
    folder = add_scales(make_tiny_model(tmp_path / "m", kind), value=lambda i: (0.25, 0.5))
    pools = []
    for dtype in ("model", "fp8_e4m3"):
        with runner(folder, attention_backend="torch_native", kv_cache_dtype=dtype) as made:
            with torch.inference_mode():
                output = made._run_once(largest_step(3, 40, 64))
            assert output.hidden_states.isfinite().all()
            pools.append((made.kv_cache.k[0].clone(), made.kv_cache.v[0].clone()))
    for plain, stored, scale in zip(*pools, (0.25, 0.5), strict=True):
        assert stored.dtype == torch.float8_e4m3fn
        assert torch.equal(stored[1:40].float(), (plain[1:40] / scale).clamp(-448, 448).to(stored.dtype).float())
        assert plain[1:40].any()


@pytest.mark.parametrize("backend", ["auto", "cpu"])
def test_float8_on_a_cpu_names_the_reference(backend: str, tmp_path: Path) -> None:
    layer = AttentionLayer(0, 4, 2, 16, 0.25)
    kv = KVCache([layer], 8, 1, torch.float8_e4m3fn, torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"kv_cache_dtype=fp8_e4m3 needs .*attention_backend=torch_native"):
        make_backend(
            backend, kv, [layer], dtype=torch.float32, max_rows=1, context_length=8, kernel_cache=tmp_path,
            dependent_launch=False,
        )  # fmt: skip
