"""Scales of keys and values: they are read in every spelling, and change what is stored, but no logit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixrt.errors import ModelLoadError
from radixrt.layers.formats import registry
from radixrt.layers.formats.online import Kind, OnlineQuantization
from radixrt.models.decoder import Decoder
from radixrt.models.loading.kv_scales import wants_fp8
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from radixrt.models.stages import stage_of
from tests.distributed.rank_threads import ThreadGroup, on_ranks
from tests.layers.formats.formats import CASES
from tests.layers.formats.test_toy_int8 import KINDS as TOY_KINDS
from tests.layers.formats.test_toy_int8 import make_models
from tests.models.dense_attention import DenseAttention, logits_of, run_in_steps, steps_of
from tests.models.loading.test_quantized_checkpoints import make_models as make_quantized
from tests.models.test_decoder import sequences
from tests.tiny_models import make_tiny_model

SPELLINGS = {
    "modelopt": ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
    "compressed-tensors": ("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"),
    "compressed-tensors-later": ("self_attn.k_scale", "self_attn.v_scale"),
    "attention": ("self_attn.attn.k_scale", "self_attn.attn.v_scale"),
    "cache": ("self_attn.k_cache.scale", "self_attn.v_cache.scale"),
    "one-for-both": ("self_attn.kv_scale", "self_attn.kv_scale"),
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "projections": ("llama", {}),
    "biases": ("llama", {"attention_bias": True}),
    "norms": ("qwen3", {}),
    "sinks": ("gpt_oss", {}),
    "hybrid": ("lfm2", {}),
    "gate, and norms of 1 + weight": ("qwen3_next", {}),
}


def attention_layers(folder: Path) -> list[int]:
    decoder = load_model_spec(folder).decoder
    assert decoder is not None
    return [i for i, layer in enumerate(decoder.layers) if not layer.is_recurrent]


def add_scales(
    folder: Path, spelling: str = "modelopt", shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float32,
    value: Callable[[int], tuple[float, float]] = lambda i: (0.04 + i, 2.0**-i),
) -> Path:  # fmt: skip
    """Write the scales of keys and of values of each layer with attention."""
    tensors = load_file(folder / "model.safetensors")
    for i in attention_layers(folder):
        for name, scale in zip(SPELLINGS[spelling], value(i), strict=True):
            tensors[f"model.layers.{i}.{name}"] = torch.full(shape, scale, dtype=dtype)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def load(folder: Path, group: ThreadGroup | None = None, **options: Any) -> Decoder:
    options = {"dtype": "float32", "device": "cpu", "group": group, **options}
    model = load_model(folder, load_model_spec(folder), **options)
    assert isinstance(model, Decoder)
    return model


def stored(model: Decoder) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of the first step of `sequences`, by layer of the pool."""
    attention = DenseAttention()
    logits_of(model, attention, *steps_of(sequences(1))[0])
    return {layer: pair for (_, layer), pair in attention._cache.items()}


def rounded_up(scale: float) -> float:
    return float(2.0 ** torch.tensor(scale, dtype=torch.float64).log2().ceil())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_keys_and_values_are_divided_and_logits_stay(kind: str, dtype: str, tmp_path: Path) -> None:
    folder = add_scales(make_tiny_model(tmp_path / "m", KINDS[kind][0], **KINDS[kind][1]))
    plain, scaled = load(folder, dtype=dtype), load(folder, dtype=dtype, kv_scales=True)
    for ours, theirs in zip(run_in_steps(scaled, sequences()), run_in_steps(plain, sequences()), strict=True):
        assert torch.equal(ours, theirs)
    kept, all_of_them = stored(scaled), stored(plain)
    for place, layer in enumerate(attention_layers(folder)):
        for found, was, scale in zip(kept[place], all_of_them[place], (0.04 + layer, 2.0**-layer), strict=True):
            assert torch.equal(found * rounded_up(scale), was)
    assert any(not torch.equal(kept[0][i], all_of_them[0][i]) for i in (0, 1))


