"""Routing, loading and partition of mixtures of experts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from radixrt.errors import ConfigError, ModelLoadError
from radixrt.models.decoder import Decoder
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from radixrt.models.moe import MoEFeedForward
from radixrt.models.partition import check_partition
from tests.distributed.rank_threads import ThreadGroup, on_ranks
from tests.tiny_models import MOE_KINDS, make_tiny_model


def load(folder: Path, group: ThreadGroup | None = None) -> Decoder:
    model = load_model(folder, load_model_spec(folder), dtype="float32", device="cpu", group=group)
    assert isinstance(model, Decoder)
    return model


def routers(model: Decoder) -> list[MoEFeedForward]:
    return [layer.feed_forward for layer in model.layers if isinstance(layer.feed_forward, MoEFeedForward)]


@pytest.mark.parametrize(("kind", "renormalize"), [("mixtral", True), ("qwen3_moe", True), ("qwen3_moe", False)])
def test_routes_as_transformers_does_with_ties(kind: str, renormalize: bool, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    overrides = {"norm_topk_prob": renormalize} if kind == "qwen3_moe" else {}
    folder = make_tiny_model(tmp_path / "m", kind, num_hidden_layers=2, **overrides)
    gate = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).model.layers[1].mlp.gate
    ours = routers(load(folder))[-1]
    with torch.inference_mode():
        for weight in (gate.weight, ours.router):
            weight[1], weight[2] = weight[0], weight[0]
        x = torch.randn(200, 64, generator=torch.Generator().manual_seed(1))
        _, weights, experts = gate(x)
        found, scales = ours.route(x)
    assert torch.equal(found, experts)
    torch.testing.assert_close(scales, weights, atol=1e-6, rtol=1e-6)
    assert 0 < (experts[:, 0] < 3).sum() < 200  # ties of three decide some rows


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", MOE_KINDS)
def test_stacked_experts_load_as_those_of_one_tensor_each(kind: str, size: int, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = make_tiny_model(tmp_path / "m", kind, num_hidden_layers=2)
    stacked = tmp_path / "stacked"
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(stacked, save_original_format=False)
    with safe_open(str(stacked / "model.safetensors"), "pt") as file:
        assert "model.layers.1.mlp.experts.gate_up_proj" in file.keys()  # noqa: SIM118
    with safe_open(str(folder / "model.safetensors"), "pt") as file:
        assert not any(name.endswith("gate_up_proj") for name in file.keys())  # noqa: SIM118

    def both(group: ThreadGroup) -> None:
        one, other = (dict(load(path, group).named_parameters()) for path in (folder, stacked))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
        sizes = (112 if kind == "mixtral" else 48) // size
        assert one["layers.1.feed_forward.experts.gate_up_proj"].shape[1:] == (2 * sizes, 64)
        assert one["layers.1.feed_forward.experts.down_proj"].shape[1:] == (64, sizes)

    on_ranks(size, both)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", "qwen3_moe", num_hidden_layers=2)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.7.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"missing: model\.layers\.1\.mlp\.experts\.7\.up_proj\.weight$"):
        load(folder)


def test_columns_of_experts_must_divide(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", "qwen3_moe", moe_intermediate_size=54, num_hidden_layers=2)
    spec = load_model_spec(folder)
    assert spec.decoder is not None
    with pytest.raises(ConfigError, match=r"112 and 54 feed-forward columns .* tp may be 1, 2$"):
        check_partition(spec, 4)
    sparse = tuple(dataclasses.replace(layer, feed_forward="moe") for layer in spec.decoder.layers)
    undivided = dataclasses.replace(spec.decoder, intermediate_size=113, layers=sparse)
    check_partition(dataclasses.replace(spec, decoder=undivided), 2)  # no layer has a dense feed-forward


@pytest.mark.parametrize("kind", MOE_KINDS)
def test_linear_parameters_are_counted(kind: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", kind, num_hidden_layers=2)
    spec = load_model_spec(folder)
    assert spec.decoder is not None
    held = [p for name, p in load(folder).named_parameters() if ".layers." in f".{name}" and p.dim() > 1]
    assert spec.decoder.num_linear_parameters == sum(p.numel() for p in held)
