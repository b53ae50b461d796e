"""The option `quantization`: what it makes of plain and of quantized checkpoints, and what it refuses by name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from radixrt import Engine
from radixrt.config import make_config
from radixrt.errors import ConfigError
from radixrt.layers.formats.base import Quantization
from radixrt.layers.formats.choice import ONLINE, choose_quantization
from radixrt.layers.formats.mxfp4 import Mxfp4Quantization
from radixrt.layers.formats.online import OnlineQuantization
from radixrt.models.model_config import parse_model_spec
from tests.models.loading.test_mxfp4 import PUBLISHED
from tests.models.test_gpt_oss_config import GPT_OSS_20B
from tests.models.test_model_config import LLAMA
from tests.tiny_models import make_tiny_model


@dataclass(frozen=True)
class Stored(Quantization):
    scheme: str = "fp8 rows"


@pytest.mark.parametrize(
    ("wanted", "stored", "chosen"),
    [
        ("auto", None, None),
        ("none", None, None),
        *((kind, None, OnlineQuantization(kind)) for kind in ONLINE),
        ("auto", Stored(), Stored()),
        ("fp8", Stored(), Stored()),  # the checkpoint has the wanted numbers already
    ],
)
def test_choice(wanted: str, stored: Quantization | None, chosen: Quantization | None) -> None:
    assert choose_quantization(wanted, stored, "LlamaForCausalLM") == chosen


@pytest.mark.parametrize("wanted", ["none", "int8", "int4"])
def test_a_second_loss_is_refused(wanted: str) -> None:
    with pytest.raises(ConfigError, match=rf"quantization={wanted}: .*LlamaForCausalLM are stored as fp8 rows; use"):
        choose_quantization(wanted, Stored(), "LlamaForCausalLM")


def test_a_spec_has_the_wanted_formats() -> None:
    for kind in ONLINE:
        decoder = parse_model_spec(LLAMA, {}, kind).decoder
        assert decoder is not None
        assert decoder.quantization == OnlineQuantization(kind)
    published: dict[str, Any] = {**GPT_OSS_20B, "quantization_config": PUBLISHED}
    decoder = parse_model_spec(published, {}).decoder
    assert decoder is not None
    assert decoder.quantization == Mxfp4Quantization()
    with pytest.raises(ConfigError, match="GptOssForCausalLM are stored as mxfp4 experts"):
        parse_model_spec(published, {}, "int4")


@pytest.mark.parametrize("wanted", ["auto", "none", "fp8"])
def test_models_of_transformers_have_plain_weights(wanted: str) -> None:
    config = {**LLAMA, "architectures": ["OlmoForCausalLM"]}
    if wanted in ONLINE:
        with pytest.raises(ConfigError, match="quantization=fp8: OlmoForCausalLM runs through transformers"):
            parse_model_spec(config, {}, wanted)
    else:
        assert parse_model_spec(config, {}, wanted).decoder is None


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("awq", "auto"),
        ("compressed-tensors", "auto"),
        ("w8a8_int8", "auto"),
        ("fp8_per_tensor", "fp8"),
        ("int8_per_channel_weight_only", "int8"),
        ("int4", "int4"),
    ],
)
def test_values_of_vllm_and_sglang(value: str, meant: str) -> None:
    assert make_config(quantization=value).model.quantization == meant


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "m", "llama")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["fp8", "int8", "int4"])
def test_an_engine_with_the_option_generates(kind: str, dtype: str, tiny: Path) -> None:
    options: dict[str, Any] = {"executor": "uni", "device": "cpu", "dtype": dtype, "kv_cache_tokens": 512}
    with Engine(str(tiny), quantization=kind, **options) as engine:
        output = engine.generate("The capital", {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True})
    assert output.usage.completion_tokens == 8  # type: ignore[union-attr]


def test_an_embedding_of_int8_weights_is_close_to_that_of_plain_ones(tiny: Path) -> None:
    options: dict[str, Any] = {"executor": "uni", "device": "cpu", "dtype": "float32", "kv_cache_tokens": 512}
    vectors = []
    for kind in ("none", "int8"):
        with Engine(str(tiny), quantization=kind, **options) as engine:
            vectors.append(torch.from_numpy(engine.embed("Once upon a time").vectors[0]))
    assert not torch.equal(*vectors)
    assert torch.cosine_similarity(*vectors, dim=0) > 0.99


def test_an_engine_refuses_a_model_of_transformers_before_its_weights_are_read(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["OlmoForCausalLM"]}))
    with pytest.raises(ConfigError, match="use quantization=auto"):
        Engine(str(folder), quantization="int8", executor="uni", device="cpu")