@pytest.mark.parametrize("kind", ["fp8", "int8", "int4"])
def test_weights_that_are_quantized_while_they_load(kind: Kind, tmp_path: Path) -> None:
    folder = add_scales(make_tiny_model(tmp_path / "m", attention_bias=True, mlp_bias=True, intermediate_size=128))
    spec = load_model_spec(folder)
    assert spec.decoder is not None
    spec = replace(spec, decoder=replace(spec.decoder, quantization=OnlineQuantization(kind)))

    def run(group: ThreadGroup | None, *, kv_scales: bool) -> list[torch.Tensor]:
        model = load_model(folder, spec, dtype="float32", device="cpu", group=group, kv_scales=kv_scales)
        return run_in_steps(model, sequences())

    for ranks in (1, 2):
        scaled = on_ranks(ranks, lambda group: run(group, kv_scales=True))
        plain = on_ranks(ranks, lambda group: run(group, kv_scales=False))
        assert all(torch.equal(a, b) for ours, theirs in zip(scaled, plain, strict=True) for a, b in zip(ours, theirs))


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_quantized_weights_of_a_checkpoint(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.READERS, "toy-int8", "tests.layers.formats.test_toy_int8:read_toy")
    folder = add_scales(make_models(tmp_path, kind, **TOY_KINDS[kind])[0])
    plain, scaled = load(folder), load(folder, kv_scales=True)
    for ours, theirs in zip(run_in_steps(scaled, sequences()), run_in_steps(plain, sequences()), strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(stored(scaled)[0][0], stored(plain)[0][0])


@pytest.mark.parametrize("case", ["ct-int4-asymmetric", "fp8-block", "gptq-ordered", "modelopt-nvfp4"])
def test_formats_of_checkpoints(case: str, tmp_path: Path) -> None:
    folder = add_scales(make_quantized(tmp_path, CASES[case], head_dim=128, attention_bias=True)[0], "cache")
    plain, scaled = load(folder), load(folder, kv_scales=True)
    for ours, theirs in zip(run_in_steps(scaled, sequences()), run_in_steps(plain, sequences()), strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(stored(scaled)[0][0], stored(plain)[0][0])


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling(spelling: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    expected = stored(load(folder))
    shape = () if spelling in ("modelopt", "cache") else (1,)
    add_scales(folder, spelling, shape, torch.bfloat16, lambda i: (0.5 + i, 0.5 + i))
    assert torch.equal(stored(load(folder))[1][0], expected[1][0]), "without a float8 pool they are not read"
    found = stored(load(folder, kv_scales=True))
    for i in range(3):
        for ours, theirs in zip(found[i], expected[i], strict=True):
            assert torch.equal(ours, theirs / rounded_up(0.5 + i))


def test_scales_of_one_mean_none(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    expected = stored(load(folder))
    found = stored(load(add_scales(folder, value=lambda i: (1.0, 1.0)), kv_scales=True))
    assert all(torch.equal(a, b) for i in range(3) for a, b in zip(found[i], expected[i], strict=True))


@pytest.mark.parametrize("kind", ["projections", "gate, and norms of 1 + weight"])
def test_ranks_divide_alike(kind: str, tmp_path: Path) -> None:
    folder = add_scales(make_tiny_model(tmp_path / "m", KINDS[kind][0], **KINDS[kind][1]))
    expected = on_ranks(2, lambda group: run_in_steps(load(folder, group), sequences()))
    found = on_ranks(2, lambda group: run_in_steps(load(folder, group, kv_scales=True), sequences()))
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_stage_divides_by_the_scales_of_its_own_layers(tmp_path: Path) -> None:
    folder = add_scales(make_tiny_model(tmp_path / "m"), value=lambda i: (2.0**i, 4.0**i))
    second = load(folder, kv_scales=True, stage=stage_of(1, (1, 2)))
    plain = load(folder, stage=stage_of(1, (1, 2)))
    dim = 16
    for place, layer in enumerate((1, 2)):
        ours, theirs = (each.layers[place].mixer.qkv_proj.weight for each in (second, plain))  # type: ignore[union-attr]
        assert torch.equal(ours[4 * dim : 6 * dim] * 2.0**layer, theirs[4 * dim : 6 * dim])
        assert torch.equal(ours[6 * dim :] * 4.0**layer, theirs[6 * dim :])


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.tensor(0.0), r"k_proj\.k_scale is 0\.0 .*positive number"),
        (torch.tensor(-1.0), r"k_proj\.k_scale is -1\.0"),
        (torch.tensor(float("nan")), r"k_proj\.k_scale is nan"),
        (torch.tensor(float("inf")), r"k_proj\.k_scale is inf"),
        (torch.tensor(3), r"k_proj\.k_scale is 3 \(torch\.int64\)"),
        (torch.ones(2), r"k_proj\.k_scale has shape \[2\].*one number for the layer"),
        (torch.ones(1, 2, 1), r"k_proj\.k_scale has shape \[1, 2, 1\]"),
    ],
)
def test_malformed_scales_are_refused_by_name(scale: torch.Tensor, message: str, tmp_path: Path) -> None:
    folder = add_scales(make_tiny_model(tmp_path / "m"))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.self_attn.k_proj.k_scale"] = scale
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"model\.layers\.1\.self_attn\." + message):
        load(folder, kv_scales=True)
    load(folder)


def test_a_scale_without_its_other_half_is_refused(tmp_path: Path) -> None:
    folder = add_scales(make_tiny_model(tmp_path / "m"))
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.2.self_attn.v_proj.v_scale"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"k_proj\.k_scale, but no model\.layers\.2\.self_attn\.v_proj\.v_scale"):
        load(folder, kv_scales=True)


FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}


@pytest.mark.parametrize(
    ("config", "modelopt", "expected"),
    [
        ({"kv_cache_scheme": FP8}, None, True),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, None, True),
        ({"kv_cache_scheme": None}, None, False),
        ({"kv_cache_scheme": {**FP8, "type": "int"}}, None, False),
        ({"kv_cache_scheme": {**FP8, "dynamic": True}}, None, False),
        ({"kv_cache_scheme": {**FP8, "strategy": "attn_head"}}, None, False),
        ({"kv_cache_quant_algo": "FP8"}, None, True),
        (None, {"quantization": {"kv_cache_quant_algo": "FP8"}}, True),
        (None, {"quantization": {"kv_cache_quant_algo": "NVFP4"}}, False),
        (None, {"quantization": {"kv_cache_quant_algo": None}}, False),
        (None, None, False),
    ],
)
def test_what_a_checkpoint_says(config: dict[str, Any] | None, modelopt: dict[str, Any] | None, expected: bool) -> None:
    assert wants_fp8({} if config is None else {"quantization_config": config}, modelopt) == expected
