"""The mixture of experts of Qwen3-Next and Qwen3.5, with its shared expert, against transformers' in float32."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from radixrt.errors import ModelLoadError
from radixrt.models.decoder import Decoder
from radixrt.models.experts_spec import ExpertsSpec
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import ModelSpec, load_model_spec, parse_model_spec
from radixrt.models.moe import MoEFeedForward
from tests.distributed.rank_threads import ThreadGroup, on_ranks
from tests.models.test_hybrid_config import COMMON
from tests.tiny_models import make_tiny_model

PREFIX = "model.layers.0.mlp."
NAMES = ("gate_proj", "up_proj", "down_proj")


def their_block(**fields: Any) -> nn.Module:
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextSparseMoeBlock

    config = Qwen3NextConfig(
        hidden_size=64, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=48, num_hidden_layers=1, **fields
    )
    config._experts_implementation = "eager"
    block: nn.Module = Qwen3NextSparseMoeBlock(config)
    generator = torch.Generator().manual_seed(1)
    for parameter in block.parameters():
        nn.init.normal_(parameter, 0.0, 0.2, generator=generator)
    return block.eval()


def save_block(folder: Path, block: nn.Module) -> ModelSpec:
    """Write a model of one layer that has the weights of the block, named as in published files; return its spec."""
    make_tiny_model(folder, "qwen3", num_hidden_layers=1)
    tensors = {name: t for name, t in load_file(folder / "model.safetensors").items() if not name.startswith(PREFIX)}
    state = block.state_dict()
    tensors |= {PREFIX + name: state[name] for name in ("gate.weight", "shared_expert_gate.weight")}
    for i, (gate_up, down) in enumerate(zip(state["experts.gate_up_proj"], state["experts.down_proj"], strict=True)):
        for name, tensor in zip(NAMES, (*gate_up.chunk(2), down), strict=True):
            tensors[f"{PREFIX}experts.{i}.{name}.weight"] = tensor.contiguous()
    for name in NAMES:
        tensors[f"{PREFIX}shared_expert.{name}.weight"] = state[f"shared_expert.{name}.weight"]
    save_file(tensors, folder / "model.safetensors")
    spec = load_model_spec(folder)
    assert spec.decoder is not None
    experts = ExpertsSpec(8, 3, 48, True, "mlp", NAMES, state["shared_expert.up_proj.weight"].shape[0])
    layers = (dataclasses.replace(spec.decoder.layers[0], feed_forward="moe"),)
    return dataclasses.replace(spec, decoder=dataclasses.replace(spec.decoder, experts=experts, layers=layers))


def load(folder: Path, spec: ModelSpec, group: ThreadGroup | None = None, load_format: str = "auto") -> MoEFeedForward:
    model = load_model(folder, spec, dtype="float32", device="cpu", group=group, load_format=load_format)
    assert isinstance(model, Decoder)
    found = model.layers[0].feed_forward
    assert isinstance(found, MoEFeedForward)
    return found


@pytest.mark.parametrize("shared", [48, 144, 100, 10], ids=["as-large", "of-three", "padded", "smaller"])
@torch.inference_mode()
def test_output_equals_transformers(shared: int, tmp_path: Path) -> None:
    block = their_block(shared_expert_intermediate_size=shared)
    spec = save_block(tmp_path / "m", block)
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(2))
    expected = block(x[None])[0]
    assert block.shared_expert(x).abs().mean() > 0.1  # it matters
    for size in (1, 2):
        addends = on_ranks(size, lambda group: load(tmp_path / "m", spec, group)(x).x)
        torch.testing.assert_close(sum(addends), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shared", [48, 100, 10])
def test_ranks_make_the_same_random_model(shared: int, tmp_path: Path) -> None:
    spec = save_block(tmp_path / "m", their_block(shared_expert_intermediate_size=shared))
    whole = load(tmp_path / "m", spec, load_format="dummy")
    ranks = on_ranks(2, lambda group: load(tmp_path / "m", spec, group, "dummy"))
    assert torch.equal(ranks[0].router, whole.router)
    gate, up = whole.experts.gate_up_proj.chunk(2, dim=1)
    for rank, found in enumerate(ranks):
        part = slice(24 * rank, 24 * rank + 24)
        assert torch.equal(found.experts.gate_up_proj, torch.cat((gate[:, part], up[:, part]), dim=1))
        assert torch.equal(found.experts.down_proj, whole.experts.down_proj[:, :, part])
    padding = -shared % 48
    assert not whole.experts.down_proj[-1, :, 48 - padding :].any()
    assert not up[-1, 48 - padding :].any()


def test_parameters_are_counted(tmp_path: Path) -> None:
    spec = save_block(tmp_path / "m", their_block(shared_expert_intermediate_size=100))
    assert spec.decoder is not None
    assert spec.decoder.experts is not None
    held = sum(p.numel() for p in load(tmp_path / "m", spec).parameters())
    assert spec.decoder.experts.num_linear_parameters * 64 == held


NEXT, QWEN3_5 = "Qwen3NextForCausalLM", "Qwen3_5MoeForCausalLM"
FIELDS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 96,
}


def parsed(architecture: str, **changes: Any) -> tuple[ExpertsSpec, list[int]]:
    """The mixture of an architecture, and the indices of the layers that have it."""
    decoder = parse_model_spec({**COMMON, **FIELDS, "architectures": [architecture], **changes}, {}).decoder
    assert decoder is not None
    assert decoder.experts is not None
    return decoder.experts, [i for i, layer in enumerate(decoder.layers) if layer.feed_forward == "moe"]


@pytest.mark.parametrize("architecture", [NEXT, QWEN3_5])
def test_fields_of_config_json(architecture: str) -> None:
    experts, layers = parsed(architecture)
    assert experts == ExpertsSpec(8, 3, 48, True, "mlp", NAMES, 96)
    assert experts.num_shared == 2
    assert layers == [0, 1, 2, 3]


def test_fields_of_a_text_part() -> None:
    experts, _ = parsed("Qwen3_5MoeForConditionalGeneration", text_config={**COMMON, **FIELDS})
    assert experts == ExpertsSpec(8, 3, 48, True, "mlp", NAMES, 96)


def test_fields_of_qwen3_next_alone() -> None:
    changed = {"norm_topk_prob": False, "decoder_sparse_step": 2}
    experts, layers = parsed(NEXT, **changed)
    assert not experts.renormalize
    assert layers == [1, 3]
    with pytest.raises(ModelLoadError, match=r"decoder_sparse_step is not supported for Qwen3_5Moe"):
        parsed(QWEN3_5, **changed)


def test_the_size_of_the_shared_expert_is_required() -> None:
    with pytest.raises(ModelLoadError, match="shared_expert_intermediate_size is missing"):
        parsed(NEXT, shared_expert_intermediate_size=None)
