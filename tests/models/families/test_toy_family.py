"""A dense family, in this file alone: fields and tensors with names of its own, from config.json to the logits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixrt.doctor.model import model_needs
from radixrt.errors import ModelLoadError
from radixrt.models.config_fields import flag
from radixrt.models.decoder_spec import DecoderSpec, TensorNames
from radixrt.models.families import FAMILIES
from radixrt.models.families.family import Config, Family
from radixrt.models.families.fields import dense_decoder
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from radixrt.models.registry import alternatives
from tests.distributed.rank_threads import on_ranks
from tests.models.dense_attention import run_in_steps
from tests.models.test_decoder import sequences
from tests.tiny_models import make_tiny_model

FIELDS = {"hidden_size": "width", "num_hidden_layers": "depth", "intermediate_size": "ff_width"}
TENSORS = {".mlp.gate_proj.": ".ffn.w1.", ".mlp.up_proj.": ".ffn.w3.", ".mlp.down_proj.": ".ffn.w2."}
NAMES = TensorNames(feed_forward="ffn", projections=("w1", "w3", "w2"))


def parse(config: Config, architecture: str) -> DecoderSpec:
    if config.get("twist"):
        raise ModelLoadError(f"config.json: twist is not supported for {architecture}")
    bias = flag(config, "biased")
    usual = {**config, **{name: config[own] for name, own in FIELDS.items() if own in config}}
    return dense_decoder(usual, architecture, qkv_bias=bias, o_bias=bias, mlp_bias=bias, names=NAMES)


TOY = Family(
    ("ToyForCausalLM",),
    parse,
    classifiers={"ToyForSequenceClassification": "ToyForCausalLM"},
    nearest=("toy",),
)


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    FAMILIES.append(TOY)
    yield
    FAMILIES.remove(TOY)


def make_models(folder: Path, **changes: Any) -> tuple[Path, Path]:
    """Folders of a model of the family, and of the same one as a Llama."""
    own, llama = (make_tiny_model(folder / n, attention_bias=True, mlp_bias=True) for n in ("toy", "llama"))
    config = json.loads((llama / "config.json").read_text())
    config = {FIELDS.get(name, name): value for name, value in config.items()}
    config |= {"architectures": ["ToyForCausalLM"], "model_type": "toy", "biased": True, **changes}
    (own / "config.json").write_text(json.dumps(config))
    renamed = {}
    for name, tensor in load_file(llama / "model.safetensors").items():
        for usual, toys in TENSORS.items():
            name = name.replace(usual, toys)
        renamed[name] = tensor
    save_file(renamed, own / "model.safetensors", {"format": "pt"})
    return own, llama


def logits(folder: Path, **options: Any) -> list[torch.Tensor]:
    options = {"dtype": "float32", "device": "cpu", **options}
    return run_in_steps(load_model(folder, load_model_spec(folder), **options), sequences())


@pytest.mark.parametrize("ranks", [1, 2])
def test_logits(ranks: int, tmp_path: Path) -> None:
    own, llama = make_models(tmp_path)
    expected = logits(llama)
    for found in on_ranks(ranks, lambda group: logits(own, group=group)):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4 if ranks > 1 else 0, rtol=0)


def test_the_family_is_known_everywhere(tmp_path: Path) -> None:
    own, _ = make_models(tmp_path)
    needs = model_needs(str(own), device="cpu", free_bytes=1 << 30)
    assert (needs.runs_on, needs.ranks, needs.stages) == ("radixrt's decoder", (1, 2, 4), 3)
    assert alternatives("ToyForCausalLM") == ""
    assert alternatives("Toy2ForConditionalGeneration").endswith("runs is ToyForCausalLM")
    for name in ("ToyModel", "ToyForSequenceClassification"):
        spec = load_model_spec(make_models(tmp_path / name, architectures=[name])[0])
        assert (spec.architecture, spec.has_head) == ("ToyForCausalLM", False)
        assert (spec.classifier is not None) == (name == "ToyForSequenceClassification")


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"twist": 1}, "twist is not supported for ToyForCausalLM"), ({"depth": None}, "num_hidden_layers is missing")],
)
def test_what_the_family_does_not_have_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=message):
        load_model_spec(make_models(tmp_path, **changes)[0])
